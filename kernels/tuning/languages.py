"""How the families of a language make plans for a shape, and how they are launched."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from ..common.cuda_library import architecture_of
from ..cuda import build, launch
from ..plans.table import PASSES, Family
from ..triton import dispatch
from ..triton.devices import device_traits
from ..triton.launch_plan import VECTOR_BYTES, Problem
from ..triton.planner import make_plan
from ..triton.stable_key import with_stable_key
from .shapes import FAMILIES, Shape

Operands = tuple[torch.Tensor, ...]
Call = Callable[[], object]
Plans = dict[Any, list[Family]]
"""The plans that families make for a shape, and the families of each."""


class Language(Protocol):
    """What tuning asks."""

    name: str
    each: int
    """How many shapes have one length."""
    ahead: int
    """How many shapes are expected before they are timed."""

    def key(self) -> str:
        """Changes with the kernels."""

    def expect(self, shape: Shape, given: Operands) -> None:
        """Prepares the plans of a shape."""

    def plans(self, shape: Shape, given: Operands) -> Plans:
        """The plans of all families that make one."""

    def makes(self, shape: Shape) -> Collection[Family]:
        """The families that make a plan for a shape."""

    def calls(self, plan: Any, sets: Sequence[Operands]) -> list[Call]:
        """A launch on each of several operands. None: of the plan that is used now. No calls: this card does not take the plan."""

    def close(self) -> None:
        """Ends what the language started."""


class Cuda:
    """The kernels in CUDA C++."""

    name, each, ahead = "cuda", 1, 0

    def key(self) -> str:
        return build.build(architecture_of(torch.cuda.get_device_capability())).parent.name

    def expect(self, shape: Shape, given: Operands) -> None:
        pass

    def close(self) -> None:
        pass

    def plans(self, shape: Shape, given: Operands) -> Plans:
        library, found = launch._library("softmax", torch.cuda.current_device()), Plans()
        for family in FAMILIES[self.name]:
            plan, numbers = launch.Plan(-1), (ctypes.c_int * 6)(*launch.family_numbers(family))
            if library.softbench_candidate(PASSES.index(shape.which), shape.size == 2, shape.M, shape.N, numbers, ctypes.addressof(plan)):
                found.setdefault(tuple(getattr(plan, name) for name, *_ in plan._fields_), []).append(family)
        return found

    def makes(self, shape: Shape) -> Collection[Family]:
        return [family for families in self.plans(shape, ()).values() for family in families]

    def calls(self, plan: Any, sets: Sequence[Operands]) -> list[Call]:
        given = None if plan is None else launch.Plan(*plan)
        run: Any = launch.launch_forward if len(sets[0]) == 2 else launch.launch_backward
        return [functools.partial(run, *operands, plan=given) for operands in sets]


class Triton:
    """The kernels in Triton. Several processes compile them."""

    name, each, ahead = "triton", 5, 200

    def __init__(self, processes: int | None = None) -> None:
        self.pool = ProcessPoolExecutor(processes or max(1, (os.cpu_count() or 2) - 2), get_context("spawn"))
        self.compiled: dict[Hashable, Future[None]] = {}

    def key(self) -> str:
        """Of the sources beside the planner."""
        sources = sorted(Path(make_plan.__code__.co_filename).parent.glob("*.py"))
        return hashlib.sha256(b"".join(map(Path.read_bytes, sources))).hexdigest()[:16]

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    def expect(self, shape: Shape, given: Operands) -> None:
        if shape.which == "widened":  # they have plans of forwards
            return
        for key, work in self._kernels(shape, given).items():
            if key not in self.compiled:
                self.compiled[key] = self.pool.submit(_compile, *work)

    def plans(self, shape: Shape, given: Operands) -> Plans:
        if shape.which == "widened":
            return {}
        for key in self._kernels(shape, given):
            self.compiled[key].exception()  # waits
        return self._plans(given)

    def makes(self, shape: Shape) -> Collection[Family]:
        if shape.which == "widened":
            return ()
        traits = device_traits(torch.device("cuda", torch.cuda.current_device()))[1:]
        backward, alignment = shape.reads == 2, min(VECTOR_BYTES, shape.row_bytes & -shape.row_bytes)
        problem = Problem(backward, shape.M, shape.N, shape.size, alignment, True, *traits, contiguous=True)
        return [family for family in FAMILIES[self.name] if make_plan(problem, family) is not None]

    def calls(self, plan: Any, sets: Sequence[Operands]) -> list[Call]:
        problem, now = dispatch.choose_plan(sets[0])
        try:
            ready = dispatch.prepare_launch(problem, plan or now, sets[0])
            run = dispatch._compiled_launch(ready(sets[0]), ready, sets[0])
        except Exception as error:  # this card or compiler does not take the plan
            print(f"softbench: tune: {plan} of {problem}: {error}", file=sys.stderr)
            return []
        return [lambda given=given: run(*ready.addresses(given), *ready.arguments, None) for given in sets]  # type: ignore[misc]

    def _plans(self, given: Operands) -> Plans:
        problem, found = dispatch.problem_of(given), Plans()
        for family in FAMILIES[self.name]:
            if (plan := make_plan(problem, family)) is not None:
                found.setdefault(plan, []).append(family)
        return found

    def _kernels(self, shape: Shape, given: Operands) -> dict[Hashable, Any]:
        """What is compiled for the plans, each kernel once."""
        problem, now = dispatch.choose_plan(given)
        found: dict[Hashable, Any] = {}
        for plan in (*self._plans(given), now):
            ready = dispatch.prepare_launch(problem, plan, given)
            parameters = ready.kernel.params[-1 - len(ready.arguments) :]
            known = [one for of, one in zip(parameters, ready.arguments, strict=False) if of.is_constexpr]
            # Triton compiles the generic kernels again if 16 divides N, or for N = 1.
            kind = (problem.N == 1, problem.N % 16 == 0) if plan.tier in ("tile", "loop") else ()
            key = ready.kernel.__name__, shape.size, *known, *kind, *ready.options.items()
            found[key] = problem, plan, given[0].dtype, given[-1].dtype
        return found


def _compile(problem: Any, plan: Any, read: torch.dtype, written: torch.dtype) -> None:
    """Compiles a plan's kernel, which Triton's cache on disk keeps."""
    strides: Any = (SimpleNamespace(stride=lambda _: problem.N),) * (problem.reads + 1)
    ready = dispatch.prepare_launch(problem, plan, strides)
    operands = *(read,) * problem.reads, written, *(torch.int64,) * (2 if ready.slots else 0)
    with_stable_key(ready.kernel).warmup(*operands, *ready.arguments, None, grid=(1,), **ready.options)
