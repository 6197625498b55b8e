"""How the built-in backends make the call of a case: by its direction, its parameters, and with a gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import torch

from softbench.core.case import OPERATION, Case, Direction, parse_op
from softbench.ops.dtypes import DTYPES
from softbench.ops.registry import operation
from softbench.plugins.backend import Call

TensorCall = Callable[..., torch.Tensor]
"""A function of tensors that returns one tensor."""
Pair = tuple[TensorCall, TensorCall]
"""A forward function `f(x) -> y` and a backward function `f(dy, y) -> dx`."""
Tensors = tuple[torch.Tensor, ...]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What is done to the function that computes: `torch.compile`, or `as_it_is`."""
Maker = Callable[[Case, Wrap], Call]
"""Makes the call of a case from eager functions of PyTorch."""

EMPTY = "it takes no tensors without elements"
"""The reason for refusing a case with M = 0 or N = 0."""


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """The eager function."""
    return function


def parameters(case: Case) -> dict[str, Any]:
    """The values of all parameters of a case's operation."""
    return dict(operation(case.op).parameter_values)


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


def by_autograd(loss_of: Callable[..., torch.Tensor], *given: torch.Tensor) -> Tensors:
    """The loss and its gradients, as a training step takes them; the last input is the target."""
    leaves = [tensor.detach().requires_grad_() for tensor in given[:-1]]
    loss = loss_of(*leaves, given[-1])
    return loss.detach().float(), *torch.autograd.grad(loss, leaves, torch.ones_like(loss))


class Eager:
    """Base of the backends whose functions are eager PyTorch."""

    name: str
    operations: tuple[str, ...]
    pairs: ClassVar[Mapping[str, Pair]]
    """Forward and backward over any dimension, of the operations that have both."""
    makers: ClassVar[Mapping[str, Maker]]
    """The makers of the other operations."""

    def available(self) -> str | None:
        return None

    def supports(self, case: Case) -> str | None:
        return None

    def pair(self, op: str, dtype: str = "") -> Pair:
        """The forward and backward of a case's `op`; `dtype` is that of dx."""
        return with_parameters(op, self.pairs[parse_op(op)[0]], dtype)

    def prepare(self, case: Case) -> Call:
        if make := self.makers.get(case.operation):
            return make(case, as_it_is)
        return by_direction(case, *self.pair(case.op, case.dtype))

    def over_dim(self, direction: Direction, op: str = OPERATION) -> Call:
        return self.along(direction, op, as_it_is)

    def along(self, direction: Direction, op: str, wrap: Wrap) -> Call:
        """A function whose last argument is the dimension. The makers of operations with `any_dim` give such functions."""
        if make := self.makers.get(parse_op(op)[0]):
            return make(Case(1, 1, "fp32", direction, "cpu", op), wrap)
        return wrap(self.pair(op)[direction is not Direction.FORWARD])


def differentiable(forward: TensorCall, backward: TensorCall) -> TensorCall:
    """`f(x) -> y` with a gradient, from `forward(x) -> y` and `backward(dy, y) -> dx`. It can be differentiated once."""

    def softmax(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _Softmax.apply(x, forward, backward)
        return y

    return softmax


class _Context(Protocol):
    """The context of autograd, with the attribute that this function adds."""

    saved_tensors: tuple[torch.Tensor, ...]
    gradient: TensorCall

    def save_for_backward(self, *tensors: torch.Tensor) -> None: ...


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: torch.Tensor, forward: TensorCall, backward: TensorCall) -> torch.Tensor:
        y = forward(x)
        ctx.save_for_backward(y)
        ctx.gradient = backward
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: _Context, dy: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.gradient(dy, *ctx.saved_tensors), None, None
