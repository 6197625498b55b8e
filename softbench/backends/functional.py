"""What torch itself offers: `torch.nn.functional.softmax`, eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softbench.backends import by_direction
from softbench.model import Case


def _forward(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softmax(x, dim=-1)


def _backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


class Functional:
    """torch.nn.functional.softmax, eager; backward is the operator that its autograd calls."""

    name = "torch"

    def available(self) -> str | None:
        return None

    def supports(self, case: Case) -> str | None:
        return None

    def prepare(self, case: Case) -> Callable[..., Any]:
        return by_direction(case, _forward, _backward)


backend = Functional()
