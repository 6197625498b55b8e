"""`cross_entropy` and `logprob` of logits whose vocabulary is split across the processes of a group.

Each rank has logits (M, V_r) of its part of the classes, and all ranks have the same targets, which number the classes of all parts. A rank
reads its logits once, by the kernels that `choice.py` names. One `all_gather` of a few numbers a row follows, from which each rank
computes the results of all classes. The gradient of a rank's logits needs no exchange.

The numbers of a row are its loss or log-probability and its statistics in the part, and for logprob the entropy. So nothing is rounded at
the size of the row's maximum. The first is NaN where the target is elsewhere. The backward of the kernels then gets the target ELSEWHERE.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..common import extension
from ..common.losses import ELSEWHERE, NO_CLASS, Options, check_arguments
from ..common.rows import DTYPES, check_no_transform, once
from .choice import without_triton
from .loss_operators import (
    NONE,
    REDUCTIONS,
    SUM,
    _cross_entropy,
    _cross_entropy_backward,
    _kernels,
    _logits as _logits_of,
    _logprob,
    _logprob_backward,
    _rows,
    _statistics,
    aten,
)

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before PyTorch 2.13
IGNORED, NO_RANKS = -100, -1
"""Targets for the backward: of a row that is ignored, and of one whose target no rank has, which becomes NaN."""


class Shard(NamedTuple):
    """Where the classes of a rank are among those of all ranks. Tensors without a dimension where no number is known."""

    first: int | Tensor
    total: int | Tensor


def loss_of(
    logits: Tensor, target: Tensor, group: dist.ProcessGroup | None, shard: Sequence[int] | None, reduction: str, whole: Callable[..., Any],
    *, dim: int, refused: str = "", **options: Any,
) -> Tensor | None:  # fmt: skip
    """The cross entropy of logits (..., V_r, ...) of the ranks of `group`, or of a DTensor (..., V, ...) without one.

    It is in float32, or in float64 for such logits. `options` are those of `Options`. `whole` gives the loss of each row of logits (..., V)
    with all classes. None for a DTensor whose vocabulary is whole, if an argument is named in `refused`, or the targets are probabilities.

    Raises:
        ValueError: `refused` names an argument, the shapes do not fit, or an option is out of range.
        TypeError: target is not int64, or an argument is not a tensor, a number or a process group.
    """
    check_arguments({"input": logits, "target": target}, options["ignore_index"])
    number = REDUCTIONS.get(reduction) if isinstance(reduction, str) else None
    if number is None:
        raise ValueError(f"{reduction!r} is not a valid value for reduction; take one of {', '.join(REDUCTIONS)}")
    if logits.dim() > 1 and dim not in (-1, logits.dim() - 1):
        logits = logits.movedim(dim, -1)
    refused = refused or ("probabilities" if target.is_floating_point() else "")
    parts = None if group is not None else Parts.of(logits, target)
    if refused and parts is not None and parts.group is None:
        return None
    if refused:
        raise ValueError(f"the vocabulary is split across processes, where cross_entropy has no {refused}; leave it out")
    if parts is None:
        return _loss(logits, target, group, shard, Options(**options), number)
    if parts.group is None:
        of_rows = whole(parts.logits, parts.target, **options)
    else:
        of_rows = _loss(parts.logits, parts.target, parts.group, parts.shard, Options(**options), NONE)
    return _reduced(parts.whole(of_rows), parts.whole(parts.target), options["ignore_index"], number)


def _loss(logits: Tensor, target: Tensor, group: Any, shard: Sequence[int] | None, options: Options, reduction: int) -> Tensor:
    numbers = options._asdict()
    check_arguments({}, numbers.pop("ignore_index"), **numbers)
    rows, classes = _rows(logits, target)
    with torch.no_grad():
        loss, *saved, of_all = _results(rows, classes, group, _place(rows, group, shard), options, reduction)
    if rows.requires_grad and torch.is_grad_enabled():
        given = *options._replace(ignore_index=IGNORED).with_reduction(reduction), of_all
        recorded = None if torch.compiler.is_dynamo_compiling() else extension.entries.record_loss(loss, rows, *saved, *given)
        loss = recorded if recorded is not None else _Loss.apply(rows, loss, saved, given)
    return loss.view(target.shape) if reduction == NONE and target.dim() != 1 else loss


def logprob_of(
    logits: Tensor, target: Tensor, group: dist.ProcessGroup | None, shard: Sequence[int] | None, whole: Callable[..., Any],
    ignore_index: int, temperature: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(logprob, entropy) as `loss_of`, each of target's shape. Raises as it."""
    check_arguments({"logits": logits, "target": target}, ignore_index, temperature=temperature)
    parts, options = None if group is not None else Parts.of(logits, target), Options(ignore_index, logit_scale=1 / temperature)
    if parts is None:
        return _log_probability(logits, target, group, shard, options)
    if parts.group is None:
        found = whole(parts.logits, parts.target, ignore_index=ignore_index, temperature=temperature)
    else:
        found = _log_probability(parts.logits, parts.target, parts.group, parts.shard, options)
    return parts.whole(found[0]), parts.whole(found[1])


