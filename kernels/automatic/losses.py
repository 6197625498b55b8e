"""`cross_entropy` and `logprob` of logits by the fastest kernels that work here, as differentiable PyTorch operators.

`choice.py` has the rule by which the logits choose. torch's operators compute what our kernels do not: other devices, dtypes and strides,
probabilities as targets, weights with smoothing or z-loss, transforms of `torch.func` and forward mode. Each of the functions decides once.

The operators are `softbench::cross_entropy`, `softbench::logprob` and their backwards, of logits (M, V). torch.compile sees opaque calls.
The backward computes the gradient from the logits and lse, so nothing of the logits' size is kept besides the logits. Where
the extension in C++ is built, it has their autograd and launches the CUDA kernels (`softbench.kernels.common.extension`).
"""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op
from torch.nn import _reduction

from ..common import extension, sharding
from ..common.losses import NO_CLASS, check_arguments
from ..common.registration import BACKWARD_FLOPS, FORWARD_FLOPS, register_sharding, register_transforms
from ..common.rows import DTYPES, is_strided, transformed
from .choice import FORGETS, Calls, choice

aten = torch.ops.aten  # not by names that somebody may have replaced
_torchs_cross_entropy: Any = torch._C._nn.cross_entropy_loss
"""aten::cross_entropy_loss, with torch's errors for arguments of wrong types."""
NONE, MEAN, SUM = range(3)
REDUCTIONS = {"mean": MEAN, "sum": SUM, "none": NONE}
"""The numbers of the operator's reductions, as in operators.h."""
LOWEST = torch.finfo(torch.float32).min
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
    *,
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
    - return_lse, return_z_loss, return_accuracy, return_predictions: the result is a tuple of the loss and these, in this order: lse of
      each row; the z-loss that is in the loss; the share of rows whose largest logit is the target's, or 0 and 1 for reduction="none"; and
      the class of the largest logit. They have no gradient, and the first three are float32.
    - inplace_backward: the gradient overwrites the logits, where our kernels run outside of a compiler. Other gradients that need the
      logits then raise torch's error on tensors modified in place.
    - process_group: the classes are split across the ranks of this `torch.distributed.ProcessGroup`, and input has those of this rank. All
      ranks give the same class numbers and get the same loss. `shard` is the rank's first class and the number of all classes; without it
      the ranks exchange the sizes of their parts in each call. A target that no rank has makes its row NaN. A DTensor needs neither. It
      excludes weight, lse, return_... and inplace_backward.
    - Gradients: of any order, with respect to input, weight and probabilities; once with lse, inplace_backward or process_group. That of
      the logits has their dtype. Kept for it are the logits and lse. Forward mode and `torch.func` run torch's operators.
    - Targets out of range other than ignore_index: torch raises IndexError on the CPU. On a CUDA device our kernels make the loss and the
      gradient of the row NaN, without an error, where torch stops the device by an assertion.
    - torch.compile(fullgraph=True), CUDA graphs and any strides are supported. Rows without adjacent elements are copied.

    Raises:
        IndexError, RuntimeError, TypeError, ValueError: what torch raises for its arguments.
        ValueError: one of the other arguments is out of range, or lse does not fit.
        TypeError: one of them is not a number.
    """
    others = return_lse or return_z_loss or return_accuracy or return_predictions
    special = weight is not None or lse is not None or others or inplace_backward
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
        split: Tensor | None = _parallel().loss_of(
            input, target, process_group, shard, reduction, dim=dim, refused=named, ignore_index=ignore_index, **numbers
        )
        if split is not None:
            return split.to(_result_dtype(input, dtype))
    if not special and not torch.compiler.is_compiling():
        found = extension.entries.cross_entropy(
            input, target, number, ignore_index, label_smoothing, z_loss, softcap, logit_scale, dim, dtype
        )
        if found is not None:
            return found
    if number is None:
        number = _reduction.get_enum(reduction)
    if z_loss or softcap or logit_scale != 1.0:
        check_arguments({}, ignore_index, z_loss=z_loss, softcap=softcap, logit_scale=logit_scale)
    if lse is not None:
        check_arguments({"target": target, "lse": lse}, ignore_index)
        _check_lse(lse, target, weight)
    options = ignore_index, label_smoothing, z_loss, softcap
    given = _rows_for_kernels(input, target, weight, dim, options)
    if given is None:
        loss, lse = _by_torch(input, target, weight, number, dim, dtype, *options, logit_scale, lse, return_lse or return_z_loss)
    else:
        rows, classes = given
        loss, lse = _by_kernels(rows, classes, target, weight, number, *options, logit_scale, lse, inplace_backward)
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
    input: Tensor, target: Tensor, weight: Tensor | None, dim: int, options: tuple[int, float, float, float]
) -> tuple[Tensor, Tensor] | None:
    """(M, V) logits and (M,) targets that our kernels take; None where torch's operators compute the loss, or say what is wrong."""
    ignore_index, label_smoothing, z_loss, _ = options
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
        if not logits.is_contiguous():
            return None
    if target.shape != logits.shape[:-1]:
        return None
    return (logits, target) if dimensions == 2 else (logits.reshape(target.numel(), logits.shape[-1]), target.reshape(-1))


