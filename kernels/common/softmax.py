"""`Softmax`: a forward and a backward launcher as one differentiable function, without a PyTorch operator."""

from __future__ import annotations

import math
from typing import Protocol

import torch

from .rows import DTYPES, Launch, LaunchColumns, Scale, apply_to_rows, canonical_dim, check_same, launch_scaled, once

NARROW = (torch.float16, torch.bfloat16)
LEAST_SCALE, MOST_SCALE = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max


class Softmax:
    """A differentiable function of rows, such as softmax or log_softmax, made of two launchers.

    Its functions share two parameters:

    - `dtype`: of the result; None for the dtype of the input. A forward of 16 bits may give float32. Its gradient in 16 bits comes from
      float32 `dy` and `y`.
    - `scale`: z = x * scale is computed in place of x. It is a positive finite number, or a float32 tensor of shape (M,), one number a row.
      With another `dim` than the last, the rows are counted after `dim` has moved last. It has no gradient. The numbers of a tensor are not
      checked. A NaN makes its row NaN. With another number that is not positive and finite, the result of its row is undefined.
    """

    def __init__(
        self,
        forward: Launch,
        backward: Launch,
        device_types: tuple[str, ...] = ("cuda",),
        name: str = "softmax",
        *,
        scales: bool = True,
        columns: LaunchColumns | None = None,
    ) -> None:
        """`name` is the function's name in error messages. The launchers get `scale` as their last argument, unless it is None.

        `scales`: whether the launchers have that argument. `columns`: the launcher along other dimensions than the last; None: by copies.
        """
        self.launch_forward, self.launch_backward, self.device_types, self.name = forward, backward, device_types, name
        self.scales, self.columns = scales, columns

    def forward_rows(self, x: torch.Tensor, *, dtype: torch.dtype | None = None, scale: Scale | None = None) -> torch.Tensor:
        """The function over the last axis of an (M, N) tensor whose last stride is 1.

        Checks nothing, to save the host time that `forward` takes. A tensor `scale` is contiguous.
        """
        y = torch.empty_like(x, dtype=dtype)
        launch_scaled(self.launch_forward, (x, y), scale)
        return y

    def backward_rows(
        self, dy: torch.Tensor, y: torch.Tensor, *, dtype: torch.dtype | None = None, scale: Scale | None = None
    ) -> torch.Tensor:
        """dx of (M, N) tensors whose last stride is 1. Checks nothing, as `forward_rows`."""
        dx = torch.empty_like(y, dtype=dtype)
        launch_scaled(self.launch_backward, (dy, y, dx), scale)
        return dx

    def forward(self, x: torch.Tensor, dim: int = -1, *, dtype: torch.dtype | None = None, scale: Scale | None = None) -> torch.Tensor:
        """The function of `x` over `dim`, computed in float32, without autograd.

        `x` has any shape and strides. Rows with adjacent elements are read in place, and columns if there is a launcher for them.
        Others are copied first. The result is contiguous.

        Raises:
            TypeError: a dtype other than float32, float16 and bfloat16, a dtype that the result cannot have, a device that the kernels do
                not run on, a `scale` where the kernels have none, or a tensor `scale` of another dtype, shape or device.
            ValueError: `scale` is a number that is not positive and finite in float32.
            IndexError: `dim` is out of range.
        """
        self._check(x)
        if dtype is not None and dtype != x.dtype and not (dtype is torch.float32 and x.dtype in NARROW):
            raise TypeError(f"{self.name} of {x.dtype} as {dtype}: the result has the input's dtype, or is float32 for 16-bit inputs")
        return self._apply(self.launch_forward, (x,), dim, dtype, scale)

    def backward(
        self, dy: torch.Tensor, y: torch.Tensor, dim: int = -1, *, dtype: torch.dtype | None = None, scale: Scale | None = None
    ) -> torch.Tensor:
        """dx over `dim`: of softmax scale * y * (dy - sum(dy * y)), of log_softmax scale * (dy - exp(y) * sum(dy)).

        `dy` and `y` have one shape, dtype and device. `dtype` is of dx. Raises as `forward`.
        """
        self._check(y)
        check_same(dy, y)
        if dtype is not None and dtype != y.dtype and not (y.dtype is torch.float32 and dtype in NARROW):
            raise TypeError(f"dx as {dtype} of y as {y.dtype}: dx has y's dtype, or 16 bits where that is float32")
        return self._apply(self.launch_backward, (dy, y), dim, dtype, scale)

    def __call__(self, x: torch.Tensor, dim: int = -1, *, dtype: torch.dtype | None = None, scale: Scale | None = None) -> torch.Tensor:
        """The function of `x` over `dim`, differentiable once with respect to `x`; otherwise as `forward`.

        It also raises TypeError if `scale` requires a gradient, except under torch.no_grad.
        """
        if isinstance(scale, torch.Tensor) and scale.requires_grad and torch.is_grad_enabled():
            raise TypeError("scale requires a gradient; it has none here, so pass scale.detach()")
        result: torch.Tensor = _Function.apply(x, scale, self, dim, dtype)
        return result

    def _check(self, x: torch.Tensor) -> None:
        if x.dtype not in DTYPES:
            raise TypeError(f"{self.name} of {x.dtype}: the kernels take float32, float16 and bfloat16")
        if x.device.type not in self.device_types:
            raise TypeError(f"{self.name} on {x.device}: the kernels run on {' and '.join(self.device_types)}")

    def _apply(
        self, launch: Launch, inputs: tuple[torch.Tensor, ...], dim: int, dtype: torch.dtype | None, scale: Scale | None
    ) -> torch.Tensor:
        axis = canonical_dim(dim, inputs[-1].dim())
        columns = None if isinstance(scale, torch.Tensor) else self.columns
        return apply_to_rows(launch, inputs, axis, dtype, columns, self._checked(scale, inputs[-1], axis))

    def _checked(self, scale: Scale | None, x: torch.Tensor, axis: int) -> Scale | None:
        """`scale` as the launchers take it."""
        if scale is None:
            return None
        if not self.scales:
            raise TypeError(f"{self.name} takes no scale here")
        if isinstance(scale, torch.Tensor):
            rows = math.prod(size for i, size in enumerate(x.shape) if i != axis)
            if scale.dtype is not torch.float32 or scale.shape != (rows,) or scale.device != x.device:
                got = f"{tuple(scale.shape)} {scale.dtype} on {scale.device}"
                raise TypeError(f"scale is {got}; it must be ({rows},) float32 on {x.device}, one number a row")
            return scale.contiguous()
        if not LEAST_SCALE <= scale <= MOST_SCALE:
            raise ValueError(f"scale is {scale}; it must be positive and finite in float32")
        return float(scale)


class _Context(Protocol):
    """The context of autograd, with the attributes that this function adds."""

    saved_tensors: tuple[torch.Tensor, torch.Tensor | None]
    softmax: Softmax
    dim: int
    dtype: torch.dtype
    number: float | None

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None: ...


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: torch.Tensor, scale: Scale | None, softmax: Softmax, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
        y = softmax.forward(x, dim, dtype=dtype, scale=scale)
        by_row, number = (scale, None) if isinstance(scale, torch.Tensor) else (None, scale)
        ctx.save_for_backward(y, by_row)
        ctx.softmax, ctx.dim, ctx.dtype, ctx.number = softmax, dim, x.dtype, number
        return y

    @staticmethod
    def backward(ctx: _Context, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        y, by_row = ctx.saved_tensors
        with torch.no_grad():
            dx = ctx.softmax.backward(dy, y, ctx.dim, dtype=ctx.dtype, scale=ctx.number if by_row is None else by_row)
        return once(dx, y, dy), None, None, None, None
