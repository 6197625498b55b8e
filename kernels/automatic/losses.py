"""`cross_entropy` and `logprob` of logits by the fastest kernels that work here, by the operators of `loss_operators.py`.

`choice.py` has the rule by which the logits choose. torch's operators compute what our kernels do not: other devices, dtypes and strides,
probabilities as targets, weights with smoothing or z-loss, transforms of `torch.func` and forward mode. Each of the functions decides once.
"""

import importlib
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import _reduction

from ..common import extension, sharding
from ..common.losses import Options, check_arguments
from ..common.rows import AUTOCASTS, DTYPES, around, is_strided, once, transformed
from .choice import LEAST_OVER_COLUMNS, which
from .loss_operators import (
    NONE,
    REDUCTIONS,
    SUM,
    _cross_entropy,
    _cross_entropy_backward,
    _formula_of_logprob,
    _has_kernels,
    _kernels,
    _logits,
    _logprob,
    _lse,
    _rows,
    _wide,
    aten,
)

_torchs_cross_entropy: Any = torch._C._nn.cross_entropy_loss
"""aten::cross_entropy_loss, with torch's errors for arguments of wrong types."""
WITHOUT_GROUP = "shard is given without process_group; give both, or neither"


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    dim: int = 1,
    dtype: torch.dtype | None = None,
    z_loss: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    lse: Tensor | None = None,
    return_lse: bool = False,
    return_z_loss: bool = False,
    return_accuracy: bool = False,
    return_predictions: bool = False,
    inplace_backward: bool = False,
    process_group: Any = None,
    shard: Sequence[int] | None = None,
    invariant: bool = False,
) -> Any:
    """The cross entropy of logits `input` and `target`, as `torch.nn.functional.cross_entropy` has it, and more.

    The arguments before `dim` are torch's. Classes are in dimension 1, targets are class numbers or probabilities.

    - dim: the dimension of the classes. With -1, logits (..., V) with targets (...) are read in place.
    - dtype: of the loss. None: that of the logits, or float32 under autocast. Arithmetic is in float32, or float64 for logits in float64.
    - z_loss adds z_loss * lse^2 to the loss of each row (PaLM, arXiv:2204.02311, section 5), which has no weight.
    - softcap, logit_scale: the logits are z = softcap * tanh(logit_scale * input / softcap), or z = logit_scale * input without a softcap.
    - lse: the log of the sum of exp(z) of each row, in target's shape, as another call returned it. It takes the place of that of the
      logits, and may count classes that are elsewhere. It has no gradient, and that of the logits is exp(z - lse) at classes other than
      the target. For class numbers without weight.
    - return_lse, return_z_loss, return_accuracy, return_predictions: the result is a tuple of the loss and these, in this order. lse is of
      each row, and the z-loss is the part that is in the loss. The accuracy is the share of rows whose largest logit is the target's, or
      0 and 1 for reduction="none". Predictions are the classes of the largest logits. They have no gradient, and the first three are
      float32.
    - invariant: as of `softmax`. The loss of a row (reduction="none"), lse, and the gradient but for its factor then do not depend on other
      rows. It excludes lse, inplace_backward and process_group.
    - inplace_backward: the gradient overwrites the logits, where our kernels run outside of a compiler. Other gradients that need the
      logits then raise torch's error on tensors modified in place.
    - process_group: the classes are split across the ranks of this `torch.distributed.ProcessGroup`, and input has those of this rank. All
      ranks give the same class numbers and get the same loss. `shard` is the rank's first class and the number of all classes; without it
      the ranks exchange the sizes of their parts in each call. A target that no rank has makes its row NaN. A DTensor needs neither. It
      excludes weight, lse, return_... and inplace_backward.
    - Gradients: of any order, with respect to input, weight and probabilities; once with lse, inplace_backward or process_group. That of
      the logits has their dtype. Kept for it are the logits and two numbers a row. Forward mode and `torch.func` run torch's operators.
    - Targets out of range other than ignore_index: torch raises IndexError on the CPU. On a CUDA device our kernels make the loss and the
      gradient of the row NaN, without an error, where torch stops the device by an assertion.
    - torch.compile, CUDA graphs and any strides are supported, fullgraph=True unless process_group is given. Classes in another dimension
      than the last, as of images (N, C, H, W), are read in place.

    Raises:
        IndexError, RuntimeError, TypeError, ValueError: what torch raises for its arguments.
        ValueError: one of the other arguments is out of range, lse does not fit, or torch alone computes a call with `invariant`.
        TypeError: one of them is not a number.
    """
    # No argument is keyword-only: CPython looks up each default of those in a dictionary, which takes longer than all of these lines.
    others = return_lse or return_z_loss or return_accuracy or return_predictions
    special = weight is not None or lse is not None or others or inplace_backward or invariant or process_group is not None
    if not special and size_average is None and reduce is None and shard is None and not torch.compiler.is_dynamo_compiling():
        found = extension.entries.cross_entropy(
            input, target, reduction, ignore_index, label_smoothing, z_loss, softcap, logit_scale, dim, dtype
        )
        if found is not None:
            return found
    if invariant and (lse is not None or inplace_backward or process_group is not None):
        raise ValueError("invariant=True excludes lse, inplace_backward and process_group")
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    number = REDUCTIONS.get(reduction) if isinstance(reduction, str) else None
    if softcap is None:
        softcap = 0.0
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype {dtype!r}: must be a floating-point dtype")
    if shard is not None and process_group is None:
        raise ValueError(WITHOUT_GROUP)
    if process_group is not None or (type(input) is not Tensor and sharding.is_distributed(input)):
        refused = {"weight": weight is not None, "lse": lse is not None, "return_...": others, "inplace_backward": inplace_backward}
        numbers = {"label_smoothing": label_smoothing, "z_loss": z_loss, "softcap": softcap, "logit_scale": logit_scale}
        named = ", ".join(name for name, is_given in refused.items() if is_given)
        wide = torch.float64 if input.dtype is torch.float64 else torch.float32
        whole = partial(cross_entropy, reduction="none", dim=-1, dtype=wide)
        split: Tensor | None = _parallel().loss_of(
            input, target, process_group, shard, reduction, whole, dim=dim, refused=named, ignore_index=ignore_index, **numbers
        )
        if split is not None:
            return split.to(_result_dtype(input, dtype))
    if number is None:
        number = _reduction.get_enum(reduction)
    if z_loss or softcap or logit_scale != 1.0:
        check_arguments({}, ignore_index, z_loss=z_loss, softcap=softcap, logit_scale=logit_scale)
    if lse is not None:
        check_arguments({"target": target, "lse": lse}, ignore_index)
        _check_lse(lse, target, weight)
    options = Options(ignore_index, label_smoothing, z_loss, softcap, logit_scale)
    given, needs_lse = _rows_for_kernels(input, target, weight, dim, options, lse, invariant), return_lse or return_z_loss
    if given is None and invariant and not (is_strided(input) and not input.numel() and _has_kernels("cross_entropy", input)):
        why = which(input, function="cross_entropy")
        told = why.why if why.kernels == "torch" else f"torch alone takes these arguments (kernels for the logits: {why})"
        raise ValueError(f"invariant=True of cross_entropy: {told}")
    if given is None:
        loss, lse = _by_torch(input, target, weight, number, dim, dtype, options, lse, needs_lse)
    else:
        rows, classes = given
        loss, lse = _by_kernels(rows, classes, target, weight, number, options, lse, inplace_backward, needs_lse, invariant)
        if loss.dtype is not (result := _result_dtype(input, dtype)):
            loss = loss.to(result)
    if not others:
        return loss
    return loss, *_others(
        input, target, lse, number, dim, ignore_index, z_loss, return_lse, return_z_loss, return_accuracy, return_predictions
    )


