"""From tensors of any shape, strides and `dim` to the rows that kernels work on, and back; and to autograd.

Nothing here needs Triton: the CUDA kernels share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

Launch = Callable[..., None]
"""`forward(x, y)` or `backward(dy, y, dx)` on (M, N) tensors whose last stride is 1; the last argument is written."""


def as_rows(x: torch.Tensor, dim: int) -> torch.Tensor:
    """`x` as (M, N) with `dim` last and stride 1 there: a view where the strides allow it, else a copy."""
    if x.dim() == 0:
        return x.reshape(1, 1)
    moved = x.movedim(dim, -1)
    rows = moved.reshape(-1, moved.shape[-1])  # a view where the leading dimensions collapse
    return rows if rows.stride(-1) == 1 or rows.shape[-1] == 1 else rows.contiguous()


def from_rows(rows: torch.Tensor, like: torch.Tensor, dim: int) -> torch.Tensor:
    """The inverse of `as_rows` for a fresh (M, N) result: in the shape of `like`."""
    if like.dim() == 0:
        return rows.reshape(())
    return rows.view(like.movedim(dim, -1).shape).movedim(-1, dim)


def over_rows(launch: Launch, inputs: tuple[torch.Tensor, ...], axis: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """What `launch` makes of the inputs' rows along `axis`: fresh, contiguous, of the shape they share, of their dtype or `dtype`."""
    like = inputs[-1]
    if like.numel() == 0:
        return like.new_empty(like.shape, dtype=dtype)
    given = [tensor if _is_rows(tensor, axis) else as_rows(tensor, axis) for tensor in inputs]
    out = given[-1].new_empty(given[-1].shape, dtype=dtype)
    launch(*given, out)
    if given[-1] is like:
        return out
    if axis == max(1, like.dim()) - 1:
        return out.view(like.shape)
    result = from_rows(out, like, axis)
    # A tensor of which all but one dimension are 1 is contiguous in any order of them, but not with contiguous strides.
    return out.view(like.shape) if result.is_contiguous() else result.clone(memory_format=torch.contiguous_format)


def _is_rows(x: torch.Tensor, axis: int) -> bool:
    """True for what `as_rows` would only look at, which is most of what comes."""
    return x.dim() == 2 and axis == 1 and x.stride(1) == 1


def from_0(dim: int, dimensions: int) -> int:
    """`dim` counted from 0 up, of a tensor of so many dimensions.

    Raises:
        IndexError: there is no such dimension.
    """
    most = max(1, dimensions)  # a scalar counts as a row of one, as torch has it
    if not -most <= dim < most:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-most}, {most - 1}], but got {dim})")
    return dim % most


def agree(dy: torch.Tensor, y: torch.Tensor) -> None:
    """Raises TypeError unless the two are of one shape, dtype and device."""
    if dy.shape != y.shape or dy.dtype != y.dtype or dy.device != y.device:
        raise TypeError(
            f"dy is {tuple(dy.shape)} {dy.dtype} on {dy.device}, y is {tuple(y.shape)} {y.dtype} on {y.device}; they must agree"
        )


class Softmax:
    """A differentiable softmax over any dimension, made of two launchers."""

    def __init__(self, forward: Launch, backward: Launch, device_types: tuple[str, ...] = ("cuda",)) -> None:
        self.launch_forward, self.launch_backward, self.device_types = forward, backward, device_types

    def forward_rows(self, x: torch.Tensor) -> torch.Tensor:
        """softmax over the last axis of a (M, N) tensor with adjacent elements, unchecked: `forward` without its host time."""
        y = torch.empty_like(x)
        self.launch_forward(x, y)
        return y

    def backward_rows(self, dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """dx of such rows, likewise."""
        dx = torch.empty_like(y)
        self.launch_backward(dy, y, dx)
        return dx

    def forward(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """softmax(x) over `dim`, in x's dtype, computed in float32; no autograd.

        x has any shape and strides; rows whose elements are adjacent are read in place, others are copied first.

        Raises:
            TypeError: a dtype other than float32, float16 and bfloat16, or a device the kernels do not run on.
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
        """dx = y * (dy - sum(dy * y)) over `dim`; `dy` and `y` are of one shape, dtype and device. Raises as `forward`."""
        self._check(y)
        agree(dy, y)
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


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, softmax: Softmax, dim: int) -> torch.Tensor:
        y = softmax.forward(x, dim)
        ctx.save_for_backward(y)
        ctx.softmax, ctx.dim = softmax, dim
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (y,) = ctx.saved_tensors
        return ctx.softmax.backward(dy, y, ctx.dim), None, None
