"""The backend `naive`: five eager operations, one kernel each."""

from __future__ import annotations

import torch

from softbench.backends import losses, scores
from softbench.backends.directions import Pair, TensorCall, by_direction, with_parameters
from softbench.core.case import OPERATION, Case, Direction, parse_op
from softbench.plugins.backend import Call


def naive_forward(x: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Numerically stable softmax over `dim`. It moves about 8MN + 4M elements; the algorithmic count is 2MN.

    The maximum is detached. Softmax does not change under a shift, so the gradient of the maximum is exactly zero. Autograd would
    compute that zero with rounding errors. Source of the five steps: Triton's fused-softmax tutorial.
    """
    x = x if dtype is None else x.to(dtype)
    if x.numel() == 0:
        return torch.empty_like(x)  # no maximum to take
    row_max = x.amax(dim=dim, keepdim=True).detach()
    shifted = x - row_max
    numerator = torch.exp(shifted)
    denominator = numerator.sum(dim=dim, keepdim=True)
    return numerator / denominator


def naive_backward(dy: torch.Tensor, y: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """dx = y * (dy - sum(dy * y)) over `dim`."""
    dot = (dy * y).sum(dim=dim, keepdim=True)
    dx = y * (dy - dot)
    return dx if dtype is None else dx.to(dtype)


def naive_log_forward(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """x - max - log(sum(exp(x - max))) over `dim`, in float32. The maximum is detached as in `naive_forward`.

    In 16 bits each element of exp would be rounded, and their sum is wrong in long rows.
    """
    if x.numel() == 0:
        return torch.empty_like(x)
    wide = x.float()
    shifted = wide - wide.amax(dim=dim, keepdim=True).detach()
    return (shifted - torch.exp(shifted).sum(dim=dim, keepdim=True).log()).to(x.dtype)


def naive_log_backward(dy: torch.Tensor, y: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """dx = dy - exp(y) * sum(dy) over `dim`, in float32."""
    wide = dy.float()
    return (wide - torch.exp(y.float()) * wide.sum(dim=dim, keepdim=True)).to(dy.dtype)


PAIRS: dict[str, Pair] = {"softmax": (naive_forward, naive_backward), "log_softmax": (naive_log_forward, naive_log_backward)}
"""The forward and backward of each operation over any dimension."""
MAKERS = losses.NAIVE | scores.NAIVE
"""The makers of the other operations."""


def pair(op: str, dtype: str = "") -> Pair:
    """The forward and backward of a case's `op`; `dtype` is that of dx."""
    return with_parameters(op, PAIRS[parse_op(op)[0]], dtype)


class Naive:
    """Five eager operations, numerically stable; 16-bit inputs are rounded after each operation."""

    name = "naive"
    operations = ("softmax(scale,out_dtype)", "log_softmax", *losses.OPERATIONS, *scores.OPERATIONS)
    advice = "never for use; the compilers fuse this function"

    def available(self) -> str | None:
        return None

    def supports(self, case: Case) -> str | None:
        return None

    def prepare(self, case: Case) -> Call:
        if make := MAKERS.get(case.operation):
            return make(case, losses.as_it_is)
        return by_direction(case, *pair(case.op, case.dtype))

    def over_dim(self, direction: Direction, op: str = OPERATION) -> TensorCall:
        return pair(op)[direction is not Direction.FORWARD]


backend = Naive()
