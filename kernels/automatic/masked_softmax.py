"""`masked_softmax` of attention scores by the Triton kernels where these run, as a differentiable PyTorch operator.

`choice.py` says where. There, torch computes some calls all the same:

- torch computes rows of more than `MAX_COLUMNS` columns with a mask, causal order or sink.
- torch computes if the bias is float64, or if the scale is not positive and finite in float32.
- torch computes in forward mode, in transforms of `torch.func`, with a scale that requires a gradient, and where rows of a bias without
  keys become 0.

torch computes in float64 if scores or bias are float64, else in float32.

The operators are `softbench::masked_softmax` and `softbench::masked_softmax_backward`, of scores (B, H, S, N). torch.compile does not see
their kernels. The backward gets the result, so neither the scores nor the mask are kept. Where the extension in C++ is built, it has their
autograd, and calls Python to launch (`softbench.kernels.common.extension`). Elsewhere, a call that nothing but autograd looks at goes past
the operators (`_Direct`), whose Python in torch takes several times as long as a launch.
"""

import importlib
import math
from functools import cache
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from ..common import extension, sharding
from ..common.registration import BACKWARD_FLOPS, FORWARD_FLOPS, register_sharding, register_transforms
from ..common.rows import DTYPES, is_plain, transformed
from ..common.softmax import LEAST_SCALE, MOST_SCALE
from .choice import Calls, choice

NAME = "masked_softmax"
LOWEST = torch.finfo(torch.float32).min
MOST_ROWS = 2**31 - 1024  # a program has up to 1024 rows, which it counts in int32


