"""`cross_entropy` and `logprob` of logits whose vocabulary is split across the processes of a group.

Each rank has logits (M, V_r) of its part of the classes, and all ranks have the same targets, which number the classes of all parts. A rank
reads its logits once, by the kernels that `choice.py` names. One `all_gather` of three or four numbers a row follows, from which each rank
computes the results of all classes. The gradient of a rank's logits needs no exchange.

The numbers of a row are a logit of the part, the distance of the part's lse from it, lse itself, and the target's logit. Of the first three
those are taken that were rounded less, and float64 adds the parts up. So nothing is rounded at the size of the row's maximum.

The kernels know no row whose target is elsewhere. They get a class of the part in its place, and that column of the gradient is written
again: `softmax - 1` becomes `softmax`, with one rounding.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..common.losses import NO_CLASS, check_arguments
from ..common.rows import DTYPES, check_no_transform
from . import losses
from .choice import without_triton
from .losses import MEAN, NONE, REDUCTIONS, SUM, _kernels, _wide

aten = torch.ops.aten
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before PyTorch 2.13
NOBODY = -1
"""An ignore_index that no class of a part has."""
WHOLE: dict[str, Any] = {"dim": -1, "dtype": torch.float32}
"""The arguments of `cross_entropy` for logits (..., V) and a float32 loss."""


class Shard(NamedTuple):
    """Where the classes of a rank are among those of all ranks. Tensors without a dimension where no number is known."""

    first: int | Tensor
    total: int | Tensor


class Options(NamedTuple):
    """The options of cross entropy, or of logprob, as `softbench.kernels.cross_entropy` has them."""

    ignore_index: int = NO_CLASS
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float = 0.0
    logit_scale: float = 1.0

    @property
    def of_logits(self) -> dict[str, float]:
        """What the kernels need to compute z of x."""
        given = {"softcap": self.softcap, "logit_scale": self.logit_scale}
        return {name: number for name, number in given.items() if number != (name == "logit_scale")}


def loss_of(
    logits: Tensor, target: Tensor, group: dist.ProcessGroup | None, shard: Sequence[int] | None, reduction: str, *, dim: int,
    refused: str = "", **options: Any,
) -> Tensor | None:  # fmt: skip
    """The cross entropy of logits (..., V_r, ...) of the ranks of `group`, or of a DTensor (..., V, ...) without one, in float32.

    `options` are those of `Options`. None for a DTensor whose vocabulary is whole, if an argument is named in `refused`, or the targets
    are probabilities.

    Raises:
        ValueError: `refused` names an argument, the shapes do not fit, or an option is out of range.
        TypeError: target is not int64, or an argument is not a tensor, a number or a process group.
    """
    check_arguments({"input": logits, "target": target}, options["ignore_index"])
    number = REDUCTIONS.get(reduction) if isinstance(reduction, str) else None
    if number is None:
        raise ValueError(f"{reduction!r} is not a valid value for reduction; take one of {', '.join(REDUCTIONS)}")
    logits = logits.movedim(dim, -1) if logits.dim() > 1 else logits
    refused = refused or ("probabilities" if target.is_floating_point() else "")
    parts = None if group is not None else Parts.of(logits, target)
    if refused and parts is not None and parts.group is None:
        return None
    if refused:
        raise ValueError(f"the vocabulary is split across processes, where cross_entropy has no {refused}; leave it out")
    if parts is None:
        return _loss(logits, target, group, shard, Options(**options), number)
    if parts.group is None:
        of_rows = losses.cross_entropy(parts.logits, parts.target, reduction="none", **WHOLE, **options)
    else:
        of_rows = _loss(parts.logits, parts.target, parts.group, parts.shard, Options(**options), NONE)
    return _reduced(parts.whole(of_rows), parts.whole(parts.target), options["ignore_index"], number)


def _loss(logits: Tensor, target: Tensor, group: Any, shard: Sequence[int] | None, options: Options, reduction: int) -> Tensor:
    numbers = options._asdict()
    check_arguments({}, numbers.pop("ignore_index"), **numbers)
    rows, classes = losses._rows(logits, target)
    loss: Tensor = _CrossEntropy.apply(rows, classes, group, _place(rows, group, shard), options, reduction)
    return loss.view(target.shape) if reduction == NONE else loss


def logprob_of(
    logits: Tensor, target: Tensor, group: dist.ProcessGroup | None, shard: Sequence[int] | None, ignore_index: int, temperature: float
) -> tuple[Tensor, Tensor]:
    """(logprob, entropy) as `loss_of`, each of target's shape. Raises as it."""
    check_arguments({"logits": logits, "target": target}, ignore_index, temperature=temperature)
    parts, options = None if group is not None else Parts.of(logits, target), Options(ignore_index, logit_scale=1 / temperature)
    if parts is None:
        return _log_probability(logits, target, group, shard, options)
    if parts.group is None:
        found = losses.logprob(parts.logits, parts.target, ignore_index=ignore_index, temperature=temperature)
    else:
        found = _log_probability(parts.logits, parts.target, parts.group, parts.shard, options)
    return parts.whole(found[0]), parts.whole(found[1])


