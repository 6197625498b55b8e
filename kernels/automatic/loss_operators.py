"""The operators of `cross_entropy` and `logprob`: `softbench::cross_entropy`, `softbench::logprob` and their backwards, of logits (M, V).

Those of cross entropy also take logits (outer, V, inner), whose classes are read where they are, with outer * inner targets.

torch.compile sees opaque calls. The backward computes the gradient from the logits and a few numbers of each row, so nothing of the logits'
size is kept besides the logits. Where the extension in C++ is built, it has their autograd and launches the CUDA kernels
(`softbench.kernels.common.extension`). The formulas compute the same by torch's operators.
"""

import importlib
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import custom_op

from ..common import extension, sharding
from ..common.losses import ELSEWHERE, NO_CLASS, Options
from ..common.registration import BACKWARD_FLOPS, FORWARD_FLOPS, register_sharding, register_transforms
from ..common.rows import transformed
from .choice import FORGETS, Calls, choice

aten = torch.ops.aten  # not by names that somebody may have replaced
NONE, MEAN, SUM = range(3)
REDUCTIONS = {"mean": MEAN, "sum": SUM, "none": NONE}
"""The numbers of the operator's reductions, as in operators.h."""
LOWEST = torch.finfo(torch.float32).min


def _has_kernels(function: str, x: Tensor, last: bool = True) -> bool:
    """Whether our kernels take x. `last`: whether the classes are its last dimension."""
    key = function, x.device, x.dtype, last
    found = _ours.get(key)
    if found is None:
        found = _ours[key] = _decided(*key)
    return found


_ours: dict[tuple[str, torch.device, torch.dtype, bool], bool] = {}
FORGETS.append(_ours.clear)


@torch.compiler.assume_constant_result
def _decided(function: str, device: torch.device, dtype: torch.dtype, last: bool) -> bool:
    return choice(Calls(function, device, dtype, last=last)).kernels != "torch"


def _kernels(function: str, x: Tensor) -> Any:
    """The module with our kernels of a function for x, or None: torch."""
    last = x.dim() == 2
    found = choice(Calls(function, x.device, x.dtype, last=last)).kernels
    module = "losses" if last else "strided_losses"
    return None if found == "torch" or x.shape[1] == 0 else importlib.import_module(f"..{found}.{module}", __package__)