def _by_kernels(
    rows: Tensor, classes: Tensor, target: Tensor, weight: Tensor | None, number: int, ignore_index: int, label_smoothing: float,
    z_loss: float, softcap: float, logit_scale: float, lse: Tensor | None, inplace: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The loss in float32, and lse of target's shape."""
    options = ignore_index, label_smoothing, z_loss, softcap
    if inplace and (torch.compiler.is_compiling() or rows.stride(1) != 1 or rows.stride(0) < rows.shape[1]):
        inplace = False  # rows that share memory have gradients of their own
    if lse is None and not inplace:
        reduced = NONE if weight is not None else number
        loss, lse, _ = _cross_entropy(rows, classes, *options, reduced, logit_scale)
    else:
        loss, lse = _Loss.apply(rows, classes, None if lse is None else lse.detach().reshape(-1).float(), inplace, *options, logit_scale)
        reduced = NONE
    if weight is not None:
        ignored = classes == ignore_index
        share = torch.where(ignored, 0.0, weight.float()[torch.where(ignored, 0, classes).clamp(0, rows.shape[1] - 1)])
        loss = loss * share
    if number != reduced:
        loss, total = loss.sum(), share.sum() if weight is not None else (classes != ignore_index).sum()
        loss = loss if number == SUM else loss / total
    if target.dim() == 1:
        return loss, lse
    return loss.view(target.shape) if number == NONE else loss, lse.view(target.shape)


class _Loss(torch.autograd.Function):
    """(loss, lse) of rows by our kernels with a given lse, or with a gradient that overwrites the logits. Gradients once."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, target: Tensor, lse: Tensor | None, inplace: bool, ignore_index: int, label_smoothing: float, z_loss: float,
        softcap: float, logit_scale: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        options = ignore_index, label_smoothing, z_loss, softcap
        if lse is None:
            loss, lse, _ = _cross_entropy(x, target, *options, NONE, logit_scale)
        else:
            ignored = target == ignore_index
            at = torch.where(ignored, 0, target)
            outside = (at < 0) | (at >= x.shape[1])
            z = _logits(x.gather(1, at.clamp(0, x.shape[1] - 1)[:, None])[:, 0], softcap, logit_scale)
            if label_smoothing:
                z = (1 - label_smoothing) * z + label_smoothing * _logits(x, softcap, logit_scale).mean(1)
            loss = torch.where(ignored, 0.0, torch.where(outside, torch.nan, lse - z + z_loss * lse.square()))
        ctx.mark_non_differentiable(lse)
        ctx.save_for_backward(x, target, lse)
        ctx.inplace, ctx.options = inplace, (*options, logit_scale)
        return loss, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: Tensor, _dlse: Tensor) -> tuple[Tensor | None, ...]:
        x, target, lse = ctx.saved_tensors
        *options, logit_scale = ctx.options
        if ctx.inplace and (kernels := _kernels("cross_entropy", x)) is not None:
            names = ("ignore_index", "label_smoothing", "z_loss", "softcap", "logit_scale")
            given = dict(zip(names, ctx.options, strict=True))
            dx = kernels.cross_entropy_backward(x, target, lse, dloss.contiguous(), **given, out=x.detach())
            torch.autograd.graph.increment_version(x)
        else:
            dx = _cross_entropy_backward(x, target, lse, dloss, lse.new_empty(0), *options, NONE, logit_scale)
        return dx, *[None] * (3 + len(ctx.options))


def _by_torch(
    input: Tensor, target: Tensor, weight: Tensor | None, number: int, dim: int, dtype: torch.dtype | None, ignore_index: int,
    label_smoothing: float, z_loss: float, softcap: float, logit_scale: float, given_lse: Tensor | None, needs_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(loss, lse) by torch's operators; lse is None unless something needs it."""
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
) -> tuple[Tensor, Tensor]:
    """(logprob, entropy) of logits (..., V) and class numbers `target` (...) of int64, each of target's shape.

    With z = logits / temperature, logprob is log_softmax(z) at the target, and entropy is -sum(p log p) of the row. Where the target is
    ignore_index, logprob is 0 and has no gradient; the entropy is that of the row. Both are float32, or float64 for logits in float64, and
    differentiable as a `cross_entropy`. Otherwise as it, except that torch raises RuntimeError for a target out of range on the CPU.

    Raises:
        ValueError: the shapes do not fit, or temperature is not positive and finite.
        TypeError: target is not int64 or on another device, or an option is not a number.
    """
    if shard is not None and process_group is None:
        raise ValueError(WITHOUT_GROUP)
    if process_group is not None or (type(logits) is not Tensor and sharding.is_distributed(logits)):
        split: tuple[Tensor, Tensor] = _parallel().logprob_of(logits, target, process_group, shard, ignore_index, temperature)
        return split
    if not torch.compiler.is_compiling() and (results := extension.entries.logprob(logits, target, ignore_index, temperature)) is not None:
        both: tuple[Tensor, Tensor] = results
        return both
    check_arguments({"logits": logits, "target": target}, ignore_index, temperature=temperature)
    rows, classes = _rows(logits, target)
    ours = _has_kernels("logprob", rows) and rows.numel() > 0 and not transformed()
    found, entropy, _lse = (_logprob if ours else _formula_of_logprob)(rows, classes, ignore_index, 1 / temperature)
    return found.view(target.shape), entropy.view(target.shape)


