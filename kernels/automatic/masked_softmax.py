"""`masked_softmax` of attention scores by the fastest kernels that work here, as a differentiable PyTorch operator.

`choice.py` has the rule by which the scores choose. Some calls take other kernels than the rule says:

- 16-bit scores with a bias of another dtype take Triton's kernels in place of CUDA's, because only Triton's read two dtypes.
- torch computes rows of more than `most_columns` columns with a mask, causal order or sink.
- torch computes if the bias is float64, or if the scale is not positive and finite in float32.

torch computes in float64 if scores or bias are float64, else in float32.

The operators are `softbench::masked_softmax` and `softbench::masked_softmax_backward`, of scores (B, H, S, N). torch.compile does not see
their kernels. The backward gets the result, so neither the scores nor the mask are kept. Where the extension in C++
is built, it has their autograd and launches the CUDA kernels (`softbench.kernels.common.extension`).
"""

import importlib
import math
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from ..common import extension, sharding
from ..common.masked_softmax import LEAST_SCALE, MASK_DTYPES, MOST_ROWS, MOST_SCALE, MaskedSoftmax, check_no_gradient, no_gradient
from ..common.registration import register_sharding
from ..common.rows import DTYPES, check_no_tangent
from .choice import Calls, choice

NAME = "masked_softmax"
TWO_DTYPES = "the CUDA kernels take a bias of the scores' dtype"


