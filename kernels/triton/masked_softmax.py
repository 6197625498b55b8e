"""masked_softmax(x): softmax of attention scores with scale, bias or mask, causal order and sink, differentiable in x and sink.

`scores.py` has the kernels. What needs neither mask, order nor sink is softmax with a scale, so `dispatch.py` launches it: any number of
columns, rows of any alignment. A backward gets y, so it needs no mask.
"""

from __future__ import annotations

from typing import Protocol

import torch

from .dispatch import softmax
from .generic import INTERPRETED
from .scores import MAX_COLUMNS, launch_backward, launch_forward

MOST_ROWS = 2**31 - 1


def forward(
    x: torch.Tensor, *, scale: float = 1.0, mask: torch.Tensor | None = None, causal: bool = False, sink: torch.Tensor | None = None,
    shares: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """y, and with `shares` the share of the sink, float32 of shape (B, H, S). Arguments as in `masked_softmax`, without autograd.

    Without mask, order and sink it is softmax, which `dispatch.py` launches. Raises as `masked_softmax`.
    """
    _check(x, mask, sink)
    x = x.contiguous()
    if mask is None and sink is None and not causal:
        return (softmax.forward_rows(x.view(-1, x.shape[3]), scale=float(scale)).view(x.shape) if x.numel() else torch.empty_like(x)), None
    if x.shape[3] > MAX_COLUMNS:
        raise ValueError(f"masked_softmax has rows of at most {MAX_COLUMNS} columns; this is {tuple(x.shape)}")
    if mask is not None:
        mask = mask.expand(x.shape)
        mask = mask if mask.stride(3) == 1 or x.shape[3] == 1 else mask.contiguous()
    y = torch.empty_like(x)
    share = x.new_empty(x.shape[:3], dtype=torch.float32) if shares and sink is not None else None
    if x.numel():
        launch_forward(x, mask, None if sink is None else sink.contiguous(), y, share, float(scale), causal)
    return y, share


def backward(
    dy: torch.Tensor, y: torch.Tensor, share: torch.Tensor | None = None, *, scale: float = 1.0, causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """dx, and dsink of each row if the share of the sink is given: float32 of shape (B, H, S). Raises as `masked_softmax`."""
    _check(y, None, None)
    dy, y = dy.contiguous(), y.contiguous()
    if share is None and not causal:
        N = y.shape[3]
        dx = softmax.backward_rows(dy.view(-1, N), y.view(-1, N), scale=float(scale)) if y.numel() else torch.empty_like(y)
        return dx.view(y.shape), None
    dx, dsink = torch.empty_like(y), None if share is None else torch.empty_like(share)
    if y.numel():
        launch_backward(dy, y, share, dx, dsink, float(scale), causal)
    return dx, dsink


def _check(x: torch.Tensor, mask: torch.Tensor | None, sink: torch.Tensor | None) -> None:
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16) or not (x.is_cuda or INTERPRETED):
        raise TypeError(f"masked_softmax takes float32, float16 and bfloat16 on a GPU; this is {x.dtype} on {x.device}")
    if x.dim() != 4 or x.numel() // max(1, x.shape[-1]) > MOST_ROWS:
        raise ValueError(f"masked_softmax takes (B, H, S, N) with at most {MOST_ROWS} rows; this is {tuple(x.shape)}")
    if mask is not None and (mask.dtype not in (torch.bool, torch.float32, torch.float16, torch.bfloat16) or mask.device != x.device):
        raise TypeError(f"mask is {mask.dtype} on {mask.device}; give a bool, or a bias of float32, float16 or bfloat16, on {x.device}")
    if sink is not None and (sink.shape != x.shape[1:2] or not sink.is_floating_point() or sink.device != x.device):
        raise ValueError(
            f"sink is {sink.dtype} of shape {tuple(sink.shape)} on {sink.device}; give a number for each of {x.shape[1]} heads"
        )


class _Context(Protocol):
    """The context of autograd, with the attributes that this module adds."""

    saved_tensors: tuple[torch.Tensor, ...]
    scale: float
    causal: bool
    of_sink: torch.dtype | None

    def save_for_backward(self, *tensors: torch.Tensor) -> None: ...


class _MaskedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, x: torch.Tensor, scale: float, mask: torch.Tensor | None, causal: bool, sink: torch.Tensor | None
    ) -> torch.Tensor:
        y, share = forward(x, scale=scale, mask=mask, causal=causal, sink=sink, shares=True)
        ctx.save_for_backward(y, *(() if share is None else (share,)))
        ctx.scale, ctx.causal, ctx.of_sink = scale, causal, None if sink is None else sink.dtype
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: _Context, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        dx, dsink = backward(dy, *ctx.saved_tensors, scale=ctx.scale, causal=ctx.causal)
        return dx, None, None, None, None if dsink is None else dsink.sum(dim=(0, 2)).to(ctx.of_sink)


def masked_softmax(
    x: torch.Tensor, *, scale: float = 1.0, mask: torch.Tensor | None = None, causal: bool = False, sink: torch.Tensor | None = None
) -> torch.Tensor:
    """softmax(scale x + bias) over the last axis of scores, differentiable in x and sink.

    Args:
        x: (B, H, S, N) of float32, float16 or bfloat16. N is at most 16384 with a mask, causal order or sink.
        scale: a positive number.
        mask: a bias that is added, or a bool that is True where an element takes part; any shape that broadcasts to that of x.
        causal: query s sees its first s + 1 + max(0, N - S) keys.
        sink: (H,), a logit of each head that joins the sum and has no result.

    Raises:
        TypeError: another dtype or device.
        ValueError: another shape, or a row that is too long.
        NotImplementedError: the mask requires a gradient, which it does not get.
    """
    if mask is not None and mask.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError("masked_softmax gives the mask no gradient; detach it, or compute softmax(scale * x + mask) with torch")
    y: torch.Tensor = _MaskedSoftmax.apply(x, scale, mask, causal, sink)
    return y