def _check_lse(lse: Tensor, target: Tensor, weight: Tensor | None) -> None:
    if weight is not None or target.is_floating_point():
        raise ValueError("lse is given: it is for targets that are class numbers, without weight")
    if lse.shape != target.shape or lse.dtype not in (torch.float32, torch.float64) or lse.device != target.device:
        got = f"{tuple(lse.shape)} {lse.dtype} on {lse.device}"
        raise ValueError(f"lse is {got}; it must be {tuple(target.shape)} float32 on {target.device}, a number for each target")


def _rows_for_kernels(
    input: Tensor, target: Tensor, weight: Tensor | None, dim: int, options: Options, lse: Tensor | None = None, invariant: bool = False
) -> tuple[Tensor, Tensor] | None:
    """(M, V) or (outer, V, inner) logits, and a target for each, that our kernels take.

    None where torch's operators compute the loss, or say what is wrong.
    """
    ignore_index, label_smoothing, z_loss, *_ = options
    if not is_strided(input) or not isinstance(target, Tensor) or not _has_kernels("cross_entropy", input) or transformed():
        return None
    dimensions = input.dim()
    if dimensions < 2 or not input.numel() or target.dtype is not torch.int64 or target.device != input.device:
        return None
    if not isinstance(ignore_index, int) or not isinstance(label_smoothing, float | int) or not 0 <= label_smoothing <= 1:
        return None
    if weight is not None and (
        label_smoothing or z_loss or not isinstance(weight, Tensor) or weight.shape != (input.shape[dim],)
        or weight.dtype not in (input.dtype, torch.float32) or weight.device != input.device
    ):  # fmt: skip
        return None
    logits = input
    if dim not in (-1, dimensions - 1):
        logits = input.movedim(dim, -1)
    if target.shape != logits.shape[:-1]:
        return None
    if logits is not input and not logits.is_contiguous():
        if lse is not None or invariant or input.numel() < LEAST_OVER_COLUMNS or sharding.is_distributed(input):
            return None
        return (around(input, dim % dimensions), target.reshape(-1)) if _has_kernels("cross_entropy", input, False) else None
    return (logits, target) if dimensions == 2 else (logits.reshape(target.numel(), logits.shape[-1]), target.reshape(-1))