def _log_probability(logits: Tensor, target: Tensor, group: Any, shard: Sequence[int] | None, options: Options) -> tuple[Tensor, Tensor]:
    rows, classes = losses._rows(logits, target)
    found: tuple[Tensor, Tensor] = _Logprob.apply(rows, classes, group, _place(rows, group, shard), options)
    return found[0].view(target.shape), found[1].view(target.shape)


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
        if not isinstance(shard, Sequence) or len(shard) != 2:
            raise ValueError(f"shard is {shard!r}; it must be the rank's first class and the number of all classes")
        first, total = map(int, shard)
        if not 0 <= first <= first + size <= total:
            raise ValueError(f"shard is ({first}, {total}), but the {size} classes of this rank end at {first + size}")
        return Shard(first, total)
    sizes = torch.empty(group.size(), dtype=torch.int64, device=x.device)
    _all_gather(sizes, torch.full((1,), size, device=x.device), group=group)
    return Shard(sizes[: group.rank()].sum(), sizes.sum())


class _Rows(NamedTuple):
    """The targets of rows as a part sees them."""

    at: Tensor
    """A class of the part: the target, or the nearest one. (M,)"""
    inside: Tensor
    """Whether the target is in the part, (M,)."""
    z: Tensor
    """The logit at this class, in float32 or float64, (M,)."""

    @staticmethod
    def of(x: Tensor, target: Tensor, shard: Shard, options: Options) -> tuple[_Rows, Tensor]:
        """And the target's logit, which is 0 where the target is elsewhere."""
        local = target - shard.first
        at = local.clamp(0, x.shape[1] - 1)
        inside, z = at == local, _logits(x.gather(1, at[:, None])[:, 0], options)
        return _Rows(at, inside, z), torch.where(inside, z, 0.0)


def _logits(x: Tensor, options: Options) -> Tensor:
    z = _wide(x) if options.logit_scale == 1.0 else _wide(x) * options.logit_scale
    return options.softcap * torch.tanh(z / options.softcap) if options.softcap else z


