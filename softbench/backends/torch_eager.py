"""The backend `torch`: `torch.nn.functional.softmax`, eager."""

from __future__ import annotations

import torch

from softbench.backends.directions import TensorCall, by_direction
from softbench.core.case import Case, Direction
from softbench.plugins.backend import Call


def _forward(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return torch.nn.functional.softmax(x, dim=dim)


def _backward(dy: torch.Tensor, y: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return torch.ops.aten._softmax_backward_data(dy, y, dim, y.dtype)


class Functional:
    """torch.nn.functional.softmax, eager; backward is the operator that autograd calls."""

    name = "torch"
    advice = "if softmax is not the hot spot: no build, float32 arithmetic for 16-bit inputs"

    def available(self) -> str | None:
        return None

    def supports(self, case: Case) -> str | None:
        return None

    def prepare(self, case: Case) -> Call:
        return by_direction(case, _forward, _backward)

    def over_dim(self, direction: Direction) -> TensorCall:
        return _forward if direction is Direction.FORWARD else _backward


backend = Functional()
