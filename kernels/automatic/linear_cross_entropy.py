"""`linear_cross_entropy` of hidden states and a weight, whose logits are never whole in memory, by the fastest kernels that work here.

The gradients are computed with the loss, as in Liger's and torch's chunked functions, since the logits are gone afterwards. The operator
`softbench::linear_cross_entropy` gives both, and torch.compile sees one opaque call.
"""

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from ..common import linear_cross_entropy as parts
from .choice import Calls, choice, without_triton
from .losses import _cross_entropy, _cross_entropy_backward

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
    - Gradients: once, with respect to hidden and weight, computed with the loss. A graph that is retained has no second backward.
    - Memory: beside inputs and gradients at most 1 GB, for the logits of a part of the rows.
    - torch.compile(fullgraph=True) and CUDA graphs are supported. Autocast changes nothing.

    Raises:
        ValueError: the shapes do not fit, or an option is out of range.
        TypeError: target is not int64 on their device, or hidden and weight have not one dtype of float32, float16 and bfloat16.
    """
    if not 0 <= label_smoothing <= 1 or z_loss < 0 or softcap < 0:
        raise ValueError(f"label_smoothing {label_smoothing}, z_loss {z_loss}, softcap {softcap}: must be 0 to 1, and not negative")
    if hidden.dim() == 0 or target.shape != hidden.shape[:-1]:
        raise ValueError(f"target is {tuple(target.shape)}; it must have the shape of hidden, {tuple(hidden.shape)}, without the last")
    rows, classes = hidden.reshape(target.numel(), hidden.shape[-1]), target.reshape(-1)
    parts.check(rows, weight, classes)
    options = ignore_index, label_smoothing, z_loss, softcap
    if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
        loss: Tensor = _Loss.apply(rows, weight, classes, *options)
        return loss
    return _linear_cross_entropy(rows, weight, classes, False, *options)[0]


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor, *options: Any) -> Tensor:
        loss, dx, dw = _linear_cross_entropy(x, weight, target, True, *options)
        ctx.save_for_backward(dx, dw)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        dx, dw = ctx.saved_tensors
        if torch.compiler.is_compiling():
            return dx * dloss, dw * dloss, *[None] * 5
        # In place, since another weight's gradient may be a gigabyte. The version counter refuses a second backward.
        return dx.mul_(dloss), dw.mul_(dloss), *[None] * 5


@custom_op("softbench::linear_cross_entropy", mutates_args=())
def _linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, gradients: bool, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, dx, dw); the last two are empty without `gradients`."""
    options: dict[str, Any] = dict(zip(NAMES, (ignore_index, label_smoothing, z_loss, softcap), strict=True))
    found = choice(Calls("cross_entropy", x.device, x.dtype)).kernels
    if found == "cuda" and not without_triton():
        found = "triton"  # its fused kernel takes a dloss: 4 % of 8192 states and 128256 words on an H200
    of_torch = found == "torch" or weight.shape[0] == 0
    losses = parts.Losses(_forward, _backward) if of_torch else importlib.import_module(f"..{found}.losses", __package__).PASSES
    loss, dx, dw = parts.linear_cross_entropy(losses, x, weight, target, gradients=gradients, **options)
    return loss, x.new_empty(0) if dx is None else dx, x.new_empty(0) if dw is None else dw


@_linear_cross_entropy.register_fake
def _(x: Tensor, weight: Tensor, target: Tensor, gradients: bool, *_options: Any) -> tuple[Tensor, Tensor, Tensor]:
    of_both = [given.new_empty(given.shape if gradients else 0) for given in (x, weight)]
    return x.new_empty((), dtype=torch.float32), of_both[0], of_both[1]


def _forward(x: Tensor, target: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    loss, lse, _ = _cross_entropy(x, target, *(options[name] for name in NAMES))
    return loss, lse


def _backward(x: Tensor, target: Tensor, lse: Tensor, dloss: Tensor, *, out: Tensor, **options: Any) -> Tensor:
    return out.copy_(_cross_entropy_backward(x, target, lse, dloss, lse.new_empty(0), *(options[name] for name in NAMES)))