def _exchanged(payload: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The numbers of all ranks, (ranks, numbers, M)."""
    found = payload.new_empty(group.size() * payload.shape[0], payload.shape[1])
    _all_gather(found, payload, group=group)
    return found.view(group.size(), *payload.shape)


def _lse_of_parts(z: Tensor, above: Tensor, lse: Tensor) -> Tensor:
    """lse of the parts in float64: the logit z and what lse is above it, or lse alone if that was rounded less."""
    return torch.where(above.abs() < lse.abs(), z + above, lse)


def _small_kernels(x: Tensor, options: Options) -> Any:
    """The module whose Triton kernels do the small steps, each in one launch; None: torch."""
    if not x.is_cuda or x.dtype not in DTYPES or options.label_smoothing or options.of_logits or without_triton():
        return None
    return importlib.import_module("..triton.vocabulary_parallel", __package__)


def _counted(target: Tensor, of_row: Tensor, shard: Shard, options: Options) -> Tensor:
    """What a row has, 0 where its target is ignored, and NaN where no rank has its target."""
    valid = (target >= 0) & (target < shard.total)
    return torch.where(target.eq(options.ignore_index), 0.0, torch.where(valid, of_row, torch.nan))


def _statistics(x: Tensor, at: Tensor, options: Options, smoothing: float) -> tuple[Tensor, Tensor]:
    """(lse - z_at, lse) of a part, or with a smoothing of 1 (lse - mean(z), lse)."""
    if (kernels := _kernels("cross_entropy", x)) is not None:
        found: tuple[Tensor, Tensor] = kernels.cross_entropy_forward(
            x, at, ignore_index=NOBODY, label_smoothing=smoothing, **options.of_logits
        )
        return found
    z = _logits(x, options)
    y = aten.log_softmax.int(z, -1)
    return -(y.mean(1) if smoothing else y.gather(1, at[:, None])[:, 0]), aten.logsumexp(z, [1])


def _merged(of_ranks: Tensor, target: Tensor, shard: Shard, options: Options) -> tuple[Tensor, Tensor]:
    """(loss, lse) of rows, in the dtype of the numbers of all ranks."""
    z, above, lse, z_target, *of_mean = of_ranks.double().unbind(1)
    of_parts, e = _lse_of_parts(z, above, lse), options.label_smoothing
    whole = aten.logsumexp(of_parts, [0])
    loss = whole - z_target.sum(0)
    if e:
        below, sizes = of_mean  # sum of lse - z in the part, and its number of classes
        of_classes = torch.where(of_parts.isneginf(), torch.inf, below + sizes * (whole - of_parts))
        loss = (1 - e) * loss + e * of_classes.sum(0) / sizes.sum(0)
    if options.z_loss:
        loss = loss + options.z_loss * whole.square()
    return _counted(target, loss, shard, options).to(of_ranks.dtype), whole.to(of_ranks.dtype)


def _of_gradient(
    target: Tensor, lse: Tensor, dloss: Tensor, counted: Tensor | None, rows: _Rows, shard: Shard, options: Options
) -> tuple[Tensor, Tensor, Tensor]:
    """The classes for the kernel of the gradient, dloss of each row, and the column of dx at these classes."""
    of_row, ignored = dloss if counted is None else dloss / counted, target.eq(options.ignore_index)
    of_row = _counted(target, of_row, shard, options).to(lse.dtype)
    e = options.label_smoothing / int(shard.total) if options.label_smoothing else 0.0
    dz = torch.exp(rows.z - lse) * (1 + 2 * options.z_loss * lse) - e - (1 - options.label_smoothing) * rows.inside
    column = torch.where(ignored, 0.0, _of_x(dz, rows.z, options) * of_row)
    return torch.where(ignored, NOBODY, rows.at), of_row, column


class _CrossEntropy(torch.autograd.Function):
    """The loss of (M, V_r) logits, differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, group: dist.ProcessGroup, shard: Shard, options: Options, reduction: int) -> Tensor:
        small = _small_kernels(x, options)
        rows, z_target = _Rows.of(x, target, shard, options) if small is None else small.begin(x, target, *shard)
        payload = [rows.z, *_statistics(x, rows.at, options, 0.0), z_target]
        if options.label_smoothing:
            below = _statistics(x, rows.at, options, 1.0)[0]
            below = torch.where(rows.z.isneginf(), torch.inf, below)  # where a kernel multiplies 0 by the distance to this logit
            payload += [x.shape[1] * below, torch.full_like(below, x.shape[1])]
        of_ranks = _exchanged(torch.stack(payload), group)
        loss, lse = (_merged if small is None else small.merged)(of_ranks, target, shard, options)
        counted = target.ne(options.ignore_index).sum() if reduction == MEAN else None
        ctx.save_for_backward(x, target, lse, *rows)
        ctx.small, ctx.shard, ctx.options, ctx.counted = small, shard, options, counted
        return loss if reduction == NONE else loss.sum() if counted is None else loss.sum() / counted

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        x, target, lse, *of_rows = ctx.saved_tensors
        rows, options, small = _Rows(*of_rows), ctx.options, ctx.small
        make = _of_gradient if small is None else small.of_gradient
        at, of_row, column = make(target, lse, dloss, ctx.counted, rows, ctx.shard, options)
        smoothing = options.label_smoothing * x.shape[1] / int(ctx.shard.total) if options.label_smoothing else 0.0
        return _rewritten(_gradient(x, at, lse, of_row, options, smoothing), rows, column), *[None] * 5


