"""TorchScript and torch.fx of the naive function: `jit-trace`, `jit-script` and `fx`. PyTorch deprecates TorchScript."""

from __future__ import annotations

import warnings

import torch

from softbench.backends.calls import EMPTY, Pair, TensorCall, by_direction
from softbench.backends.naive import naive_backward, naive_log_backward
from softbench.core.case import Case, Direction
from softbench.ops.dtypes import DTYPES
from softbench.plugins.backend import Call

WARM_CALLS = 3  # TorchScript profiles the first call and optimizes in the second; the gradient needs one more


def forward(x: torch.Tensor) -> torch.Tensor:
    """Naive softmax without a branch on the shape: tracers do not follow branches."""
    numerator = torch.exp(x - x.amax(dim=-1, keepdim=True).detach())
    return numerator / numerator.sum(dim=-1, keepdim=True)


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The naive gradient."""
    return naive_backward(dy, y)


def log_forward(x: torch.Tensor) -> torch.Tensor:
    """Naive log-softmax in float32, without a branch on the shape."""
    wide = x.float()
    shifted = wide - wide.amax(dim=-1, keepdim=True).detach()
    return (shifted - torch.exp(shifted).sum(dim=-1, keepdim=True).log()).to(x.dtype)


def log_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The naive gradient of log-softmax."""
    return naive_log_backward(dy, y)


PAIRS: dict[str, Pair] = {"softmax": (forward, backward), "log_softmax": (log_forward, log_backward)}
"""The functions to convert, by operation."""


class TorchScriptOrFx:
    """Base of the three backends."""

    extra = True
    operations = tuple(PAIRS)
    name: str

    def available(self) -> str | None:
        return None

    def supports(self, case: Case) -> str | None:
        return EMPTY if case.M * case.N == 0 else None

    def convert(self, function: TensorCall, example: tuple[torch.Tensor, ...]) -> TensorCall:
        """The converted function. `example` are inputs for a conversion that needs them."""
        raise NotImplementedError

    def prepare(self, case: Case) -> Call:
        """Converts the function and calls it until TorchScript has optimized it."""
        x = torch.zeros(case.M, case.N, dtype=DTYPES[case.dtype], device=case.device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the summary says that TorchScript is deprecated
            forward, backward = PAIRS[case.operation]
            converted = self.convert(backward, (x, x)) if case.direction is Direction.BACKWARD else self.convert(forward, (x,))
        call = by_direction(case, converted, converted)
        given = (x,) if case.direction is Direction.FORWARD else (x.requires_grad_(case.direction is Direction.BOTH), torch.zeros_like(x))
        for _ in range(WARM_CALLS):
            call(*given)
        return call


class Traced(TorchScriptOrFx):
    """torch.jit.trace of the naive function: one recorded call, one shape; deprecated by PyTorch."""

    name = "jit-trace"
    advice = "only if TorchScript is required; torch.compile and torch.export replace it"

    def convert(self, function: TensorCall, example: tuple[torch.Tensor, ...]) -> TensorCall:
        traced: TensorCall = torch.jit.trace(function, example, check_trace=False)
        return traced


class Scripted(TorchScriptOrFx):
    """torch.jit.script of the naive function: compiled from source, any shape; deprecated by PyTorch."""

    name = "jit-script"
    advice = "as jit-trace, for functions with control flow"

    def convert(self, function: TensorCall, example: tuple[torch.Tensor, ...]) -> TensorCall:
        scripted: TensorCall = torch.jit.script(function)
        return scripted


class Graph(TorchScriptOrFx):
    """torch.fx.symbolic_trace of the naive function: generated Python calls the same eager operations."""

    name = "fx"
    advice = "never for speed; graph passes start from it"

    def convert(self, function: TensorCall, example: tuple[torch.Tensor, ...]) -> TensorCall:
        graph: TensorCall = torch.fx.symbolic_trace(function)
        return graph


trace, script, fx = Traced(), Scripted(), Graph()