def _has_kernels(function: str, x: Tensor) -> bool:
    """Whether our kernels take x."""
    key = function, x.device, x.dtype
    found = _ours.get(key)
    if found is None:
        found = _ours[key] = _decided(*key)
    return found


_ours: dict[tuple[str, torch.device, torch.dtype], bool] = {}
FORGETS.append(_ours.clear)


@torch.compiler.assume_constant_result
def _decided(function: str, device: torch.device, dtype: torch.dtype) -> bool:
    return choice(Calls(function, device, dtype)).kernels != "torch"


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


def _logits(x: Tensor, softcap: float, logit_scale: float) -> Tensor:
    """z of x, in float32 or float64."""
    z = _wide(x)
    if logit_scale != 1.0:
        z = z * logit_scale
    return softcap * torch.tanh(z / softcap) if softcap else z


def _result_dtype(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of a loss, as torch has it."""
    kind = x.device.type
    if dtype is None and x.dtype in DTYPES[1:] and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.float32
    return dtype or x.dtype


def _each(x: Tensor) -> Tensor:
    """An empty result for each row."""
    return x.new_empty(x.shape[0], dtype=torch.float64 if x.dtype is torch.float64 else torch.float32)


@custom_op("softbench::cross_entropy", mutates_args=())
def _cross_entropy(
    x: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float, reduction: int = NONE,
    logit_scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(loss, lse, the number of rows that are not ignored). The number has shape (1,), or (0,) without a reduction."""
    options = ignore_index, label_smoothing, z_loss, softcap
    if (kernels := _kernels("cross_entropy", x)) is None:
        return _formula_of_loss(x, target, *options, reduction, logit_scale)
    given = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "z_loss": z_loss, "softcap": softcap}
    loss, lse = kernels.cross_entropy_forward(x, target, **given, logit_scale=logit_scale)
    return _reduced(loss, lse, target, ignore_index, reduction)


