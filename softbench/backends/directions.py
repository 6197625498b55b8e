"""Chooses the function for the direction of a case; the built-in backends share it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from softbench.core.case import Case, Direction, parse_op
from softbench.ops.dtypes import DTYPES
from softbench.plugins.backend import Call

TensorCall = Callable[..., torch.Tensor]
"""A function of tensors that returns one tensor."""
Pair = tuple[TensorCall, TensorCall]
"""A forward function `f(x) -> y` and a backward function `f(dy, y) -> dx`."""

EMPTY = "it takes no tensors without elements"
"""The reason for refusing a case with M = 0 or N = 0."""


def with_parameters(op: str, pair: Pair, dtype: str = "") -> Pair:
    """A pair of softmax with the parameters of a case's `op`, as users write them in eager PyTorch.

    `pair` takes `(z, dim, dtype)` and `(dy, y, dim, dtype)`. A product of 16 bits and a number is rounded to 16 bits; one with the float32
    scales of rows is not. `dtype` is that of dx, which has y's without it. With scales of rows the functions take no `dim`.
    """
    given = parse_op(op)[1]
    forward, backward = pair
    rows, wide = given.get("scale") == "row", torch.float32 if "out_dtype" in given else None
    number = None if rows or "scale" not in given else float(given["scale"])
    of_dx = DTYPES[dtype] if dtype else None

    def forward_of_rows(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return forward(x * scale[:, None], -1, wide).to(wide or x.dtype)

    def backward_of_rows(dy: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (backward(dy, y, -1) * scale[:, None]).to(of_dx or y.dtype)

    def scaled_forward(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return forward(x if number is None else x * number, dim, wide)

    def scaled_backward(dy: torch.Tensor, y: torch.Tensor, dim: int = -1) -> torch.Tensor:
        dz = backward(dy, y, dim, of_dx)
        return dz if number is None else dz * number

    if not given:
        return pair
    return (forward_of_rows, backward_of_rows) if rows else (scaled_forward, scaled_backward)


def by_direction(case: Case, forward: TensorCall, backward: TensorCall) -> Call:
    """The callable of a case, from a differentiable `forward(x) -> y` and a `backward(dy, y) -> dx`. `both` uses autograd.

    Both functions also get the scale of each row, if the case has it.
    """
    if case.direction is Direction.FORWARD:
        return forward
    if case.direction is Direction.BACKWARD:
        return backward

    def both(x: torch.Tensor, dy: torch.Tensor, *scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = forward(x, *scale)
        (dx,) = torch.autograd.grad(y, x, dy)
        return y.detach(), dx

    return both
