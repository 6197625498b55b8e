"""`MaskedSoftmax`: launchers of attention scores as one function, differentiable in x and sink.

Scores that have neither mask, causal order nor sink are rows of softmax with a scale, and so is a gradient without causal order and sink.
The launchers of softmax take those, so they may have any number of columns. A backward gets y, so it needs no mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from .rows import DTYPES, check_same, once
from .softmax import LEAST_SCALE, MOST_SCALE, Softmax

MOST_ROWS = 2**31 - 1
MASK_DTYPES = (torch.bool, *DTYPES)
Forward = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor, torch.Tensor | None, float, bool], None]
"""Writes y of contiguous x, and the share of the sink if there is a tensor for it: x, mask, sink, y, share, scale, causal.

A mask is a bias or a bool in the shape of x, whose last stride is 1; other strides may be 0.
"""
Backward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None, float, bool], None]
"""Writes dx of contiguous dy and y, and dsink of each row if the share of the sink is there: dy, y, share, dx, dsink, scale, causal."""


class MaskedSoftmax:
    """softmax(scale x + bias) over the last axis of scores (B, H, S, N), made of launchers."""

    def __init__(self, softmax: Softmax, forward: Forward, backward: Backward, most_columns: int) -> None:
        """`softmax` takes rows without mask, order and sink; the others have at most `most_columns` columns."""
        self.softmax, self.launch_forward, self.launch_backward, self.most_columns = softmax, forward, backward, most_columns

    def forward(
        self, x: torch.Tensor, *, scale: float = 1.0, mask: torch.Tensor | None = None, causal: bool = False,
        sink: torch.Tensor | None = None, shares: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        """y, and with `shares` the share of the sink, float32 of shape (B, H, S). Arguments as of a call, without autograd.

        Raises as a call.
        """
        self._check(x, scale, mask, sink)
        x = x.contiguous()
        if mask is None and sink is None and not causal:
            rows = x.view(-1, x.shape[3]) if x.numel() else None
            return (torch.empty_like(x) if rows is None else self.softmax.forward_rows(rows, scale=float(scale)).view(x.shape)), None
        self._check_columns(x)
        if mask is not None:
            mask = _broadcast(mask, x)
            mask = mask if mask.stride(3) == 1 or x.shape[3] == 1 else mask.contiguous()
        y = torch.empty_like(x)
        share = x.new_empty(x.shape[:3], dtype=torch.float32) if shares and sink is not None else None
        if x.numel():
            self.launch_forward(x, mask, None if sink is None else sink.contiguous(), y, share, float(scale), causal)
        return y, share

    def backward(
        self, dy: torch.Tensor, y: torch.Tensor, share: torch.Tensor | None = None, *, scale: float = 1.0, causal: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """dx, and dsink of each row if the share of the sink is given: float32 of shape (B, H, S). Raises as a call."""
        self._check(y, scale, None, None)
        check_same(dy, y)
        if share is not None and (share.shape != y.shape[:3] or share.dtype != torch.float32 or share.device != y.device):
            got = f"{tuple(share.shape)} {share.dtype} on {share.device}"
            raise TypeError(f"share is {got}; it must be {tuple(y.shape[:3])} float32 on {y.device}")
        share = None if share is None else share.contiguous()
        dy, y = dy.contiguous(), y.contiguous()
        if share is None and not causal:
            N = y.shape[3]
            dx = self.softmax.backward_rows(dy.view(-1, N), y.view(-1, N), scale=float(scale)) if y.numel() else torch.empty_like(y)
            return dx.view(y.shape), None
        self._check_columns(y)
        dx, dsink = torch.empty_like(y), None if share is None else torch.empty_like(share)
        if y.numel():
            self.launch_backward(dy, y, share, dx, dsink, float(scale), causal)
        return dx, dsink

    def __call__(
        self, x: torch.Tensor, *, scale: float = 1.0, mask: torch.Tensor | None = None, causal: bool = False,
        sink: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """softmax(scale x + bias) over the last axis of scores, differentiable once in x and sink.

        Args:
            x: (B, H, S, N) of float32, float16 or bfloat16. N is at most `most_columns` with a mask, causal order or sink.
            scale: a positive finite number.
            mask: a bias that is added, or a bool that is True where an element takes part; any shape that broadcasts to that of x.
            causal: query s sees its first s + 1 + max(0, N - S) keys.
            sink: (H,), a logit of each head that joins the sum and has no result.

        Raises:
            TypeError: another dtype or device.
            ValueError: another shape or scale, or a row that is too long.
            NotImplementedError: mask or scale require a gradient, which they do not get.
        """
        check_no_gradient(mask=mask, scale=scale)
        y: torch.Tensor = _Function.apply(x, self, scale, mask, causal, sink)
        return y

    def _check(self, x: torch.Tensor, scale: float, mask: torch.Tensor | None, sink: torch.Tensor | None) -> None:
        if x.dtype not in DTYPES or x.device.type not in self.softmax.device_types:
            on = " and ".join(self.softmax.device_types)
            raise TypeError(f"masked_softmax takes float32, float16 and bfloat16 on {on}; this is {x.dtype} on {x.device}")
        if x.dim() != 4 or (x.numel() > MOST_ROWS and x.numel() // x.shape[3] > MOST_ROWS):
            raise ValueError(f"masked_softmax takes (B, H, S, N) with at most {MOST_ROWS} rows; this is {tuple(x.shape)}")
        if not LEAST_SCALE <= scale <= MOST_SCALE:
            raise ValueError(f"scale is {scale}; it must be positive and finite in float32")
        if mask is not None and (mask.dtype not in MASK_DTYPES or mask.device != x.device):
            raise TypeError(f"mask is {mask.dtype} on {mask.device}; give a bool, or a bias of float32, float16 or bfloat16, on {x.device}")
        if sink is not None and (sink.shape != x.shape[1:2] or not sink.is_floating_point() or sink.device != x.device):
            raise ValueError(
                f"sink is {sink.dtype} of shape {tuple(sink.shape)} on {sink.device}; give a number for each of {x.shape[1]} heads"
            )

    def _check_columns(self, x: torch.Tensor) -> None:
        if x.shape[3] > self.most_columns:
            raise ValueError(f"masked_softmax has rows of at most {self.most_columns} columns; this is {tuple(x.shape)}")


def check_no_gradient(**given: object) -> None:
    """Raises NotImplementedError if a mask, or a scale in a tensor, requires a gradient, which it does not get."""
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError(no_gradient(name))


def no_gradient(name: str) -> str:
    """What the error says for an argument."""
    return f"masked_softmax gives the {name} no gradient; detach it, or use torch.softmax(scale * scores + mask, -1)"


def _broadcast(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    try:
        return mask.expand_as(x)  # `expand` with a shape takes a microsecond longer
    except RuntimeError:
        raise ValueError(f"mask is {tuple(mask.shape)}; it must broadcast to the shape of x, {tuple(x.shape)}") from None


class _Context(Protocol):
    """The context of autograd, with the attributes that this module adds."""

    saved_tensors: tuple[torch.Tensor, ...]
    function: MaskedSoftmax
    scale: float
    causal: bool
    of_sink: torch.dtype | None

    def save_for_backward(self, *tensors: torch.Tensor) -> None: ...


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, x: torch.Tensor, function: MaskedSoftmax, scale: float, mask: torch.Tensor | None, causal: bool,
        sink: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        y, share = function.forward(x, scale=scale, mask=mask, causal=causal, sink=sink, shares=True)
        ctx.save_for_backward(y, *(() if share is None else (share,)))
        ctx.function, ctx.scale, ctx.causal, ctx.of_sink = function, scale, causal, None if sink is None else sink.dtype
        return y

    @staticmethod
    def backward(ctx: _Context, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        y, *share = ctx.saved_tensors
        with torch.no_grad():
            dx, dsink = ctx.function.backward(dy, y, *share, scale=ctx.scale, causal=ctx.causal)
            of_sink = None if dsink is None else dsink.sum(dim=(0, 2)).to(ctx.of_sink)
        return once(dx, y, dy), None, None, None, None, None if of_sink is None else once(of_sink, y, dy)
