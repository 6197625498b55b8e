"""The backend `torch`: the functions of `torch.nn.functional`, eager."""

from __future__ import annotations

import torch

from softbench.backends import losses, scores
from softbench.backends.directions import Pair, TensorCall, by_direction, with_parameters
from softbench.core.case import OPERATION, Case, Direction, parse_op
from softbench.plugins.backend import Call


def _forward(x: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.nn.functional.softmax(x, dim=dim, dtype=dtype)


def _backward(dy: torch.Tensor, y: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """dx as autograd computes it: of a float32 result, only the CUDA kernel gives a narrower gradient, and only float16."""
    fused = dtype is torch.float16 and y.dtype is torch.float32 and y.is_cuda
    dx = torch.ops.aten._softmax_backward_data(dy, y, dim, torch.float16 if fused else y.dtype)
    return dx if dtype is None else dx.to(dtype)


def _log_forward(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return torch.nn.functional.log_softmax(x, dim=dim)


def _log_backward(dy: torch.Tensor, y: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return torch.ops.aten._log_softmax_backward_data(dy, y, dim, y.dtype)


PAIRS: dict[str, Pair] = {"softmax": (_forward, _backward), "log_softmax": (_log_forward, _log_backward)}
"""The forward and backward of each operation over any dimension."""
MAKERS = losses.TORCH | scores.TORCH
"""The makers of the other operations."""


def pair(op: str, dtype: str = "") -> Pair:
    """The forward and backward of a case's `op`; `dtype` is that of dx."""
    return with_parameters(op, PAIRS[parse_op(op)[0]], dtype)


class Functional:
    """torch.nn.functional.softmax, eager; backward is the operator that autograd calls."""

    name = "torch"
    operations = ("softmax(scale,out_dtype)", "log_softmax", *losses.OPERATIONS, *scores.OPERATIONS)
    advice = "if softmax is not the hot spot: no build, float32 arithmetic for 16-bit inputs"

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


backend = Functional()
