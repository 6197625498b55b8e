"""Chooses the function for the direction of a case; the built-in backends share it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from softbench.core.case import Case, Direction
from softbench.plugins.backend import Call

TensorCall = Callable[..., torch.Tensor]
"""A function of tensors that returns one tensor."""
Pair = tuple[TensorCall, TensorCall]
"""A forward function `f(x) -> y` and a backward function `f(dy, y) -> dx`."""

EMPTY = "it takes no tensors without elements"
"""The reason for refusing a case with M = 0 or N = 0."""


def by_direction(case: Case, forward: TensorCall, backward: TensorCall) -> Call:
    """The callable of a case, from a differentiable `forward(x) -> y` and a `backward(dy, y) -> dx`. `both` uses autograd.

    All take the operation's further tensors last.
    """
    if case.direction is Direction.FORWARD:
        return forward
    if case.direction is Direction.BACKWARD:
        return backward

    def both(x: torch.Tensor, dy: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = forward(x, *others)
        (dx,) = torch.autograd.grad(y, x, dy)
        return y.detach(), dx

    return both
