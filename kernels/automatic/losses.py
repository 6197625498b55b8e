"""`cross_entropy` and `logprob` of logits by the fastest kernels that work here, as differentiable PyTorch operators.

`choice.py` has the rule by which the logits choose. torch computes float64 in float64, and other dtypes in float32.

The operators are `softbench::cross_entropy`, `softbench::logprob` and their backwards, of logits (M, V). torch.compile sees opaque calls.
The backward computes the gradient from the logits and lse, so nothing of the logits' size is kept besides the logits. Where
the extension in C++ is built, it has their autograd and launches the CUDA kernels (`softbench.kernels.common.extension`).
"""

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from ..common import extension, sharding
from ..common.losses import check_arguments
from ..common.registration import register_sharding
from ..common.rows import check_no_tangent
from .choice import Calls, choice

aten = torch.ops.aten  # not by names that somebody may have replaced
NONE, MEAN, SUM = range(3)
REDUCTIONS = {"mean": MEAN, "sum": SUM, "none": NONE}
"""The numbers of the operator's reductions, as in operators.h."""
LOWEST = torch.finfo(torch.float32).min


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
) -> Tensor:
    """The cross entropy of logits (..., V) and class numbers `target` (...) of int64, as `torch.nn.functional.cross_entropy` has it.

    - Options: z_loss adds z_loss * lse^2 to the loss of each row (PaLM, arXiv:2204.02311, section 5). With a softcap, the logits are
      softcap * tanh(logits / softcap). 0 turns each off.
    - Result: a number, or for reduction="none" a tensor of target's shape. It is float32, or float64 for logits in float64. Autocast
      changes nothing. "mean" is over the rows that are not ignored.
    - Gradients: once, with respect to the logits, whose gradient has their dtype. Kept for it are the logits and lse.
    - Targets out of range other than ignore_index: torch raises IndexError on the CPU. On a CUDA device our kernels make the loss and the
      gradient of the row NaN, without an error, where torch stops the device by an assertion.
    - torch.compile(fullgraph=True), CUDA graphs and any strides are supported. Rows without adjacent elements are copied.

    Raises:
        ValueError: the shapes do not fit, or an option is out of range.
        TypeError: target is not int64 or on another device, or an argument is not a tensor or a number.
        NotImplementedError: the logits have a tangent of forward mode.
    """
    options = ignore_index, label_smoothing, z_loss, softcap
    number = REDUCTIONS.get(reduction) if isinstance(reduction, str) else None
    if not torch.compiler.is_compiling():
        found = extension.entries.cross_entropy(logits, target, number, *options)
        if found is not None:
            loss: Tensor = found
            return loss
    if number is None:
        raise ValueError(f"reduction {reduction!r}: must be one of {', '.join(REDUCTIONS)}")
    given: dict[str, object] = {"logits": logits, "target": target}
    check_arguments(given, ignore_index, label_smoothing=label_smoothing, z_loss=z_loss, softcap=softcap)
    rows, classes = _rows(logits, target)
    check_no_tangent("cross_entropy", rows)
    loss = _cross_entropy(rows, classes, *options, number)[0]
    return loss.view(target.shape) if reduction == "none" else loss