def _log_probability(logits: Tensor, target: Tensor, group: Any, shard: Sequence[int] | None, options: Options) -> tuple[Tensor, Tensor]:
    rows, classes = _rows(logits, target)
    found: tuple[Tensor, Tensor] = _Logprob.apply(rows, classes, group, _place(rows, group, shard), options)
    return found if target.dim() == 1 else (found[0].view(target.shape), found[1].view(target.shape))


class Parts(NamedTuple):
    """The parts of a DTensor of logits (..., V) and of its targets on this rank."""

    logits: Tensor
    target: Tensor
    group: dist.ProcessGroup | None
    """The ranks of the vocabulary; None where it is not split."""
    shard: tuple[int, int]
    mesh: Any
    places: tuple[Any, ...]
    """The placements of a result of each row."""

    @staticmethod
    def of(logits: Any, target: Any) -> Parts:
        """Raises ValueError if two dimensions of the mesh split the vocabulary."""
        from torch.distributed.tensor import DTensor, Replicate
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        mesh, last = logits.device_mesh, logits.dim() - 1
        split = [axis for axis, place in enumerate(logits.placements) if place.is_shard(last) or place.is_shard(-1)]
        if len(split) > 1 or any(place.is_partial() for place in logits.placements):
            raise ValueError(f"the logits are placed as {logits.placements}; one dimension of the mesh may split the vocabulary")
        places = tuple(Replicate() if axis in split else place for axis, place in enumerate(logits.placements))
        if not isinstance(target, DTensor):
            target = DTensor.from_local(target, mesh, [Replicate()] * mesh.ndim, run_check=False)
        first = compute_local_shape_and_global_offset(logits.shape, mesh, logits.placements)[1][last]
        local = target.redistribute(mesh, places).to_local()
        group = mesh.get_group(split[0]) if split else None
        return Parts(logits.to_local(), local, group, (int(first), logits.shape[last]), mesh, places)

    def whole(self, of_rows: Tensor) -> Any:
        """The DTensor of which these are the rows of this rank."""
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(of_rows, self.mesh, self.places, run_check=False)


def _reduced(of_rows: Tensor, target: Tensor, ignore_index: int, reduction: int) -> Tensor:
    """The loss of rows, reduced, where they are sharded too."""
    if reduction == NONE:
        return of_rows
    return of_rows.sum() if reduction == SUM else of_rows.sum() / target.ne(ignore_index).sum()


def _place(x: Tensor, group: dist.ProcessGroup, shard: Sequence[int] | None) -> Shard:
    """The classes of this rank. Without `shard` the ranks exchange the sizes of their parts, and no rank waits for the device."""
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"process_group is a {type(group).__name__}; give a torch.distributed.ProcessGroup that this process is in")
    if not x.is_floating_point():
        raise TypeError(f"the logits are {x.dtype}; they must be of a floating-point dtype")
    check_no_transform("a split vocabulary", x)
    size = x.shape[1]
    if not size:
        raise ValueError("this rank has no classes; leave it out of process_group")
    if shard is not None:
        if not isinstance(shard, (tuple, Sequence)) or len(shard) != 2:
            raise ValueError(f"shard is {shard!r}; it must be the rank's first class and the number of all classes")
        first, total = map(int, shard)
        if not 0 <= first <= first + size <= total:
            raise ValueError(f"shard is ({first}, {total}), but the {size} classes of this rank end at {first + size}")
        return Shard(first, total)
    sizes = torch.empty(group.size(), dtype=torch.int64, device=x.device)
    _all_gather(sizes, torch.full((1,), size, device=x.device), group=group)
    return Shard(sizes[: group.rank()].sum(), sizes.sum())