def masked_softmax(
    scores: Tensor, *, scale: float = 1.0, mask: Tensor | None = None, causal: bool = False, sink: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """softmax(scale * scores + mask) over the keys of attention scores (B, H, S, N): batch, heads, queries and keys.

    - mask: a bias that is added after the scale, or a bool that is True where a key takes part. It has any shape that broadcasts to that of
      the scores.
    - causal: query s sees its first s + 1 + max(0, N - S) keys, so the last query sees all keys if there are as many.
    - sink: (H,), a logit of each head that joins the sum and has no result, as in gpt-oss. It has no scale.
    - Rows in which no key takes part are NaN as in torch, or 0 with a sink. What a bool or the causal order takes out is not read.
    - Result: contiguous, with the scores' dtype, or `dtype`, to which they are converted first. Under autocast of CUDA, scores of 16 bits
      give float32 as `torch.softmax` does, unless `dtype` is given.
    - Gradients: once, with respect to scores and sink. Mask and scale get none. Kept for them are the result and, with a sink, a number for
      each row. The gradient of a row of NaN is NaN, also under a bool, where torch's `masked_fill` has 0. Beyond what a causal query sees,
      it may be NaN or 0.
    - torch.compile(fullgraph=True), CUDA graphs and any strides are supported. Scores that are not contiguous are copied.

    Raises:
        ValueError: a shape does not fit.
        TypeError: scores, mask or sink have a dtype that does not fit, or lie on two devices.
        NotImplementedError: mask or scale require a gradient, or an argument has a tangent of forward mode.
    """
    if dtype is None and scores.is_cuda and scores.dtype in DTYPES[1:] and torch.is_autocast_enabled("cuda"):
        dtype = torch.float32
    if dtype is None and not torch.compiler.is_compiling():
        y = extension.entries.masked_softmax(scores, mask, sink, scale, causal)
        if y is not None:
            fast: Tensor = y
            return fast
    x = scores if dtype is None else scores.to(dtype)
    _check(x, mask, sink)
    check_no_gradient(mask=mask, scale=scale)
    check_no_tangent(NAME, x, mask, sink)
    result: Tensor = _masked_softmax(x, mask, sink, scale, causal)[0]
    return result


def _check(x: Tensor, mask: Tensor | None, sink: Tensor | None) -> None:
    if x.dim() != 4:
        raise ValueError(f"the scores are {tuple(x.shape)}; they must be (B, H, S, N)")
    if not x.is_floating_point():
        raise TypeError(f"the scores are {x.dtype}; they must be of a floating-point dtype")
    if mask is not None:
        if mask.dtype not in (*MASK_DTYPES, torch.float64) or mask.device != x.device:
            raise TypeError(f"mask is {mask.dtype} on {mask.device}; give a bool, or a bias of a floating-point dtype, on {x.device}")
        if mask.dim() > 4 or any(size not in (1, x.shape[axis]) for axis, size in zip(range(-mask.dim(), 0), mask.shape, strict=True)):
            raise ValueError(f"mask is {tuple(mask.shape)}; it must broadcast to the shape of the scores, {tuple(x.shape)}")
    if sink is not None:
        if not sink.is_floating_point() or sink.device != x.device:
            raise TypeError(f"sink is {sink.dtype} on {sink.device}; it must be of a floating-point dtype on {x.device}")
        if sink.shape != x.shape[1:2]:
            raise ValueError(f"sink is {tuple(sink.shape)}; it must have a number for each of {x.shape[1]} heads")


def _kernels(x: Tensor, scale: float, special: bool, bias: torch.dtype | None = None) -> MaskedSoftmax | None:
    """Our kernels for a call, or None: torch. `special`: whether the call has a mask, causal order or sink that the kernels see."""
    two = bias not in (None, x.dtype, torch.float64) and x.dtype is not torch.float32
    found = choice(Calls(NAME, x.device, x.dtype, but=TWO_DTYPES if two else "")).kernels
    rows, columns = math.prod(x.shape[:3]), x.shape[3]
    if found == "torch" or bias is torch.float64 or not LEAST_SCALE <= scale <= MOST_SCALE or not 0 < rows <= MOST_ROWS or not columns:
        return None
    function: MaskedSoftmax = importlib.import_module(f"..{found}.{NAME}", __package__).masked_softmax
    return None if special and columns > function.most_columns else function


def _later(x: Tensor) -> Tensor:
    """(S, N), True at the keys that a query does not see."""
    S, N = x.shape[2:]
    return torch.ones(S, N, dtype=torch.bool, device=x.device).triu(1 + max(0, N - S))


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


@custom_op(f"softbench::{NAME}", mutates_args=())
def _masked_softmax(
    scores: Tensor, mask: Tensor | None = None, sink: Tensor | None = None, scale: float = 1.0, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """(y, the sink's share of each row's sum); without a sink the share is empty."""
    x = scores
    bias = None if mask is None or mask.dtype is torch.bool else mask.dtype
    if (kernels := _kernels(x, scale, causal or mask is not None or sink is not None, bias)) is not None:
        given = mask if bias is None or mask is None or x.dtype is not torch.float32 else mask.to(x.dtype)
        y, share = kernels.forward(x, scale=scale, mask=given, causal=causal, sink=sink, shares=True)
        return y, x.new_empty(0, dtype=torch.float32) if share is None else share
    wide = torch.float64 if bias is torch.float64 else _wide(x)
    z = x.to(wide) * scale
    if mask is not None:
        z = z.masked_fill(~mask, -math.inf) if bias is None else z + mask
    if causal:
        z = z.masked_fill(_later(x), -math.inf)
    if sink is not None:
        z = torch.cat([z, sink.to(wide)[:, None, None].expand(*z.shape[:-1], 1)], dim=-1)
    p = torch.ops.aten.softmax.int(z, -1)  # not by a name that somebody may have replaced
    if sink is None:
        return p.to(x.dtype).contiguous(), x.new_empty(0, dtype=_wide(x))
    return _fresh(p[..., :-1], x.dtype), _fresh(p[..., -1], _wide(x))


def _fresh(part: Tensor, dtype: torch.dtype) -> Tensor:
    """A part of a tensor, in memory of its own."""
    return part.to(dtype, copy=True, memory_format=torch.contiguous_format)


@custom_op(f"softbench::{NAME}_backward", mutates_args=())
def _masked_softmax_backward(
    dy: Tensor, y: Tensor, share: Tensor | None = None, scale: float = 1.0, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """(dx, the gradient of each row's sink); without the sink's share the latter is empty. Where a query sees no key, dx is 0."""
    if (kernels := _kernels(y, scale, causal or share is not None)) is not None:
        dx, dsink = kernels.backward(dy, y, share, scale=scale, causal=causal)
        return dx, y.new_empty(0, dtype=torch.float32) if dsink is None else dsink
    wide = _wide(y)
    given = (tensor.to(wide) for tensor in (dy, y))
    wide_dy, wide_y = (tensor.masked_fill(_later(y), 0.0) for tensor in given) if causal else given
    dot = (wide_dy * wide_y).sum(dim=-1, keepdim=True)
    dx = scale * wide_y * (wide_dy - dot)
    if causal:  # also in rows of NaN
        dx = dx.masked_fill(_later(y), 0.0)
    return dx.to(y.dtype).contiguous(), y.new_empty(0, dtype=wide) if share is None else -share * dot[..., 0]


@_masked_softmax.register_fake
def _(
    scores: Tensor, mask: Tensor | None = None, sink: Tensor | None = None, scale: float = 1.0, causal: bool = False
) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape), scores.new_empty(0 if sink is None else scores.shape[:3], dtype=_wide(scores))


@_masked_softmax_backward.register_fake
def _(dy: Tensor, y: Tensor, share: Tensor | None = None, scale: float = 1.0, causal: bool = False) -> tuple[Tensor, Tensor]:
    return y.new_empty(y.shape), y.new_empty(0 if share is None else y.shape[:3], dtype=_wide(y))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, _, sink, ctx.scale, ctx.causal = inputs
    y, share = output
    ctx.mark_non_differentiable(share)
    ctx.sink = None if sink is None else sink.dtype
    ctx.save_for_backward(y, *(() if sink is None else (share,)))


def _gradients(ctx: Any, dy: Tensor, _dshare: Tensor) -> tuple[Tensor | None, ...]:
    if any(ctx.needs_input_grad[1:2]):  # it has no entry for trailing inputs that are defaults
        raise NotImplementedError(no_gradient("mask"))
    y, *share = ctx.saved_tensors
    dx, dsink = _masked_softmax_backward(dy, y, share[0] if share else None, ctx.scale, ctx.causal)
    return dx, None, None if ctx.sink is None else dsink.sum(dim=(0, 2)).to(ctx.sink), None, None


_masked_softmax.register_autograd(_gradients, setup_context=_save)
extension.implement(NAME)
register_sharding(sharding.of_scores, torch.ops.softbench.masked_softmax, torch.ops.softbench.masked_softmax_backward)
