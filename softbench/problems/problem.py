"""A problem: inputs from a seed and parameters, a reference in Python, and how a solution is called.

Each format of problem files is a subclass in a file of its own.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple

import torch

from softbench.core.case import Value
from softbench.core.errors import UsageError

SIZES = ("M", "N")
"""The parameters that `--M` and `--N` set; the others are set by `--set`."""
NOT_PARAMETERS = ("seed", "dtype", "device")
"""What softbench gives to `inputs` where it asks for it."""
Tolerance = tuple[float, float]
"""rtol and atol: |out - reference| may be atol + rtol |reference|."""


class Arguments(NamedTuple):
    """Inputs that are positional and named arguments of a call."""

    args: list[Any]
    named: dict[str, Any]


class Problem(ABC):
    """A problem of one file."""

    name: str
    format = ""
    """What `softbench export --to` calls its format."""
    summary = ""
    solution = "solution"
    """What a plugin file may call its function or class, beside the problem's name."""
    parameters: Mapping[str, Value]
    """The parameters with their values without a setting."""
    cases: Sequence[Mapping[str, Value]] = ({},)
    """The cases of a run without settings: values of parameters."""
    takes_dtype = False
    """True if the inputs have the dtype of `--dtype`."""
    dtypes: tuple[str, ...] = ("fp32", "fp16", "bf16")
    """Those of `--dtype`, the default first."""
    traced: tuple[str, ...] = ("fp32", "bf16")
    """Dtypes of the calls that show which tensors have the dtype of the case."""
    on_cpu = False
    """True if inputs are drawn on the CPU and then moved."""
    destination = False
    """True if a solution gets its outputs as its last arguments and writes them."""
    returned = False
    """True if an input that the reference changes and returns is right if a solution returns it, wherever that has it."""
    recorded = False
    """True if the outputs of the reference backend are right."""
    of_values: Callable[[Any], Any] | None = None
    """The class of its values, if it has its own."""
    reads: Sequence[Path] = ()
    """Files outside of its folder that the problem reads."""

    @abstractmethod
    def inputs(self, values: Mapping[str, Value], seed: int, dtype: torch.dtype, device: torch.device) -> Any:
        """The inputs: a tuple or list of arguments, a dict of keyword arguments, Arguments, or one tensor. The generators have the seed."""

    @abstractmethod
    def reference(self, device: torch.device) -> Callable[..., Any]:
        """The reference, or a module that is one."""

    def ready(self, found: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
        """What a solution offers as a callable of the inputs."""
        return found

    def spec(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """A case in the words of the format, once for each benchmark that is the same case here."""
        return ()

    def tolerance(self, dtype: str) -> Tolerance | None:
        """The problem's own tolerance; None if it has none."""
        return None


def drawn(problem: Problem, values: Mapping[str, Value], seed: int, dtype: torch.dtype, device: torch.device) -> Any:
    """The inputs of a seed on a device; the caller's generators stay as they are."""
    with seeded(seed, device), torch.device("cpu" if problem.on_cpu else device), torch.no_grad():
        return problem.inputs(values, seed, dtype, device)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds the generators of torch and Python, and puts back their state at the end."""
    before, devices = random.getstate(), [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed imports Dynamo at its first call, for seconds
        if devices:
            torch.cuda.manual_seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before)


def parameters_of(function: Callable[..., Any], at: str) -> dict[str, Any]:
    """The parameters of a function of inputs, each with its default; without one `Parameter.empty`.

    Raises:
        UsageError: it has parameters that cannot be named.
    """
    found: dict[str, Any] = {}
    for one in signature(function).parameters.values():
        if one.kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            raise UsageError(f"{at} has the parameter {one}; give each a name, as in {at}(M=4096, N=1024)")
        found[one.name] = one.default
    return found
