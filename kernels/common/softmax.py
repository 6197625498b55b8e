"""`Softmax`: a forward and a backward launcher as one differentiable function, without a PyTorch operator."""

from __future__ import annotations

from typing import Protocol

import torch

from .rows import DTYPES, Launch, as_rows, check_same, from_rows


class Softmax:
    """A differentiable softmax over any dimension, made of two launchers."""

    def __init__(self, forward: Launch, backward: Launch, device_types: tuple[str, ...] = ("cuda",)) -> None:
        self.launch_forward, self.launch_backward, self.device_types = forward, backward, device_types

    def forward_rows(self, x: torch.Tensor) -> torch.Tensor:
        """softmax over the last axis of an (M, N) tensor whose last stride is 1.

        Checks nothing, to save the host time that `forward` takes.
        """
        y = torch.empty_like(x)
        self.launch_forward(x, y)
        return y

    def backward_rows(self, dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """dx of (M, N) tensors whose last stride is 1. Checks nothing, as `forward_rows`."""
        dx = torch.empty_like(y)
        self.launch_backward(dy, y, dx)
        return dx

    def forward(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """softmax(x) over `dim`, in x's dtype, computed in float32, without autograd.

        `x` has any shape and strides. Rows with adjacent elements are read in place, others are copied first.

        Raises:
            TypeError: a dtype other than float32, float16 and bfloat16, or a device that the kernels do not run on.
            IndexError: `dim` is out of range.
        """
        self._check(x)
        if x.numel() == 0:
            return torch.empty_like(x)
        rows = as_rows(x, dim)
        y = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
        self.launch_forward(rows, y)
        return from_rows(y, x, dim)

    def backward(self, dy: torch.Tensor, y: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """dx = y * (dy - sum(dy * y)) over `dim`.

        `dy` and `y` have one shape, dtype and device. Raises as `forward`.
        """
        self._check(y)
        check_same(dy, y)
        if y.numel() == 0:
            return torch.empty_like(y)
        dy_rows, y_rows = as_rows(dy, dim), as_rows(y, dim)
        dx = torch.empty(y_rows.shape, dtype=y.dtype, device=y.device)
        self.launch_backward(dy_rows, y_rows, dx)
        return from_rows(dx, y, dim)

    def __call__(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """softmax(x) over `dim`, differentiable once; otherwise as `forward`."""
        result: torch.Tensor = _Function.apply(x, self, dim)
        return result

    def _check(self, x: torch.Tensor) -> None:
        if x.dtype not in DTYPES:
            raise TypeError(f"softmax of {x.dtype}: the kernels take float32, float16 and bfloat16")
        if x.device.type not in self.device_types:
            raise TypeError(f"softmax on {x.device}: the kernels run on {' and '.join(self.device_types)}")


class _Context(Protocol):
    """The context of autograd, with the attributes that this function adds."""

    saved_tensors: tuple[torch.Tensor, ...]
    softmax: Softmax
    dim: int

    def save_for_backward(self, *tensors: torch.Tensor) -> None: ...


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: torch.Tensor, softmax: Softmax, dim: int) -> torch.Tensor:
        y = softmax.forward(x, dim)
        ctx.save_for_backward(y)
        ctx.softmax, ctx.dim = softmax, dim
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: _Context, dy: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (y,) = ctx.saved_tensors
        return ctx.softmax.backward(dy, y, ctx.dim), None, None