def masked_softmax(
    scores: Tensor, *, scale: float | Tensor = 1.0, mask: Tensor | None = None, causal: bool = False, sink: Tensor | None = None,
    dtype: torch.dtype | None = None, without_keys: str = "nan", invariant: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(scale * scores + mask) over the keys of attention scores (..., S, N), of any number of dimensions: queries and keys are last.

    - mask: a bias that is added after the scale, or a bool or integers that are not 0 where a key takes part. It has any shape that
      broadcasts to that of the scores.
    - causal: query s sees its first s + 1 + max(0, N - S) keys, so the last query sees all keys if there are as many.
    - sink: (H,), a logit of each head that joins the sum and has no result, as in gpt-oss. It has no scale. Heads are the dimension before
      the queries.
    - without_keys: "nan" or "zero", the result of rows in which no key takes part. It is NaN as in torch; with a sink it is 0. What a mask
      of bools or integers, or the causal order, takes out is not read.
    - Result: contiguous, with the scores' dtype, or `dtype`, to which they are converted first. Under autocast of CUDA, scores of 16 bits
      give float32 as `torch.softmax` does, unless `dtype` is given.
    - Gradients: of any order, with respect to scores, a bias, sink and a scale in a tensor. Kept for them are the result and, with a sink,
      a number for each row. The gradient of a row of NaN is NaN, also under a bool, where torch's `masked_fill` has 0. Beyond what a causal
      query sees, it may be NaN or 0.
    - invariant: as of `softmax`. It excludes a scale in a tensor, a bias of float64 or with without_keys="zero", and more than
      16384 keys.
    - torch.compile(fullgraph=True), CUDA graphs and any strides are supported. Scores that are not contiguous are copied.

    Raises:
        ValueError: a shape does not fit, without_keys is another word, or torch alone computes a call with `invariant`.
        TypeError: scores, mask or sink have a dtype that does not fit, or lie on two devices, or an argument has a wrong type.
    """
    if not isinstance(scores, Tensor):
        raise TypeError(f"scores is a {type(scores).__name__}; it must be a tensor")
    if dtype is None and scores.is_cuda and scores.dtype in DTYPES[1:] and torch.is_autocast_enabled("cuda"):
        dtype = torch.float32
    if dtype is None and without_keys == "nan" and not invariant and not torch.compiler.is_dynamo_compiling():
        y = extension.entries.masked_softmax(scores, mask, sink, scale, causal)
        if y is not None:
            fast: Tensor = y
            return fast
    _check_types(mask, sink, scale)
    x = scores if dtype is None else scores.to(dtype)
    if mask is not None and not mask.is_floating_point() and mask.dtype is not torch.bool and not mask.is_complex():
        mask = mask != 0
    _check(x, mask, sink, without_keys)
    special = mask is not None and mask.is_floating_point()
    zero = without_keys == "zero" and sink is None and (causal or mask is not None)
    of_scale = isinstance(scale, Tensor) and scale.requires_grad and torch.is_grad_enabled()
    four, mask = _as_scores(x), _of_scores(mask, x)
    scale = scale.reshape(()) if isinstance(scale, Tensor) else scale
    by_torch = transformed() or of_scale or (zero and special)
    if invariant and (by_torch or isinstance(scale, Tensor) or (mask is not None and mask.dtype is torch.float64)):
        excluded = "a scale in a tensor, a bias of float64 or with without_keys='zero', and torch.func"
        raise ValueError(f"invariant=True of masked_softmax excludes {excluded}")
    if by_torch:
        result = _formula(four, mask, sink, scale, causal, zero)[0]
    else:
        if zero:  # this sink takes part in rows without a key only, where it is the largest
            sink = x.new_full(four.shape[1:2], LOWEST, dtype=torch.float32)
        result = (_direct if is_plain(four, mask, sink) else _masked_softmax)(four, mask, sink, scale, causal, invariant)[0]
    return result if x.dim() == 4 else result.view(x.shape)


def _as_scores(x: Tensor) -> Tensor:
    """x as (B, H, S, N)."""
    if x.dim() == 4:
        return x
    return x[(None,) * (4 - x.dim())] if x.dim() < 4 else x.flatten(0, -4)


def _of_scores(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """A mask of x that broadcasts to (B, H, S, N)."""
    if mask is None or x.dim() <= 4 or mask.dim() <= 3:
        return mask
    leading = x.shape[:-3] if any(size != 1 for size in mask.shape[:-3]) else (1,)
    return mask.expand(*leading, *mask.shape[-3:]).flatten(0, -4) if len(leading) > 1 else mask.reshape(1, *mask.shape[-3:])


def _check_types(mask: object, sink: object, scale: object) -> None:
    for name, one in (("mask", mask), ("sink", sink)):
        if not isinstance(one, Tensor | None):
            raise TypeError(f"{name} is a {type(one).__name__}; it must be a tensor")
    if not isinstance(scale, Real) and not (isinstance(scale, Tensor) and scale.numel() == 1):
        got = f"a tensor {tuple(scale.shape)}" if isinstance(scale, Tensor) else repr(scale)
        raise TypeError(f"scale is {got}; it must be a number, or a tensor of one")


def _check(x: Tensor, mask: Tensor | None, sink: Tensor | None, without_keys: str) -> None:
    if x.dim() == 0:
        raise ValueError("the scores are one number; they must be (..., S, N)")
    if not x.is_floating_point():
        raise TypeError(f"the scores are {x.dtype}; they must be of a floating-point dtype")
    if mask is not None:
        if (mask.dtype is not torch.bool and not mask.is_floating_point()) or mask.device != x.device:
            raise TypeError(
                f"mask is {mask.dtype} on {mask.device}; give bools, integers or a bias of a floating-point dtype, on {x.device}"
            )
        if mask.dim() > x.dim() or any(
            size not in (1, x.shape[axis]) for axis, size in zip(range(-mask.dim(), 0), mask.shape, strict=True)
        ):
            raise ValueError(f"mask is {tuple(mask.shape)}; it must broadcast to the shape of the scores, {tuple(x.shape)}")
    if sink is not None:
        if not sink.is_floating_point() or sink.device != x.device:
            raise TypeError(f"sink is {sink.dtype} on {sink.device}; it must be of a floating-point dtype on {x.device}")
        heads = x.shape[-3] if x.dim() > 2 else 1
        if sink.shape != (heads,):
            raise ValueError(f"sink is {tuple(sink.shape)}; it must have a number for each of {heads} heads")
    if without_keys not in ("nan", "zero"):
        raise ValueError(f"without_keys {without_keys!r}: must be nan or zero")


def _kernels(x: Tensor, scale: float, special: bool, bias: torch.dtype | None = None, invariant: bool = False) -> Any:
    """Our kernels for a call, or None: torch. `special`: whether the call has a mask, causal order or sink that the kernels see.

    Raises ValueError if torch would compute a call with `invariant`.
    """
    found = choice(Calls(NAME, x.device, x.dtype))
    B, H, S, N = x.shape
    if found.kernels != "torch" and bias is not torch.float64 and LEAST_SCALE <= scale <= MOST_SCALE and 0 < B * H * S <= MOST_ROWS and N:
        module = _triton("invariant" if invariant else NAME)
        if N <= module.MAX_COLUMNS or not special:
            return module.masked_softmax
    if invariant and x.numel():
        why = found.why if found.kernels == "torch" else "the kernels take at most 16384 keys, and a positive scale that float32 has"
        raise ValueError(f"invariant=True of {NAME}: {why}")
    return None


@cache
def _triton(module: str) -> Any:
    return importlib.import_module(f"..triton.{module}", __package__)


def _later(x: Tensor) -> Tensor:
    """(S, N), True at the keys that a query does not see."""
    S, N = x.shape[2:]
    return torch.ones(S, N, dtype=torch.bool, device=x.device).triu(1 + max(0, N - S))


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _forward(
    scores: Tensor, mask: Tensor | None = None, sink: Tensor | None = None, scale: float = 1.0, causal: bool = False,
    invariant: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(y, the sink's share of each row's sum); without a sink the share is empty."""
    x = scores
    bias = None if mask is None or mask.dtype is torch.bool else mask.dtype
    if (kernels := _kernels(x, scale, causal or mask is not None or sink is not None, bias, invariant)) is not None:
        y, share = kernels.forward(x, scale=scale, mask=mask, causal=causal, sink=sink, shares=True)
        return y, x.new_empty(0, dtype=torch.float32) if share is None else share
    return _formula(x, mask, sink, scale, causal)


def _formula(
    x: Tensor, mask: Tensor | None = None, sink: Tensor | None = None, scale: float | Tensor = 1.0, causal: bool = False, zero: bool = False
) -> tuple[Tensor, Tensor]:
    """The operator by torch's operators. `zero`: rows without a key are 0."""
    bias = None if mask is None or mask.dtype is torch.bool else mask.dtype
    wide = torch.float64 if bias is torch.float64 else _wide(x)
    z = x.to(wide) * scale
    if mask is not None:
        z = z.masked_fill(~mask, -math.inf) if bias is None else z + mask
    if causal:
        z = z.masked_fill(_later(x), -math.inf)
    if zero:
        empty = z.isneginf().all(-1, keepdim=True)
        p = torch.ops.aten.softmax.int(z.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    else:
        if sink is not None:
            z = torch.cat([z, sink.to(wide)[:, None, None].expand(*z.shape[:-1], 1)], dim=-1)
        p = torch.ops.aten.softmax.int(z, -1)  # not by a name that somebody may have replaced
    if sink is None:
        return p.to(x.dtype).contiguous(), x.new_empty(0, dtype=_wide(x))
    return _fresh(p[..., :-1], x.dtype), _fresh(p[..., -1], _wide(x))


def _fresh(part: Tensor, dtype: torch.dtype) -> Tensor:
    """A part of a tensor, in memory of its own."""
    return part.to(dtype, copy=True, memory_format=torch.contiguous_format)


def _backward(
    dy: Tensor, y: Tensor, share: Tensor | None = None, scale: float = 1.0, causal: bool = False, invariant: bool = False
) -> tuple[Tensor, Tensor]:
    """(dx, the gradient of each row's sink); without the sink's share the latter is empty. Where a query sees no key, dx is 0."""
    if (kernels := _kernels(y, scale, causal or share is not None, None, invariant)) is not None:
        dx, dsink = kernels.backward(dy, y, share, scale=scale, causal=causal)
        return dx, y.new_empty(0, dtype=torch.float32) if dsink is None else dsink
    return _formula_of_gradient(dy, y, share, scale, causal)


def _formula_of_gradient(
    dy: Tensor, y: Tensor, share: Tensor | None = None, scale: float = 1.0, causal: bool = False, _invariant: bool = False
) -> tuple[Tensor, Tensor]:
    """The backward by torch's operators."""
    wide = _wide(y)
    given = (tensor.to(wide) for tensor in (dy, y))
    wide_dy, wide_y = (tensor.masked_fill(_later(y), 0.0) for tensor in given) if causal else given
    dot = (wide_dy * wide_y).sum(dim=-1, keepdim=True)
    dx = scale * wide_y * (wide_dy - dot)
    if causal:  # also in rows of NaN
        dx = dx.masked_fill(_later(y), 0.0)
    return dx.to(y.dtype).contiguous(), y.new_empty(0, dtype=wide) if share is None else -share * dot[..., 0]


def _differentiable_gradient(dy: Tensor, y: Tensor, share: Tensor | None = None, *given: Any) -> tuple[Tensor, Tensor]:
    """The backward as a function of dy and y alone: the share of a sink is what y lacks to 1."""
    if share is not None:
        total = y.to(share.dtype).sum(-1)
        share = share.detach() + total.detach() - total
    return _formula_of_gradient(dy, y, share, *given)


_masked_softmax = custom_op(f"softbench::{NAME}", _forward, mutates_args=())
_masked_softmax_backward = custom_op(f"softbench::{NAME}_backward", _backward, mutates_args=())


@_masked_softmax.register_fake
def _fake(scores: Tensor, mask: Tensor | None = None, sink: Tensor | None = None, *_: Any) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape), scores.new_empty(0 if sink is None else scores.shape[:3], dtype=_wide(scores))


@_masked_softmax_backward.register_fake
def _fake_backward(dy: Tensor, y: Tensor, share: Tensor | None = None, *_: Any) -> tuple[Tensor, Tensor]:
    return y.new_empty(y.shape), y.new_empty(0 if share is None else y.shape[:3], dtype=_wide(y))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, mask, sink, ctx.scale, *ctx.options = inputs
    y, share = output
    ctx.mark_non_differentiable(share)
    ctx.set_materialize_grads(False)
    ctx.sink = None if sink is None else sink.dtype
    ctx.mask = None if mask is None else (mask.shape, mask.dtype)
    ctx.save_for_backward(y, *(() if sink is None else (share,)))


def _gradients(ctx: Any, dy: Tensor | None, _dshare: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return (None,) * 6
    y, *shares = ctx.saved_tensors
    direct = not torch.is_grad_enabled() and is_plain(dy, y)
    backward = _backward if direct else _differentiable_gradient if transformed() else _masked_softmax_backward
    of_mask = any(ctx.needs_input_grad[1:2])  # it has no entry for trailing inputs that are defaults
    dx, dsink = backward(dy, y, shares[0] if shares else None, 1.0 if of_mask else ctx.scale, *ctx.options)
    dmask = None
    if of_mask:
        shape, dtype = ctx.mask
        dmask = dx.to(_wide(dx)).sum_to_size(shape).to(dtype)
        dx = dx * ctx.scale
    return dx, dmask, None if ctx.sink is None else dsink.sum(dim=(0, 2)).to(ctx.sink), None, None, None


class _Direct(torch.autograd.Function):
    """The operator and its gradient as a function, for tensors that are plain (`is_plain`)."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:  # a `setup_context` of its own would take 20 us
        output = _forward(*inputs)
        _save(ctx, inputs, output)
        return output

    backward = staticmethod(_gradients)


def _direct(x: Tensor, mask: Tensor | None, sink: Tensor | None, scale: Any, causal: bool, invariant: bool) -> Any:
    records = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (x, mask, sink))
    return (_Direct.apply if records else _forward)(x, mask, sink, float(scale), causal, invariant)


_masked_softmax.register_autograd(_gradients, setup_context=_save)
register_transforms(_masked_softmax, FORWARD_FLOPS)
register_transforms(_masked_softmax_backward, BACKWARD_FLOPS, _differentiable_gradient)
extension.implement(NAME)
register_sharding(sharding.of_scores, torch.ops.softbench.masked_softmax, torch.ops.softbench.masked_softmax_backward)