def logprob(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(logprob, entropy) of logits (..., V) and class numbers `target` (...) of int64, each of target's shape.

    logprob is log_softmax(logits) at the target, and entropy is -sum(p log p) of the row. Both are differentiable once. No target is
    ignored. Otherwise as `cross_entropy`, except that torch raises RuntimeError for a target out of range on the CPU.
    """
    if not torch.compiler.is_compiling() and (results := extension.entries.logprob(logits, target)) is not None:
        both: tuple[Tensor, Tensor] = results
        return both
    rows, classes = _rows(logits, target)
    check_no_tangent("logprob", rows)
    found, entropy, _lse = _logprob(rows, classes)
    return found.view(target.shape), entropy.view(target.shape)


def _kernels(function: str, x: Tensor) -> Any:
    """The module with our kernels of a function for x, or None: torch."""
    found = choice(Calls(function, x.device, x.dtype)).kernels
    return None if found == "torch" or x.shape[-1] == 0 else importlib.import_module(f"..{found}.losses", __package__)


def _rows(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(M, V) logits and (M,) targets."""
    if logits.dim() == 0 or target.shape != logits.shape[:-1]:
        raise ValueError(f"target is {tuple(target.shape)}; it must have the shape of the logits, {tuple(logits.shape)}, without the last")
    if target.dtype is not torch.int64:
        raise TypeError(f"target is {target.dtype}; it must be int64")
    if target.device != logits.device:
        raise TypeError(f"target is on {target.device}; it must be on {logits.device}, as the logits are")
    return logits.reshape(target.numel(), logits.shape[-1]), target.reshape(-1)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype is torch.float64 else x.float()


def _each(x: Tensor) -> Tensor:
    """An empty result for each row."""
    return x.new_empty(x.shape[0], dtype=torch.float64 if x.dtype is torch.float64 else torch.float32)


@custom_op("softbench::cross_entropy", mutates_args=())
def _cross_entropy(
    x: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float, reduction: int = NONE
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, lse, the number of rows that are not ignored). The number has shape (1,), or (0,) without a reduction."""
    loss, lse = _loss_of_rows(x, target, ignore_index, label_smoothing, z_loss, softcap)
    if reduction == NONE:
        return loss, lse, loss.new_empty(0)
    counted = (target != ignore_index).sum(dtype=loss.dtype).view(1)
    return loss.sum() if reduction == SUM else loss.sum() / counted[0], lse, counted


def _loss_of_rows(
    x: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float
) -> tuple[Tensor, Tensor]:
    """(loss, lse)."""
    if (kernels := _kernels("cross_entropy", x)) is not None:
        loss, lse = kernels.cross_entropy_forward(
            x, target, ignore_index=ignore_index, label_smoothing=label_smoothing, z_loss=z_loss, softcap=softcap
        )
        return loss, lse
    z = softcap * torch.tanh(_wide(x) / softcap) if softcap else _wide(x)
    lse = aten.logsumexp(z, [-1])
    loss = aten.cross_entropy_loss(z, target, None, NONE, ignore_index, label_smoothing)
    if z_loss:
        loss = loss + torch.where(target == ignore_index, 0.0, z_loss * lse.square())
    return loss, lse


@custom_op("softbench::cross_entropy_backward", mutates_args=())
def _cross_entropy_backward(
    x: Tensor, target: Tensor, lse: Tensor, dloss: Tensor, counted: Tensor, ignore_index: int, label_smoothing: float, z_loss: float,
    softcap: float, reduction: int = NONE,
) -> Tensor:  # fmt: skip
    """dx, with x's dtype. `dloss` is the gradient of a number with a reduction."""
    if reduction != NONE:
        dloss = (dloss / counted[0] if reduction == MEAN else dloss).expand(len(x))
    if (kernels := _kernels("cross_entropy", x)) is not None:
        dx: Tensor = kernels.cross_entropy_backward(
            x, target, lse, dloss, ignore_index=ignore_index, label_smoothing=label_smoothing, z_loss=z_loss, softcap=softcap
        )
        return dx
    u = torch.tanh(_wide(x) / softcap) if softcap else None
    z = _wide(x) if u is None else softcap * u
    dz = torch.exp(z - lse[:, None]) * (1 + 2 * z_loss * lse)[:, None] - label_smoothing / max(1, x.shape[1])
    ignored = target == ignore_index
    at = torch.where(ignored, 0, target)[:, None]
    dz = dz.scatter_add(1, at, dz.new_full(at.shape, label_smoothing - 1))
    if u is not None:
        dz = dz * (1 - u.square())
    return torch.where(ignored[:, None], 0.0, dz * dloss[:, None]).to(x.dtype)


@custom_op("softbench::logprob", mutates_args=())
def _logprob(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(logprob, entropy, lse)."""
    if (kernels := _kernels("logprob", x)) is not None:
        found, entropy, lse = kernels.logprob_forward(x, target)
        return found, entropy, lse
    wide = _wide(x)
    y = aten.log_softmax.int(wide, -1)
    entropy = -(torch.exp(y) * y.clamp(min=LOWEST)).sum(dim=-1)
    return y.gather(1, target[:, None])[:, 0], entropy, aten.logsumexp(wide, [-1])


@custom_op("softbench::logprob_backward", mutates_args=())
def _logprob_backward(x: Tensor, target: Tensor, lse: Tensor, entropy: Tensor, dlogprob: Tensor | None, dentropy: Tensor | None) -> Tensor:
    """dx, with x's dtype. A gradient that is None is 0."""
    dlogprob, dentropy = (torch.zeros_like(lse) if given is None else given for given in (dlogprob, dentropy))
    if (kernels := _kernels("logprob", x)) is not None:
        dx: Tensor = kernels.logprob_backward(x, target, lse, entropy, dlogprob, dentropy)
        return dx
    y = _wide(x) - lse[:, None]
    p = torch.exp(y)
    of_entropy = torch.where(p == 0, 0.0, p * (y + entropy[:, None])) * dentropy[:, None]
    return (-p * dlogprob[:, None] - of_entropy).scatter_add(1, target[:, None], dlogprob[:, None]).to(x.dtype)


@_cross_entropy.register_fake
def _(
    x: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float, reduction: int = NONE
) -> tuple[Tensor, Tensor, Tensor]:
    lse = _each(x)
    return lse.new_empty(()) if reduction else _each(x), lse, lse.new_empty(1 if reduction else 0)


@_logprob.register_fake
def _(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _each(x), _each(x), _each(x)


@_cross_entropy_backward.register_fake
@_logprob_backward.register_fake
def _(x: Tensor, *_others: Any) -> Tensor:
    return x.new_empty(x.shape)


def _save_loss(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, target, *ctx.options = inputs
    _, lse, counted = output
    ctx.mark_non_differentiable(lse, counted)
    ctx.save_for_backward(x, target, lse, counted)


def _save_logprob(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, entropy, lse = output
    ctx.set_materialize_grads(False)  # a DTensor mixes with no zeros of its parts
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(*inputs, lse, entropy)


def _of_loss(ctx: Any, dloss: Tensor, _dlse: Tensor, _dcounted: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, counted = ctx.saved_tensors
    return _cross_entropy_backward(*tensors, dloss, counted, *ctx.options), *[None] * (1 + len(ctx.options))


def _of_logprob(ctx: Any, dlogprob: Tensor, dentropy: Tensor, _dlse: Tensor) -> tuple[Tensor | None, ...]:
    return _logprob_backward(*ctx.saved_tensors, dlogprob, dentropy), None


_cross_entropy.register_autograd(_of_loss, setup_context=_save_loss)
_logprob.register_autograd(_of_logprob, setup_context=_save_logprob)
extension.implement("cross_entropy", "logprob")
register_sharding(sharding.of_loss, torch.ops.softbench.cross_entropy)
register_sharding(sharding.of_rows(1), torch.ops.softbench.cross_entropy_backward, torch.ops.softbench.logprob_backward)
register_sharding(sharding.of_rows(3), torch.ops.softbench.logprob)
