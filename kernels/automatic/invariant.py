"""What `invariant=True` of the functions of `softbench.kernels` calls: operators whose results of a row do not depend on the other rows.

They are `softbench::invariant_softmax` (also of log_softmax) with its backward, `softbench::invariant_cross_entropy` and
`softbench::invariant_logprob`; `masked_softmax.py` has its own. The gradient of a loss adds nothing within a row, so any kernels compute
it. The module `invariant` of each package has the kernels. Where these do not run, the operators raise ValueError.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from ..common.losses import NO_CLASS
from ..common.rows import DTYPES, canonical_dim
from . import choice, loss_operators as losses


def softmax(x: Tensor, dim: int, dtype: torch.dtype | None, *, log: bool) -> Tensor:
    """softmax or log_softmax of x over `dim`, differentiable once."""
    if dtype is None and x.is_cuda and x.dtype in DTYPES[1:] and torch.is_autocast_enabled("cuda"):
        dtype = torch.float32
    return _softmax(x, canonical_dim(dim, x.dim()), dtype, log)


@custom_op("softbench::invariant_softmax", mutates_args=())
def _softmax(x: Tensor, dim: int, dtype: torch.dtype | None, log: bool) -> Tensor:
    name = "log_softmax" if log else "softmax"
    y: Tensor = getattr(choice.invariant_kernels(name, x), name).forward(x, dim, dtype=dtype)
    return y


@custom_op("softbench::invariant_softmax_backward", mutates_args=())
def _softmax_backward(dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype, log: bool) -> Tensor:
    """dx, of dtype `dtype`."""
    name = "log_softmax" if log else "softmax"
    dx: Tensor = getattr(choice.invariant_kernels(name, y), name).backward(dy, y, dim, dtype=dtype)
    return dx


@_softmax.register_fake
def _(x: Tensor, dim: int, dtype: torch.dtype | None, log: bool) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


@_softmax_backward.register_fake
def _(dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype, log: bool) -> Tensor:
    return y.new_empty(y.shape, dtype=dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.dim, _, ctx.log = inputs
    ctx.dtype = x.dtype
    ctx.save_for_backward(output)


def _gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    (y,) = ctx.saved_tensors
    return _softmax_backward(dy, y, ctx.dim, ctx.dtype, ctx.log), None, None, None


@custom_op("softbench::invariant_cross_entropy", mutates_args=(), schema=losses.OF_LOSS)
def cross_entropy(x: Tensor, target: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """As `softbench::cross_entropy`. With a reduction only the gradient, but for its factor, and the statistics have the same bits."""
    found = losses.Given(*given)
    loss, statistics = choice.invariant_kernels("cross_entropy", x).cross_entropy_statistics(x, target, **found.options())
    return losses._reduced(loss, statistics, target, found)


@custom_op("softbench::invariant_logprob", mutates_args=())
def logprob(x: Tensor, target: Tensor, ignore_index: int = NO_CLASS, logit_scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """As `softbench::logprob`."""
    results = choice.invariant_kernels("logprob", x).logprob_statistics(x, target, ignore_index=ignore_index, logit_scale=logit_scale)
    found: tuple[Tensor, Tensor, Tensor] = tuple(results)
    return found


_softmax.register_autograd(_gradient, setup_context=_save)
cross_entropy.register_fake(losses._fake_cross_entropy)
cross_entropy.register_autograd(losses._of_loss, setup_context=losses._save_loss)
logprob.register_fake(losses._fake_logprob)
logprob.register_autograd(losses._of_logprob, setup_context=losses._save_logprob)
