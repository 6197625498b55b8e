"""Chooses the function for the direction of a case; the built-in backends share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from softbench.core.case import Case, Direction

# A backend may also have
#   compiles = True                            its first call compiles: builds are told cold from cached ("always": none is cached)
#   interpreted() -> (reason, rows) | None     here it is only checked, on so many rows, and never timed
#   summary = "..."                            in a line, where the docstring's first will not do
#   advice = "..."                             when to pick it: `softbench list --long` shows that
#   extra = True                               `--backends all` leaves it out; it is taken by name, or by a pattern such as 'compile:*'
#   reuses_output = True                       its next call overwrites what a call returned (CUDA graphs): shown, and no fault
#   generated(case, launched) -> (pieces, spills)   code beside Triton's and Inductor's, for `softbench inspect` (`inspection`)
#   sources() -> files                         beside its own module: a resumed run measures it anew when one changes
#   over_dim(direction) -> f(x, dim) or f(dy, y, dim)   on any shape and strides: `softbench check` tries those too


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
