"""`linear_cross_entropy` of hidden states and a weight, whose logits are never whole in memory, by the fastest kernels that work here.

The gradients are computed with the loss, as in Liger's and torch's chunked functions, since the logits are gone afterwards. The operator
`softbench::linear_cross_entropy` gives both, and torch.compile sees one opaque call.
"""

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op
from torch.multiprocessing.reductions import StorageWeakRef

from ..common import linear_cross_entropy as parts
from ..common.losses import check_arguments
from ..common.rows import AUTOCASTS, DTYPES, check_no_transform, once
from .choice import Calls, choice, without_triton
from .loss_operators import _cross_entropy, _cross_entropy_backward

NAMES = ("ignore_index", "label_smoothing", "z_loss", "softcap")


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
) -> Tensor:
    """The mean cross entropy of the logits hidden @ weight.T, for hidden states (..., H), a weight (V, H) and targets (...) of int64.

    - Options: those of `cross_entropy`. The mean is over the rows that are not ignored.
    - Result: a float32 number. In 16 bits, logits and their gradient are rounded to 16 bits once, and dw is added up in 16 bits.
    - Gradients: once, with respect to hidden and weight, computed with the loss. A graph that is retained has no second backward. That of
      a tensor that requires none is not computed. In float16 they keep their digits for a loss scale. dw for a dloss of 1 must be below 64.
    - Memory: beside inputs and gradients at most 1 GB, for the logits of a part of the rows. 128 rows are the smallest part.
    - torch.compile(fullgraph=True) and CUDA graphs are supported. Autocast casts hidden and weight as for
      `torch.nn.functional.linear`. The gradients have the dtypes that were given.

    Raises:
        ValueError: the shapes do not fit, there are no classes, or an option is out of range.
        TypeError: target is not int64 on their device, or hidden and weight have not one dtype of float32, float16 and bfloat16, or an
            argument is not a tensor or a number.
        NotImplementedError: hidden or weight has a tangent of forward mode, or a transform of `torch.func` is active.
    """
    given: dict[str, object] = {"hidden": hidden, "weight": weight, "target": target}
    check_arguments(given, ignore_index, label_smoothing=label_smoothing, z_loss=z_loss, softcap=softcap)
    if hidden.dim() == 0 or target.shape != hidden.shape[:-1]:
        raise ValueError(f"target is {tuple(target.shape)}; it must have the shape of hidden, {tuple(hidden.shape)}, without the last")
    rows, classes = hidden.reshape(target.numel(), hidden.shape[-1]), target.reshape(-1)
    rows, weight = _as_autocast(rows), _as_autocast(weight)
    parts.check(rows, weight, classes)
    check_no_transform("linear_cross_entropy", rows, weight)
    options = ignore_index, label_smoothing, z_loss, softcap
    if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
        loss: Tensor = _Loss.apply(rows, weight, classes, *options)[0]
        return loss
    return _linear_cross_entropy(rows, weight, classes, False, False, *options)[0]


def _as_autocast(x: Tensor) -> Tensor:
    """x in the dtype that autocast has for it, as `torch.nn.functional.linear` takes it."""
    kind = x.device.type
    if kind not in AUTOCASTS or not torch.is_autocast_enabled(kind) or x.dtype not in DTYPES:
        return x
    return x.to(torch.get_autocast_dtype(kind))


class _Loss(torch.autograd.Function):
    """The loss, and the factors of its gradients: a saved result leads `once` to this node, and callers may write over the loss."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        loss, dx, dw, factors = _linear_cross_entropy(x, weight, target, *ctx.needs_input_grad[:2], *options)
        ctx.save_for_backward(dx, dw, factors)
        ctx.multiplied = set()
        return loss, factors

    @staticmethod
    def backward(ctx: Any, dloss: Tensor, _dfactors: Tensor) -> tuple[Tensor | None, ...]:
        """In place, since the gradient of another weight may be a gigabyte. The version counter refuses a second backward.

        Hooks of saved tensors hide the counter, and may give the same memory again.
        """
        *both, factors = ctx.saved_tensors
        found: list[Tensor | None] = []
        with torch.no_grad():
            of_each = (dloss * factors).unbind() if factors.numel() else (dloss, dloss)
            for need, one, factor in zip(ctx.needs_input_grad[:2], both, of_each, strict=True):
                if not need:
                    found.append(None)
                elif torch.compiler.is_compiling():
                    found.append((one * factor.view(1, 1)).to(one.dtype) if factors.numel() else one * factor)
                else:
                    memory = StorageWeakRef(one.untyped_storage())
                    if memory in ctx.multiplied:
                        raise RuntimeError("linear_cross_entropy has no second backward: the first wrote over what it saved")
                    ctx.multiplied.add(memory)
                    found.append(parts.multiply(one, factor) if factors.numel() else one.mul_(factor))
        return *(None if one is None else once(one, factors, dloss) for one in found), *[None] * 5


@custom_op("softbench::linear_cross_entropy", mutates_args=())
def _linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, of_x: bool, of_weight: bool, ignore_index: int, label_smoothing: float, z_loss: float,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(loss, dx, dw, factors), as `in_parts` has them; empty where there are none, or where `of_x` or `of_weight` is False."""
    options: dict[str, Any] = dict(zip(NAMES, (ignore_index, label_smoothing, z_loss, softcap), strict=True))
    found = choice(Calls("cross_entropy", x.device, x.dtype)).kernels
    if found == "cuda" and not without_triton():
        found = "triton"  # its fused kernel takes a dloss: 4 % of 8192 states and 128256 words on an H200
    losses = OF_TORCH if found == "torch" else importlib.import_module(f"..{found}.losses", __package__).PASSES
    loss, *others = parts.in_parts(losses, x, weight, target, needs=(of_x, of_weight), **options)
    dx, dw, factors = (x.new_empty(0) if one is None else one for one in others)
    return loss, dx, dw, factors


@_linear_cross_entropy.register_fake
def _(x: Tensor, weight: Tensor, target: Tensor, of_x: bool, of_weight: bool, *_options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dx, dw = (given.new_empty(given.shape if need else 0) for given, need in ((x, of_x), (weight, of_weight)))
    loss = x.new_empty((), dtype=torch.float32)
    return loss, dx, dw, loss.new_empty(2) if x.dtype is torch.float16 and (of_x or of_weight) else x.new_empty(0)


def _forward(x: Tensor, target: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    loss, statistics, _ = _cross_entropy(x, target, *(options[name] for name in NAMES))
    return loss, statistics


def _backward(x: Tensor, target: Tensor, lse: Tensor, dloss: Tensor, *, out: Tensor, **options: Any) -> Tensor:
    return out.copy_(_cross_entropy_backward(x, target, lse, dloss, lse.new_empty(0), *(options[name] for name in NAMES)))


OF_TORCH = parts.Losses(_forward, _backward, temporaries=20)
"""Measured on the CPU with all options: 20 bytes in each dtype, 12 to 16 without options."""
