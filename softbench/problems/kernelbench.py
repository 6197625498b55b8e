"""A problem of KernelBench: a file with `Model`, `get_inputs` and `get_init_inputs`. A solution's file has `ModelNew`.

Seeds and the order of the generator are those of its evaluator, so that `Model` and `ModelNew` have the same weights: the seed is set
before `get_init_inputs`, and again before each of the two is made. Inputs are drawn on the CPU. Its evaluator casts all tensors to one
dtype; here integers stay integers. https://github.com/ScalingIntelligence/KernelBench
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import getdoc
from types import ModuleType
from typing import Any

import torch

from softbench.core.case import Value, safe_name
from softbench.core.errors import UsageError
from softbench.problems.problem import Problem, Tolerance, seeded

SEED = 42
"""That of its evaluator, for the weights."""
TOLERANCES = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 1e-2}
"""rtol and atol of its evaluator."""


class KernelBench(Problem):
    """The classes and functions of a module."""

    format, solution = "kernelbench", "ModelNew"
    on_cpu = True
    parameters: Mapping[str, Value] = {}

    def __init__(self, module: ModuleType, stem: str) -> None:
        """Raises UsageError for a module without the parts of a problem."""
        self.name, self._module = safe_name(stem), module
        if not (isinstance(module.Model, type) and issubclass(module.Model, torch.nn.Module)):
            raise UsageError("Model must be a subclass of torch.nn.Module, as in KernelBench")
        if not callable(module.get_inputs):
            raise UsageError("get_inputs must be a function")
        self.summary = (module.Model.__doc__ or getdoc(module) or "").strip().partition("\n")[0]

    def inputs(self, values: Mapping[str, Value], seed: int, dtype: torch.dtype, device: torch.device) -> Any:
        """What `get_inputs` gives."""
        return self._module.get_inputs()

    def reference(self, device: torch.device) -> Callable[..., Any]:
        """`Model` with the weights of the seed."""
        return self._made(self._module.Model, device)

    def ready(self, found: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
        """`ModelNew` with the same weights; any other callable as it is."""
        return self._made(found, device) if isinstance(found, type) and issubclass(found, torch.nn.Module) else found

    def tolerance(self, dtype: str) -> Tolerance | None:
        """That of its evaluator."""
        return TOLERANCES[dtype], TOLERANCES[dtype]

    def _made(self, model: type[torch.nn.Module], device: torch.device) -> torch.nn.Module:
        give = getattr(self._module, "get_init_inputs", list)
        with seeded(SEED, device), torch.no_grad():
            given = [one.to(device) if isinstance(one, torch.Tensor) else one for one in give()]
        with seeded(SEED, device), torch.no_grad():
            return model(*given).to(device).requires_grad_(False)