def _by_kernels(
    rows: Tensor, classes: Tensor, target: Tensor, weight: Tensor | None, number: int, options: Options, lse: Tensor | None, inplace: bool,
    needs_lse: bool, invariant: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The loss in float32, and lse of target's shape if it is needed."""
    if inplace and (torch.compiler.is_compiling() or rows.dim() == 3 or rows.stride(1) != 1 or rows.stride(0) < rows.shape[1]):
        inplace = False  # rows that share memory have gradients of their own
    if lse is None and not inplace:
        reduced = NONE if weight is not None else number
        operator = _invariants().cross_entropy if invariant else _cross_entropy
        loss, statistics, _ = operator(rows, classes, *options.with_reduction(reduced))
    else:
        given = None if lse is None else lse.detach().reshape(-1).float()
        loss, statistics = _Loss.apply(rows, classes, given, inplace, *options)
        reduced = NONE
    if weight is not None:
        ignored = classes == options.ignore_index
        share = torch.where(ignored, 0.0, weight.float()[torch.where(ignored, 0, classes).clamp(0, rows.shape[1] - 1)])
        loss = loss * share
    if number != reduced:
        loss, total = loss.sum(), share.sum() if weight is not None else (classes != options.ignore_index).sum()
        loss = loss if number == SUM else loss / total
    lse = _lse(statistics).view(target.shape) if needs_lse else None
    return aten._unsafe_view(loss, target.shape) if number == NONE and target.dim() != 1 else loss, lse  # torch's is no view either


class _Loss(torch.autograd.Function):
    """(loss, statistics) of rows by our kernels with a given lse, or with a gradient that overwrites the logits. Gradients once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, lse: Tensor | None, inplace: bool, *given: Any) -> tuple[Tensor, Tensor]:
        options = ignore_index, label_smoothing, z_loss, softcap, logit_scale = Options(*given)
        if lse is None:
            loss, statistics, _ = _cross_entropy(x, target, *options.with_reduction(NONE))
        else:
            statistics = torch.stack([lse, torch.ones_like(lse)], 1)
            ignored = target == ignore_index
            at = torch.where(ignored, 0, target)
            outside = (at < 0) | (at >= x.shape[1])
            z = _logits(x.gather(1, at.clamp(0, x.shape[1] - 1)[:, None])[:, 0], softcap, logit_scale)
            if label_smoothing:
                z = (1 - label_smoothing) * z + label_smoothing * _logits(x, softcap, logit_scale).mean(1)
            loss = torch.where(ignored, 0.0, torch.where(outside, torch.nan, lse - z + z_loss * lse.square()))
        ctx.mark_non_differentiable(statistics)
        ctx.save_for_backward(x, target, statistics)
        ctx.inplace, ctx.options = inplace, options
        return loss, statistics

    @staticmethod
    def backward(ctx: Any, dloss: Tensor, _dstatistics: Tensor) -> tuple[Tensor | None, ...]:
        x, target, statistics = ctx.saved_tensors
        with torch.no_grad():
            if ctx.inplace and (kernels := _kernels("cross_entropy", x)) is not None:
                given = x, target, statistics, dloss.contiguous()
                dx = kernels.cross_entropy_backward(*given, **ctx.options._asdict(), out=x.detach())
                torch.autograd.graph.increment_version(x)
            else:
                dx = _cross_entropy_backward(x, target, statistics, dloss, dloss.new_empty(0), *ctx.options.with_reduction(NONE))
        return once(dx, x, dloss), *[None] * (3 + len(ctx.options))


def _by_torch(
    input: Tensor, target: Tensor, weight: Tensor | None, number: int, dim: int, dtype: torch.dtype | None, options: Options,
    given_lse: Tensor | None, needs_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(loss, lse) by torch's operators; lse is None unless something needs it."""
    ignore_index, label_smoothing, z_loss, softcap, logit_scale = options
    x = input
    if isinstance(x, Tensor) and isinstance(target, Tensor):
        if target.device != x.device:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but the logits are on {x.device} and the target is on {target.device}"
            )
        if x.dim() > 1 and dim not in (1, 1 - x.dim()):
            target = target.movedim(dim, 1) if target.shape == x.shape and target.is_floating_point() else target
            x = x.movedim(dim, 1)
        if dtype is not None or z_loss or softcap or logit_scale != 1.0 or given_lse is not None:
            dtype, x = _result_dtype(x, dtype), _logits(x, softcap, logit_scale)
            weight = None if weight is None else weight.to(x.dtype)
    loss = _torchs_cross_entropy(x, target, weight, number, ignore_index, label_smoothing)
    lse = None
    if z_loss or needs_lse or given_lse is not None:
        axis = min(1, x.dim() - 1)
        lse = aten.logsumexp(_wide(x), [axis])
        more = z_loss * lse.square()
        if given_lse is not None:
            own, lse = lse, _as_function_of(x, given_lse.detach(), axis)
            more = z_loss * lse.square() + lse - own
        if not target.is_floating_point():
            more = torch.where(target == ignore_index, 0.0, more)
        if z_loss or given_lse is not None:
            rows = more.numel() if target.is_floating_point() else (target != ignore_index).sum()
            loss = loss + (more if number == NONE else more.sum() if number == SUM else more.sum() / rows)
    return loss if dtype is None else loss.to(dtype), lse