def _logits(x: Tensor, options: Options) -> Tensor:
    return _logits_of(x, options.softcap, options.logit_scale)


def _flat(statistics: Tensor, *others: Tensor) -> Tensor:
    """The numbers of a rank: the statistics (M, 2), then others (M,), one after the other."""
    return torch.cat([statistics.view(-1), *others])


def _exchanged(mine: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The numbers of all ranks, (ranks, numbers)."""
    found = mine.new_empty(group.size() * mine.shape[0])
    _all_gather(found, mine, group=group)
    return found.view(group.size(), mine.shape[0])


def _of_ranks(exchanged: Tensor, rows: int) -> tuple[Tensor, ...]:
    """The maxima, the sums, and the other numbers of all ranks, each (ranks, M) in float64."""
    wide, others = exchanged.double(), exchanged.shape[1] // rows - 2 if rows else 3
    return wide[:, : 2 * rows : 2], wide[:, 1 : 2 * rows : 2], *wide[:, 2 * rows :].reshape(len(wide), others, rows).unbind(1)


def _lse_of_parts(maxima: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The maximum and the sum of all classes, and their lse less that of each part, from the statistics of the parts in float64."""
    maxima = torch.where(sums == 0, -torch.inf, maxima)  # a part of -inf alone has no maximum
    highest = maxima.amax(0).clamp(min=torch.finfo(torch.float32).min)
    whole = torch.where(sums == 0, 0.0, torch.exp(maxima - highest) * sums).sum(0)
    return highest, whole, (highest - maxima) + (whole.log() - sums.log())


def _small_kernels(x: Tensor, options: Options) -> Any:
    """The module whose Triton kernel adds up the parts in one launch; None: torch."""
    return _triton() if x.is_cuda and x.dtype in DTYPES and not options.label_smoothing else None


@functools.cache  # searching for Triton and a compiler takes the host as long as the GPU needs for 4096 rows
def _triton() -> Any:
    return None if without_triton() else importlib.import_module("..triton.vocabulary_parallel", __package__)


def _counted(target: Tensor, of_row: Tensor, shard: Shard, options: Options) -> Tensor:
    """What a row has, 0 where its target is ignored, and NaN where no rank has its target."""
    valid = (target >= 0) & (target < shard.total)
    return torch.where(target.eq(options.ignore_index), 0.0, torch.where(valid, of_row, torch.nan))


def _of_part(x: Tensor, local: Tensor, options: Options, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """(loss, statistics) of the rows of a part, the loss without z-loss. It is NaN where the target is elsewhere."""
    if _kernels("cross_entropy", x) is not None:
        given = options._replace(ignore_index=NO_CLASS, label_smoothing=smoothing, z_loss=0.0)
        loss, statistics, _ = _cross_entropy(x, local, *given.with_reduction(NONE))
        return loss, statistics
    z = _logits(x, options)
    statistics, at = _statistics(z), local.clamp(0, x.shape[1] - 1)
    below = statistics[:, :1] - z
    found = below.mean(1) if smoothing else torch.where(at == local, below.gather(1, at[:, None])[:, 0], torch.nan)
    return found + statistics[:, 1].log(), statistics


def _merged(
    of_ranks: Tensor, target: Tensor, shard: Shard, size: int, options: Options, reduction: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What all classes have, from the statistics, the loss, and with smoothing two more numbers of each part, as `_exchanged` has them.

    First comes the loss of each row, or reduced, and the statistics of rows (M, 2). Then the targets of this part for the backward (M,),
    which may be ELSEWHERE, IGNORED or NO_RANKS. Last is the number of rows that are not ignored, (1,), or (0,) without a reduction.
    """
    maxima, total, losses, *of_mean = _of_ranks(of_ranks, len(target))
    highest, whole, apart = _lse_of_parts(maxima, total)
    loss, e = torch.where(losses.isnan(), 0.0, losses + apart).sum(0), options.label_smoothing
    loss = torch.where(losses.isnan().all(0), torch.inf, loss)  # the target's part has -inf alone
    loss = torch.where((whole > 0) & whole.isfinite(), loss, torch.nan)
    if e:
        below, sizes = of_mean
        below = torch.where(total == 0, torch.inf, below)  # (lse - mean(z)) of the part
        loss = (1 - e) * loss + e * ((below + apart) * sizes).sum(0) / sizes.sum(0)
    if options.z_loss:
        loss = loss + options.z_loss * (highest + whole.log()).square()
    loss, ignored, local = _counted(target, loss, shard, options), target.eq(options.ignore_index), target - shard.first
    classes = torch.where((local >= 0) & (local < size), local, ELSEWHERE)
    classes = torch.where(ignored, IGNORED, torch.where((target < 0) | (target >= shard.total), NO_RANKS, classes))
    counted = loss.new_empty(0) if reduction == NONE else ignored.logical_not().sum(dtype=of_ranks.dtype).view(1)
    if reduction != NONE:
        loss = loss.sum() if reduction == SUM else loss.sum() / counted[0]
    statistics = torch.stack([highest, whole], 1)
    return loss.to(of_ranks.dtype), statistics.to(of_ranks.dtype), classes, counted.to(of_ranks.dtype)


def _results(
    x: Tensor, target: Tensor, group: dist.ProcessGroup, shard: Shard, options: Options, reduction: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """The loss of (M, V_r) logits, and what its backward takes: targets, statistics, the rows that count, and the number of all classes."""
    small, mine = _small_kernels(x, options), None
    if not options.label_smoothing and not torch.compiler.is_dynamo_compiling():
        mine = extension.entries.numbers_of_part(x, target, shard.first, options.softcap, options.logit_scale)
    if mine is None:
        of_rows, statistics = _of_part(x, target - shard.first, options)
        mean = []
        if options.label_smoothing:
            below, _ = _of_part(x, torch.zeros_like(target), options, 1.0)
            below = torch.where(below.isnan() & x[:, 0].isneginf(), torch.inf, below)  # a kernel multiplies 0 by the distance to this logit
            mean = [below, torch.full_like(below, x.shape[1])]
        mine = _flat(statistics, of_rows, *mean)
    of_ranks = _exchanged(mine, group)
    merge = _merged if small is None else small.merged
    loss, statistics, classes, counted = merge(of_ranks, target, shard, x.shape[1], options, reduction)
    return loss, classes, statistics, counted, int(shard.total) if options.label_smoothing else 0


class _Loss(torch.autograd.Function):
    """Records a loss whose gradient the backward of cross entropy computes, once. Where C++ does not: this takes the host longer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, saved: list[Tensor], given: tuple[Any, ...]) -> Tensor:
        ctx.save_for_backward(x, *saved)
        ctx.given = given
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        x, target, statistics, counted = ctx.saved_tensors
        with torch.no_grad():
            dx = _cross_entropy_backward(x, target, statistics, dloss, counted, *ctx.given)
        return once(dx, x, dloss), None, None, None


class _Logprob(torch.autograd.Function):
    """(logprob, entropy) of (M, V_r) logits, differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, group: dist.ProcessGroup, shard: Shard, options: Options) -> tuple[Tensor, Tensor]:
        found, entropy, statistics = _log_probabilities(x, target - shard.first, options)
        of_ranks = _exchanged(_flat(statistics, -found, entropy), group)
        loss, statistics, classes, _ = _merged(of_ranks, target, shard, x.shape[1], options, NONE)
        maxima, sums, _, entropies, *_ = _of_ranks(of_ranks, len(target))
        *_, apart = _lse_of_parts(maxima, sums)
        share = torch.exp(-apart)  # 0 of a part whose logits are all -inf
        of_row = torch.where(share == 0, 0.0, share * (entropies + apart)).sum(0).to(loss.dtype)
        ctx.save_for_backward(x, classes, statistics, of_row)
        ctx.scale = options.logit_scale
        return 0.0 - loss, of_row

    @staticmethod
    def backward(ctx: Any, dlogprob: Tensor, dentropy: Tensor) -> tuple[Tensor | None, ...]:
        x, *others = ctx.saved_tensors
        with torch.no_grad():
            dx = _logprob_backward(x, *others, dlogprob, dentropy, IGNORED, ctx.scale)
        return once(dx, x, dlogprob, dentropy), *[None] * 4


def _log_probabilities(x: Tensor, local: Tensor, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """(logprob, entropy, statistics) of a part. The logprob is NaN where the target is elsewhere."""
    if _kernels("logprob", x) is not None:
        return _logprob(x, local, NO_CLASS, options.logit_scale)
    loss, statistics = _of_part(x, local, options)
    y = aten.log_softmax.int(_logits(x, options), -1)
    return -loss, -(torch.exp(y) * y.clamp(min=torch.finfo(torch.float32).min)).sum(1), statistics