class _Logprob(torch.autograd.Function):
    """(logprob, entropy) of (M, V_r) logits, differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, group: dist.ProcessGroup, shard: Shard, options: Options) -> tuple[Tensor, Tensor]:
        rows, z_target = _Rows.of(x, target, shard, options)
        found, entropy, lse = _log_probabilities(x, rows.at, options)
        of_ranks = _exchanged(torch.stack([rows.z, -found, lse, z_target, entropy]), group)
        *of_lse, z_targets, entropies = of_ranks.double().unbind(1)
        of_parts = _lse_of_parts(*of_lse)
        whole = aten.logsumexp(of_parts, [0])
        share = torch.exp(of_parts - whole)
        result = _counted(target, z_targets.sum(0) - whole, shard, options)
        # A part whose logits are all -inf has no share.
        of_row = torch.where(share == 0, 0.0, share * (entropies + whole - of_parts)).sum(0)
        wide = lse.dtype
        ctx.save_for_backward(x, target, whole.to(wide), of_row.to(wide), *rows)
        ctx.shard, ctx.options = shard, options
        return result.to(wide), of_row.to(wide)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dlogprob: Tensor, dentropy: Tensor) -> tuple[Tensor | None, ...]:
        x, target, lse, entropy, *of_rows = ctx.saved_tensors
        rows, options = _Rows(*of_rows), ctx.options
        dlogprob = _counted(target, dlogprob, ctx.shard, options)
        dx = _gradient_of_logprob(x, rows.at, lse, entropy, dlogprob, dentropy.contiguous(), options)
        y = rows.z - lse
        p = torch.exp(y)
        dz = dlogprob * (rows.inside.to(y.dtype) - p) - dentropy * torch.where(p == 0, 0.0, p * (y + entropy))
        return _rewritten(dx, rows, _of_x(dz, rows.z, options)), *[None] * 4


def _of_x(dz: Tensor, z: Tensor, options: Options) -> Tensor:
    """The gradient of x, from that of z."""
    if options.softcap:
        dz = dz * (1 - (z / options.softcap).square())
    return dz if options.logit_scale == 1.0 else dz * options.logit_scale


def _rewritten(dx: Tensor, rows: _Rows, column: Tensor) -> Tensor:
    return dx.scatter_(1, rows.at[:, None], column.to(dx.dtype)[:, None])


def _gradient(x: Tensor, at: Tensor, lse: Tensor, dloss: Tensor, options: Options, smoothing: float) -> Tensor:
    """dx of a part, whose column `at` is written again. `smoothing` is the part's own."""
    if (kernels := _kernels("cross_entropy", x)) is not None:
        given = {"label_smoothing": smoothing, "z_loss": options.z_loss, **options.of_logits}
        found: Tensor = kernels.cross_entropy_backward(x, at, lse, dloss, ignore_index=NOBODY, **given)
        return found
    z = _logits(x, options)
    dz = torch.exp(z - lse[:, None]) * (1 + 2 * options.z_loss * lse)[:, None] - smoothing / x.shape[1]
    return torch.where((at == NOBODY)[:, None], 0.0, _of_x(dz, z, options) * dloss[:, None]).to(x.dtype)


def _log_probabilities(x: Tensor, at: Tensor, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """(logprob, entropy, lse) of a part."""
    if (kernels := _kernels("logprob", x)) is not None:
        found: tuple[Tensor, Tensor, Tensor] = kernels.logprob_forward(x, at, **options.of_logits)
        return found
    z = _logits(x, options)
    y = aten.log_softmax.int(z, -1)
    entropy = -(torch.exp(y) * y.clamp(min=torch.finfo(torch.float32).min)).sum(1)
    return y.gather(1, at[:, None])[:, 0], entropy, aten.logsumexp(z, [1])


def _gradient_of_logprob(
    x: Tensor, at: Tensor, lse: Tensor, entropy: Tensor, dlogprob: Tensor, dentropy: Tensor, options: Options
) -> Tensor:
    """dx of a part, whose column `at` is written again."""
    if (kernels := _kernels("logprob", x)) is not None:
        found: Tensor = kernels.logprob_backward(x, at, lse, entropy, dlogprob, dentropy, **options.of_logits)
        return found
    z = _logits(x, options)
    y = z - lse[:, None]
    p = torch.exp(y)
    dz = -p * dlogprob[:, None] - torch.where(p == 0, 0.0, p * (y + entropy[:, None])) * dentropy[:, None]
    return _of_x(dz, z, options).to(x.dtype)