def _as_function_of(z: Tensor, lse: Tensor, axis: int) -> Tensor:
    """lse with the gradients of any order that it has if the sum has other terms than exp(z) too."""
    terms = torch.exp(z - lse.unsqueeze(axis)).sum(axis)
    return lse + torch.log1p(terms - terms.detach())


def _others(
    input: Tensor,
    target: Tensor,
    lse: Tensor | None,
    number: int,
    dim: int,
    ignore_index: int,
    z_loss: float,
    *wanted: bool,
) -> list[Tensor]:
    """What `cross_entropy` returns beside the loss."""
    of_lse, of_z_loss, of_accuracy, of_predictions = wanted
    found: list[Tensor] = []
    hard = not target.is_floating_point()
    counts = target != ignore_index if hard else None

    def reduced(rows: Tensor, sums: bool) -> Tensor:
        rows = rows if counts is None else torch.where(counts, rows, 0.0)
        if number == NONE:
            return rows
        return rows.sum() if sums else rows.sum() / (rows.numel() if counts is None else counts.sum())

    with torch.no_grad():
        if of_lse and lse is not None:
            found.append(lse.detach())
        if of_z_loss and lse is not None:
            found.append(reduced(z_loss * lse.detach().square(), number == SUM))
        if of_accuracy or of_predictions:
            axis = dim if input.dim() > 1 else 0
            predictions = aten.argmax(input.detach(), axis)
            if of_accuracy:
                right = predictions == (target if hard else aten.argmax(target, axis))
                found.append(reduced(right.float(), False))
            if of_predictions:
                found.append(predictions)
    return found


