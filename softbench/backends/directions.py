"""Chooses the function for the direction of a case; the built-in backends share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from softbench.core.case import Case, Direction

EMPTY = "it takes no tensors without elements"
"""The reason for refusing a case with M = 0 or N = 0."""


def by_direction(case: Case, forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """The callable of a case, from a differentiable `forward(x) -> y` and a `backward(dy, y) -> dx`. `both` uses autograd."""
    if case.direction is Direction.FORWARD:
        return forward
    if case.direction is Direction.BACKWARD:
        return backward
    import torch

    def both(x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = forward(x)
        (dx,) = torch.autograd.grad(y, x, dy)
        return y.detach(), dx

    return both
