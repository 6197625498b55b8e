"""Makes one differentiable function from a forward and a backward function."""

from __future__ import annotations

from typing import Protocol

import torch

from softbench.backends.directions import TensorCall


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