def _reduced(loss: Tensor, lse: Tensor, target: Tensor, ignore_index: int, reduction: int) -> tuple[Tensor, Tensor, Tensor]:
    if reduction == NONE:
        return loss, lse, loss.new_empty(0)
    counted = (target != ignore_index).sum(dtype=loss.dtype).view(1)
    return loss.sum() if reduction == SUM else loss.sum() / counted[0], lse, counted


def _formula_of_loss(
    x: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float, reduction: int = NONE,
    logit_scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The operator by torch's operators."""
    z = _logits(x, softcap, logit_scale)
    lse = aten.logsumexp(z, [-1])
    loss = aten.cross_entropy_loss(z, target, None, NONE, ignore_index, label_smoothing)
    if z_loss:
        loss = loss + torch.where(target == ignore_index, 0.0, z_loss * lse.square())
    return _reduced(loss, lse, target, ignore_index, reduction)


@custom_op("softbench::cross_entropy_backward", mutates_args=())
def _cross_entropy_backward(
    x: Tensor, target: Tensor, lse: Tensor, dloss: Tensor, counted: Tensor, ignore_index: int, label_smoothing: float, z_loss: float,
    softcap: float, reduction: int = NONE, logit_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """dx, with x's dtype. `dloss` is the gradient of a number with a reduction."""
    options = ignore_index, label_smoothing, z_loss, softcap
    if (kernels := _kernels("cross_entropy", x)) is None:
        return _gradient_of_loss(x, target, lse, dloss, counted, *options, reduction, logit_scale)
    given = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "z_loss": z_loss, "softcap": softcap}
    dx: Tensor = kernels.cross_entropy_backward(x, target, lse, _of_rows(x, dloss, counted, reduction), **given, logit_scale=logit_scale)
    return dx


def _of_rows(x: Tensor, dloss: Tensor, counted: Tensor, reduction: int) -> Tensor:
    """The gradient of the loss of each row."""
    return dloss if reduction == NONE else (dloss / counted[0] if reduction == MEAN else dloss).expand(len(x))


def _gradient_of_loss(
    x: Tensor, target: Tensor, lse: Tensor, dloss: Tensor, counted: Tensor, ignore_index: int, label_smoothing: float, z_loss: float,
    softcap: float, reduction: int = NONE, logit_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """dx by torch's operators."""
    dloss = _of_rows(x, dloss, counted, reduction)
    z = _logits(x, softcap, logit_scale)
    dz = torch.exp(z - lse[:, None]) * (1 + 2 * z_loss * lse)[:, None] - label_smoothing / max(1, x.shape[1])
    ignored = target == ignore_index
    at = torch.where(ignored, 0, target)[:, None]
    dz = dz.scatter_add(1, at, torch.full_like(at, label_smoothing - 1, dtype=dz.dtype))
    if softcap:
        dz = dz * (1 - (z / softcap).square())
    return torch.where(ignored[:, None], 0.0, dz * (dloss * logit_scale)[:, None]).to(x.dtype)


def _differentiable_gradient_of_loss(x: Tensor, target: Tensor, _lse: Tensor, dloss: Tensor, counted: Tensor, *given: Any) -> Tensor:
    """dx as a function of x alone, which lse is one of too."""
    softcap, logit_scale = given[3], given[5] if len(given) > 5 else 1.0
    lse = aten.logsumexp(_logits(x, softcap, logit_scale), [-1])
    return _gradient_of_loss(x, target, lse, dloss, counted, *given)


@custom_op("softbench::logprob", mutates_args=())
def _logprob(x: Tensor, target: Tensor, ignore_index: int = NO_CLASS, logit_scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """(logprob, entropy, lse)."""
    if (kernels := _kernels("logprob", x)) is None:
        return _formula_of_logprob(x, target, ignore_index, logit_scale)
    found, entropy, lse = kernels.logprob_forward(x, target, ignore_index=ignore_index, logit_scale=logit_scale)
    return found, entropy, lse


def _formula_of_logprob(x: Tensor, target: Tensor, ignore_index: int = NO_CLASS, logit_scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """The operator by torch's operators."""
    z = _logits(x, 0.0, logit_scale)
    y = aten.log_softmax.int(z, -1)
    entropy = -(torch.exp(y) * y.clamp(min=LOWEST)).sum(dim=-1)
    ignored = target == ignore_index
    found = y.gather(1, torch.where(ignored, 0, target)[:, None])[:, 0]
    return torch.where(ignored, 0.0, found), entropy, aten.logsumexp(z, [-1])


@custom_op("softbench::logprob_backward", mutates_args=())
def _logprob_backward(
    x: Tensor, target: Tensor, lse: Tensor, entropy: Tensor, dlogprob: Tensor | None, dentropy: Tensor | None,
    ignore_index: int = NO_CLASS, logit_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """dx, with x's dtype. A gradient that is None is 0."""
    if (kernels := _kernels("logprob", x)) is None:
        return _gradient_of_logprob(x, target, lse, entropy, dlogprob, dentropy, ignore_index, logit_scale)
    dlogprob, dentropy = (torch.zeros_like(lse) if given is None else given for given in (dlogprob, dentropy))
    dx: Tensor = kernels.logprob_backward(x, target, lse, entropy, dlogprob, dentropy, ignore_index=ignore_index, logit_scale=logit_scale)
    return dx


def _gradient_of_logprob(
    x: Tensor, target: Tensor, lse: Tensor, entropy: Tensor, dlogprob: Tensor | None, dentropy: Tensor | None,
    ignore_index: int = NO_CLASS, logit_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """dx by torch's operators."""
    dlogprob, dentropy = (torch.zeros_like(lse) if given is None else given for given in (dlogprob, dentropy))
    y = _logits(x, 0.0, logit_scale) - lse[:, None]
    p = torch.exp(y)
    ignored = target == ignore_index
    dlogprob = torch.where(ignored, 0.0, dlogprob)[:, None]
    of_entropy = torch.where(p == 0, 0.0, p * (y + entropy[:, None])) * dentropy[:, None]
    dz = (-p * dlogprob - of_entropy).scatter_add(1, torch.where(ignored, 0, target)[:, None], dlogprob)
    return (dz * logit_scale).to(x.dtype)


def _differentiable_gradient_of_logprob(
    x: Tensor, target: Tensor, _lse: Tensor, _entropy: Tensor, dlogprob: Tensor | None, dentropy: Tensor | None,
    ignore_index: int = NO_CLASS, logit_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """dx as a function of x alone, which lse and entropy are some of too."""
    _, entropy, lse = _formula_of_logprob(x, target, ignore_index, logit_scale)
    return _gradient_of_logprob(x, target, lse, entropy, dlogprob, dentropy, ignore_index, logit_scale)


@_cross_entropy.register_fake
def _(
    x: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float, reduction: int = NONE,
    logit_scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    lse = _each(x)
    return lse.new_empty(()) if reduction else _each(x), lse, lse.new_empty(1 if reduction else 0)


@_logprob.register_fake
def _(x: Tensor, target: Tensor, *_options: Any) -> tuple[Tensor, Tensor, Tensor]:
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
    x, target, *ctx.options = inputs
    _, entropy, lse = output
    ctx.set_materialize_grads(False)  # a DTensor mixes with no zeros of its parts
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(x, target, lse, entropy)


def _of_loss(ctx: Any, dloss: Tensor, _dlse: Tensor, _dcounted: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, counted = ctx.saved_tensors
    backward = _differentiable_gradient_of_loss if transformed() else _cross_entropy_backward
    return backward(*tensors, dloss, counted, *ctx.options), *[None] * (1 + len(ctx.options))


def _of_logprob(ctx: Any, dlogprob: Tensor, dentropy: Tensor, _dlse: Tensor) -> tuple[Tensor | None, ...]:
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