def _invariants() -> Any:
    from . import invariant

    return invariant


@cache
def _parallel() -> Any:
    """The functions of a vocabulary that is split across processes; few programs import torch.distributed."""
    return importlib.import_module(".vocabulary_parallel", __package__)


def logprob(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    temperature: float = 1.0,
    process_group: Any = None,
    shard: Sequence[int] | None = None,
    invariant: bool = False,
) -> tuple[Tensor, Tensor]:
    """(logprob, entropy) of logits (..., V) and class numbers `target` (...) of int64, each of target's shape.

    With z = logits / temperature, logprob is log_softmax(z) at the target, and entropy is -sum(p log p) of the row. Where the target is
    ignore_index, logprob is 0 and has no gradient; the entropy is that of the row. Both are float32, or float64 for logits in float64, and
    differentiable as a `cross_entropy`. Otherwise as it, except that torch raises RuntimeError for a target out of range on the CPU.

    Raises:
        ValueError: the shapes do not fit, temperature is not positive and finite, or torch alone computes a call with `invariant`.
        TypeError: target is not int64 or on another device, or an option is not a number.
    """
    if shard is not None and process_group is None:
        raise ValueError(WITHOUT_GROUP)
    if (process_group is not None or (type(logits) is not Tensor and sharding.is_distributed(logits))) and not invariant:
        split: tuple[Tensor, Tensor] = _parallel().logprob_of(logits, target, process_group, shard, logprob, ignore_index, temperature)
        return split
    if (
        not invariant
        and not torch.compiler.is_dynamo_compiling()
        and (results := extension.entries.logprob(logits, target, ignore_index, temperature)) is not None
    ):
        both: tuple[Tensor, Tensor] = results
        return both
    check_arguments({"logits": logits, "target": target}, ignore_index, temperature=temperature)
    rows, classes = _rows(logits, target)
    if invariant:
        if process_group is not None or transformed():
            raise ValueError("invariant=True of logprob excludes process_group and torch.func")
        operator: Any = _invariants().logprob
    else:
        operator = _logprob if _has_kernels("logprob", rows) and rows.numel() > 0 and not transformed() else _formula_of_logprob
    found, entropy, _ = operator(rows, classes, ignore_index, 1 / temperature)
    return found.view(target.shape), entropy.view(target.shape)


def _result_dtype(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of a loss, as torch has it."""
    kind = x.device.type
    if dtype is None and x.dtype in DTYPES[1:] and kind in AUTOCASTS and torch.is_autocast_enabled(kind):
        return torch.float32
    return dtype or x.dtype
