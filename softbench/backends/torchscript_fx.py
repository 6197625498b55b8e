"""torch.compile's elders, on the naive function: `jit-trace`, `jit-script` (TorchScript, which PyTorch deprecates) and `fx`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from softbench.backends.directions import by_direction
from softbench.backends.naive import naive_backward
from softbench.core.case import Case, Direction
from softbench.ops.dtypes import DTYPES

WARM_CALLS = 3  # TorchScript's executor watches the first call and optimizes on the second; one more for the gradient's


def forward(x: torch.Tensor) -> torch.Tensor:
    """Naive softmax without a branch on the shape, which tracers do not follow."""
    numerator = torch.exp(x - x.amax(dim=-1, keepdim=True).detach())
    return numerator / numerator.sum(dim=-1, keepdim=True)


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The naive gradient."""
    return naive_backward(dy, y)


class TorchScriptOrFx:
    """What the three have in common."""

    extra = True
    name: str

    def available(self) -> str | None:
        return None

    def supports(self, case: Case) -> str | None:
        return "it takes no rows without elements" if case.M * case.N == 0 else None

    def convert(self, function: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
        """The function in the other representation; `given` are inputs for those that need some."""
        raise NotImplementedError

    def prepare(self, case: Case) -> Callable[..., Any]:
        """Converts, and calls until nothing is left to optimize: TorchScript does that in its first calls."""
        x = torch.zeros(case.M, case.N, dtype=DTYPES[case.dtype], device=case.device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that it is deprecated is what its summary says
            call = self.convert(backward, (x, x)) if case.direction is Direction.BACKWARD else self.convert(forward, (x,))
        call = by_direction(case, call, call)
        given = (x,) if case.direction is Direction.FORWARD else (x.requires_grad_(case.direction is Direction.BOTH), torch.zeros_like(x))
        for _ in range(WARM_CALLS):
            call(*given)
        return call


class Traced(TorchScriptOrFx):
    """torch.jit.trace of the naive function: recorded from one call, for one shape; deprecated by PyTorch."""

    name = "jit-trace"
    advice = "only where TorchScript is a must: its heirs are torch.compile and torch.export"

    def convert(self, function: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
        traced: Callable[..., Any] = torch.jit.trace(function, given, check_trace=False)
        return traced


class Scripted(TorchScriptOrFx):
    """torch.jit.script of the naive function: compiled from its source, for any shape; deprecated by PyTorch."""

    name = "jit-script"
    advice = "as jit-trace, where control flow must be kept"

    def convert(self, function: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
        scripted: Callable[..., Any] = torch.jit.script(function)
        return scripted


class Graph(TorchScriptOrFx):
    """torch.fx.symbolic_trace of the naive function: the same eager operations, called from generated Python."""

    name = "fx"
    advice = "never for speed: it is what passes over a graph start from"

    def convert(self, function: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
        graph: Callable[..., Any] = torch.fx.symbolic_trace(function)
        return graph


trace, script, fx = Traced(), Scripted(), Graph()