def _rows(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(M, V) logits and (M,) targets."""
    if logits.dim() == 0 or target.shape != logits.shape[:-1]:
        raise ValueError(f"target is {tuple(target.shape)}; it must have the shape of the logits, {tuple(logits.shape)}, without the last")
    if target.dtype is not torch.int64:
        raise TypeError(f"target is {target.dtype}; it must be int64")
    if target.device != logits.device:
        raise TypeError(f"target is on {target.device}; it must be on {logits.device}, as the logits are")
    if logits.dim() == 2:
        return logits, target  # a view would be a node of autograd
    return logits.reshape(target.numel(), logits.shape[-1]), target.reshape(-1)


def _as_rows(x: Tensor) -> Tensor:
    """(M, V) logits of these or of (outer, V, inner)."""
    return x if x.dim() == 2 else x.movedim(1, 2).flatten(0, 1)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype is torch.float64 else x.float()


def _logits(x: Tensor, softcap: float, logit_scale: float) -> Tensor:
    """z of x, in float32 or float64."""
    z = _wide(x)
    if logit_scale != 1.0:
        z = z * logit_scale
    return softcap * torch.tanh(z / softcap) if softcap else z


def _each(x: Tensor, rows: torch.Size) -> Tensor:
    """An empty result for each row."""
    return x.new_empty(rows, dtype=torch.float64 if x.dtype is torch.float64 else torch.float32)


GIVEN = "SymInt ignore_index, float label_smoothing, float z_loss, float softcap, SymInt reduction=0, float logit_scale=1.0"
OF_LOSS = f"(Tensor x, Tensor target, {GIVEN}) -> (Tensor, Tensor, Tensor)"


class Given(NamedTuple):
    """What the operators of cross entropy get after their tensors. They leave out trailing defaults."""

    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float
    reduction: int = NONE
    logit_scale: float = 1.0
    classes: int = 0
    """Those of a vocabulary of which x has a part; 0: those of x. For a backward."""

    def options(self) -> dict[str, Any]:
        """Those of the kernels."""
        return Options(*self[:4], self.logit_scale)._asdict()


@custom_op("softbench::cross_entropy", mutates_args=(), schema=OF_LOSS)
def _cross_entropy(x: Tensor, target: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, statistics of rows, the number of rows that are not ignored). The number has shape (1,), or (0,) without a reduction."""
    if (kernels := _kernels("cross_entropy", x)) is None:
        return _formula_of_loss(x, target, *given)
    options = Given(*given)
    loss, statistics = kernels.cross_entropy_statistics(x, target, **options.options())
    return _reduced(loss, statistics, target, options)


def _reduced(loss: Tensor, statistics: Tensor, target: Tensor, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    if given.reduction == NONE:
        return loss, statistics, loss.new_empty(0)
    counted = (target != given.ignore_index).sum(dtype=loss.dtype).view(1)
    return loss.sum() if given.reduction == SUM else loss.sum() / counted[0], statistics, counted


def _statistics(z: Tensor) -> Tensor:
    """The maximum of each row, and the sum of exp(z - maximum), (M, 2). The gradients of both together are right, those of one are not."""
    highest = z.detach().amax(1) if z.shape[1] else z.new_zeros(z.shape[0])
    highest = torch.where(highest.isfinite(), highest, 0.0)
    return torch.stack([highest, torch.exp(z - highest[:, None]).sum(1)], 1)


def _lse(statistics: Tensor) -> Tensor:
    """lse of rows from their statistics."""
    return statistics[:, 0] + statistics[:, 1].log()


def _formula_of_loss(x: Tensor, target: Tensor, *given: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The operator by torch's operators."""
    options = Given(*given, **named)
    z = _logits(_as_rows(x), options.softcap, options.logit_scale)
    statistics = _statistics(z)
    loss = aten.cross_entropy_loss(z, target, None, NONE, options.ignore_index, options.label_smoothing)
    if options.z_loss:
        loss = loss + torch.where(target == options.ignore_index, 0.0, options.z_loss * _lse(statistics).square())
    return _reduced(loss, statistics, target, options)


OF_GRADIENT = f"(Tensor x, Tensor target, Tensor statistics, Tensor dloss, Tensor counted, {GIVEN}, SymInt classes=0) -> Tensor"


@custom_op("softbench::cross_entropy_backward", mutates_args=(), schema=OF_GRADIENT)
def _cross_entropy_backward(x: Tensor, target: Tensor, statistics: Tensor, dloss: Tensor, counted: Tensor, *given: Any) -> Tensor:
    """dx, with x's dtype. `dloss` is the gradient of a number with a reduction."""
    if (kernels := _kernels("cross_entropy", x)) is None:
        return _gradient_of_loss(x, target, statistics, dloss, counted, *given)
    options = Given(*given)
    of_rows = _of_rows(x, dloss, counted, options.reduction)
    dx: Tensor = kernels.cross_entropy_backward(x, target, statistics, of_rows, **options.options(), classes=options.classes)
    return dx


def _of_rows(x: Tensor, dloss: Tensor, counted: Tensor, reduction: int) -> Tensor:
    """The gradient of the loss of each row."""
    rows = x.shape[0] if x.dim() == 2 else x.shape[0] * x.shape[2]
    return dloss if reduction == NONE else (dloss / counted[0] if reduction == MEAN else dloss).expand(rows)


def _gradient_of_loss(x: Tensor, target: Tensor, statistics: Tensor, dloss: Tensor, counted: Tensor, *given: Any) -> Tensor:
    """dx by torch's operators."""
    if x.dim() == 3:
        rows = _gradient_of_loss(_as_rows(x), target, statistics, dloss, counted, *given)
        return rows.view(x.shape[0], x.shape[2], x.shape[1]).movedim(2, 1).contiguous()
    ignore_index, label_smoothing, z_loss, softcap, reduction, logit_scale, classes = Given(*given)
    dloss = _of_rows(x, dloss, counted, reduction)
    z = _logits(x, softcap, logit_scale)
    highest, total = statistics[:, :1], statistics[:, 1:]
    dz = torch.exp(z - highest) / total
    if z_loss:
        dz = dz * (1 + 2 * z_loss * (highest + total.log()))
    dz = dz - label_smoothing / (classes or max(1, x.shape[1]))
    ignored, elsewhere = target == ignore_index, target == ELSEWHERE
    at = torch.where(ignored | elsewhere, 0, target)[:, None]
    outside = (at < 0) | (at >= x.shape[1])
    dz, at = torch.where(outside, torch.nan, dz), torch.where(outside, 0, at)
    dz = dz.scatter_add(1, at, torch.where(elsewhere[:, None], 0.0, torch.full_like(at, label_smoothing - 1, dtype=dz.dtype)))
    if softcap:
        dz = dz * (1 - (z / softcap).square())
    return torch.where(ignored[:, None], 0.0, dz * (dloss * logit_scale)[:, None]).to(x.dtype)


def _differentiable_gradient_of_loss(x: Tensor, target: Tensor, _base: Tensor, dloss: Tensor, counted: Tensor, *given: Any) -> Tensor:
    """dx as a function of x alone, which the statistics are some of too."""
    options = Given(*given)
    statistics = _statistics(_logits(_as_rows(x), options.softcap, options.logit_scale))
    return _gradient_of_loss(x, target, statistics, dloss, counted, *given)


@custom_op("softbench::logprob", mutates_args=())
def _logprob(x: Tensor, target: Tensor, ignore_index: int = NO_CLASS, logit_scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """(logprob, entropy, statistics of rows)."""
    if (kernels := _kernels("logprob", x)) is None:
        return _formula_of_logprob(x, target, ignore_index, logit_scale)
    found, entropy, statistics = kernels.logprob_statistics(x, target, ignore_index=ignore_index, logit_scale=logit_scale)
    return found, entropy, statistics


def _formula_of_logprob(x: Tensor, target: Tensor, ignore_index: int = NO_CLASS, logit_scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """The operator by torch's operators."""
    z = _logits(x, 0.0, logit_scale)
    y = aten.log_softmax.int(z, -1)
    entropy = -(torch.exp(y) * y.clamp(min=LOWEST)).sum(dim=-1)
    ignored = target == ignore_index
    found = y.gather(1, torch.where(ignored, 0, target)[:, None])[:, 0]
    return torch.where(ignored, 0.0, found), entropy, _statistics(z)


@custom_op("softbench::logprob_backward", mutates_args=())
def _logprob_backward(
    x: Tensor, target: Tensor, statistics: Tensor, entropy: Tensor, dlogprob: Tensor | None, dentropy: Tensor | None,
    ignore_index: int = NO_CLASS, logit_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """dx, with x's dtype. A gradient that is None is 0."""
    if (kernels := _kernels("logprob", x)) is None:
        return _gradient_of_logprob(x, target, statistics, entropy, dlogprob, dentropy, ignore_index, logit_scale)
    dlogprob, dentropy = (torch.zeros_like(entropy) if given is None else given for given in (dlogprob, dentropy))
    given = statistics, entropy, dlogprob, dentropy
    dx: Tensor = kernels.logprob_backward(x, target, *given, ignore_index=ignore_index, logit_scale=logit_scale)
    return dx


def _gradient_of_logprob(
    x: Tensor, target: Tensor, statistics: Tensor, entropy: Tensor, dlogprob: Tensor | None, dentropy: Tensor | None,
    ignore_index: int = NO_CLASS, logit_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """dx by torch's operators."""
    dlogprob, dentropy = (torch.zeros_like(entropy) if given is None else given for given in (dlogprob, dentropy))
    y = _logits(x, 0.0, logit_scale) - statistics[:, :1] - statistics[:, 1:].log()
    p = torch.exp(y)
    ignored, elsewhere = target == ignore_index, target == ELSEWHERE
    dlogprob = torch.where(ignored, 0.0, dlogprob)[:, None]
    of_entropy = torch.where(p == 0, 0.0, p * (y + entropy[:, None])) * dentropy[:, None]
    at = torch.where(ignored | elsewhere, 0, target)[:, None]
    outside = (at < 0) | (at >= x.shape[1])
    dz, at = torch.where(outside, torch.nan, -p * dlogprob - of_entropy), torch.where(outside, 0, at)
    dz = dz.scatter_add(1, at, torch.where(elsewhere[:, None], 0.0, dlogprob))
    return (dz * logit_scale).to(x.dtype)


def _differentiable_gradient_of_logprob(
    x: Tensor, target: Tensor, _statistics: Tensor, _entropy: Tensor, dlogprob: Tensor | None, dentropy: Tensor | None,
    ignore_index: int = NO_CLASS, logit_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """dx as a function of x alone, which the statistics and the entropy are some of too."""
    _, entropy, statistics = _formula_of_logprob(x, target, ignore_index, logit_scale)
    return _gradient_of_logprob(x, target, statistics, entropy, dlogprob, dentropy, ignore_index, logit_scale)


@_cross_entropy.register_fake
def _fake_cross_entropy(x: Tensor, target: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    of_rows, reduction = _each(x, target.shape), Given(*given).reduction
    loss = of_rows.new_empty(()) if reduction else of_rows
    return loss, of_rows.new_empty((target.shape[0], 2)), of_rows.new_empty(1 if reduction else 0)


@_logprob.register_fake
def _fake_logprob(x: Tensor, target: Tensor, *_options: Any) -> tuple[Tensor, Tensor, Tensor]:
    of_rows = _each(x, target.shape)
    return of_rows, _each(x, target.shape), of_rows.new_empty((target.shape[0], 2))


@_cross_entropy_backward.register_fake
@_logprob_backward.register_fake
def _(x: Tensor, *_others: Any) -> Tensor:
    return x.new_empty(x.shape)


def _save_loss(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, target, *ctx.options = inputs
    _, statistics, counted = output
    ctx.mark_non_differentiable(statistics, counted)
    ctx.save_for_backward(x, target, statistics, counted)


def _save_logprob(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, target, *ctx.options = inputs
    _, entropy, statistics = output
    ctx.set_materialize_grads(False)  # a DTensor mixes with no zeros of its parts
    ctx.mark_non_differentiable(statistics)
    ctx.save_for_backward(x, target, statistics, entropy)


def _of_loss(ctx: Any, dloss: Tensor, _dstatistics: Tensor, _dcounted: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, counted = ctx.saved_tensors
    backward = _differentiable_gradient_of_loss if transformed() else _cross_entropy_backward
    return backward(*tensors, dloss, counted, *ctx.options), *[None] * (1 + len(ctx.options))


def _of_logprob(ctx: Any, dlogprob: Tensor, dentropy: Tensor, _dstatistics: Tensor) -> tuple[Tensor | None, ...]:
    backward: Any = _differentiable_gradient_of_logprob if transformed() else _logprob_backward
    return backward(*ctx.saved_tensors, dlogprob, dentropy, *ctx.options), *[None] * (1 + len(ctx.options))


_cross_entropy.register_autograd(_of_loss, setup_context=_save_loss)
_logprob.register_autograd(_of_logprob, setup_context=_save_logprob)
register_transforms(_cross_entropy, FORWARD_FLOPS)
register_transforms(_logprob, FORWARD_FLOPS)
register_transforms(_cross_entropy_backward, BACKWARD_FLOPS, _differentiable_gradient_of_loss)
register_transforms(_logprob_backward, BACKWARD_FLOPS, _differentiable_gradient_of_logprob)
extension.implement("cross_entropy", "logprob")
register_sharding(sharding.of_loss, torch.ops.softbench.cross_entropy)
register_sharding(sharding.of_rows(1), torch.ops.softbench.cross_entropy_backward, torch.ops.softbench.logprob_backward)
register_sharding(sharding.of_rows(3), torch.ops.softbench.logprob)
