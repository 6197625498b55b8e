"""`linear_logprob` of hidden states and a weight, whose logits are never whole in memory, by the fastest kernels that work here.

As reinforcement learning needs it: the gradients of log-probability and entropy come later than these. So the backward makes the logits of
each part of the rows again, which is a fourth product of matrices. `softbench.kernels.common.linear_cross_entropy` chooses the parts. The
operators are `softbench::linear_logprob` and its backward, and torch.compile sees opaque calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from ..common import linear_cross_entropy as parts
from ..common.losses import check_arguments
from ..common.rows import check_no_transform
from .linear_cross_entropy import OF_TORCH, _as_autocast
from .loss_operators import _kernels, _logprob, _logprob_backward


def linear_logprob(
    hidden: Tensor, weight: Tensor, target: Tensor, *, ignore_index: int = -100, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(logprob, entropy) of the logits hidden @ weight.T, as `logprob` has them, each in float32 of target's shape.

    hidden is (..., H), weight (V, H) of the same dtype, target (...) of int64.

    - Gradients: once, with respect to hidden and weight. Kept for it are hidden, weight and three numbers a row. In 16 bits, logits and
      their gradient are rounded to 16 bits once, and the gradient of weight is added up in 16 bits.
    - Memory: beside inputs, results and gradients at most 1 GB, for the logits of a part of the rows. 128 rows are the smallest part.
    - torch.compile(fullgraph=True) and CUDA graphs are supported. Autocast is that of `linear_cross_entropy`.

    Raises:
        ValueError: the shapes do not fit, there are no classes, or temperature is not positive and finite.
        TypeError: target is not int64 on their device, or hidden and weight have not one dtype of float32, float16 and bfloat16, or an
            argument is not a tensor or a number.
        NotImplementedError: hidden or weight has a tangent of forward mode, or a transform of `torch.func` is active.
    """
    check_arguments({"hidden": hidden, "weight": weight, "target": target}, ignore_index, temperature=temperature)
    if hidden.dim() == 0 or target.shape != hidden.shape[:-1]:
        raise ValueError(f"target is {tuple(target.shape)}; it must have the shape of hidden, {tuple(hidden.shape)}, without the last")
    rows, weight = _as_autocast(hidden.reshape(target.numel(), hidden.shape[-1])), _as_autocast(weight)
    parts.check(rows, weight, target.reshape(-1))
    check_no_transform("linear_logprob", rows, weight)
    found, entropy, _ = _linear_logprob(rows, weight, target.reshape(-1), ignore_index, 1 / temperature)
    return found.view(target.shape), entropy.view(target.shape)


def _logits_of_parts(x: Tensor, weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The rows of each part and their logits, in memory that the next part takes again."""
    temporaries = 0 if _kernels("logprob", x) is not None else OF_TORCH.temporaries
    size = x.element_size() + temporaries
    rows = parts.rows_of_part(len(x), len(weight), x.shape[1], size, parts.multiprocessors(x.device))
    memory = torch.empty(rows, len(weight), dtype=x.dtype, device=x.device)
    for start in range(0, len(x), rows):
        where = slice(start, start + rows)
        part = x[where]
        yield where, torch.mm(part, weight.t(), out=memory[: len(part)])


@custom_op("softbench::linear_logprob", mutates_args=())
def _linear_logprob(x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """(logprob, entropy, statistics) of each row, in float32."""
    results = tuple(torch.empty(shape, dtype=torch.float32, device=x.device) for shape in (len(x), len(x), (len(x), 2)))
    for where, logits in _logits_of_parts(x, weight):
        for whole, part in zip(results, _logprob(logits, target[where], ignore_index, scale), strict=True):
            whole[where] = part
    return results[0], results[1], results[2]


@custom_op("softbench::linear_logprob_backward", mutates_args=())
def _linear_logprob_backward(
    x: Tensor, weight: Tensor, target: Tensor, statistics: Tensor, entropy: Tensor, dlogprob: Tensor, dentropy: Tensor, of_x: bool,
    of_weight: bool, ignore_index: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(dx, dw), empty where they are not needed."""
    dx, dw = (one.new_empty(one.shape) if need else one.new_empty(0) for one, need in ((x, of_x), (weight, of_weight)))
    if of_weight and not len(x):
        dw.zero_()
    for where, logits in _logits_of_parts(x, weight):
        given = target[where], statistics[where], entropy[where], dlogprob[where], dentropy[where]
        if (kernels := _kernels("logprob", x)) is not None:
            dz = kernels.logprob_backward(logits, *given, ignore_index=ignore_index, logit_scale=scale, out=logits)
        else:
            dz = _logprob_backward(logits, *given, ignore_index, scale)
        if of_x:
            torch.mm(dz, weight, out=dx[where])
        if of_weight:
            dw.addmm_(dz.t(), x[where], beta=min(where.start, 1))
    return dx, dw


@_linear_logprob.register_fake
def _(x: Tensor, *_others: Any) -> tuple[Tensor, Tensor, Tensor]:
    first, second, third = (x.new_empty(shape, dtype=torch.float32) for shape in (len(x), len(x), (len(x), 2)))
    return first, second, third


@_linear_logprob_backward.register_fake
def _(x: Tensor, weight: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    of_x, of_weight = others[5:7]
    return x.new_empty(x.shape if of_x else 0), weight.new_empty(weight.shape if of_weight else 0)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, target, *ctx.options = inputs
    _, entropy, statistics = output
    ctx.mark_non_differentiable(statistics)
    ctx.save_for_backward(x, weight, target, statistics, entropy)


def _gradients(ctx: Any, dlogprob: Tensor, dentropy: Tensor, _dstatistics: Tensor) -> tuple[Tensor | None, ...]:
    of_x, of_weight = ctx.needs_input_grad[:2]
    dx, dw = _linear_logprob_backward(*ctx.saved_tensors, dlogprob.contiguous(), dentropy.contiguous(), of_x, of_weight, *ctx.options)
    return dx if of_x else None, dw if of_weight else None, None, None, None


_linear_logprob.register_autograd(_gradients, setup_context=_save)
