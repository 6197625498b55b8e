"""Cross entropy with the classes along a dimension that is not the last, as in images (N, C, H, W), and its gradient, without copies.

x is (outer, R, inner) of any strides, where R are the classes, as in `strided.py`. `target` is int64 of shape (outer * inner,), and all
numbers of a column are float32 of that shape. `softbench.kernels.common.losses` has the formulas and the options, and `loss_ops.py` their
arithmetic. All functions raise TypeError or ValueError for other arguments.

- forward: a program reads all classes of some columns, some rows at a time. One read.
- backward: a program computes some rows of some columns from lse. One read, one write.
- fused: a program holds all classes of some columns in registers. One read, one write; the two passes above where R is too long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
import triton
import triton.language as tl

from ..common.losses import base_of_rows, number_of_rows, result_of_rows, statistics_of_rows, targets_of_columns
from .devices import device_traits
from .dispatch import DEVICE_TYPES, MAX_CACHED
from .generic import CONTRACTION
from .launch_plan import VECTOR_BYTES, WARP
from .loss_ops import logits, rebased, row_loss, row_norm, slope, tanh, terms
from .losses import Options
from .packed_io import pack, rounded
from .softmax_ops import LOG2E, exp_fast, finite_or_zero
from .stable_key import with_stable_key
from .strided import HUGE, MOST_HELD, SMALL_FACTOR, Tile, _address, _columns, _load, kept_tile, strides_in_units, unit_of

THREADS = 64
COLUMNS_OF_THREAD = 4  # 16 bytes of float32, as all results of columns are
PROGRAMS_OF_SM = 4  # of so many threads with 128 registers: half of what an SM holds
MOST_GRID_Y = 65535  # of CUDA
IGNORED = tl.constexpr(-2)
NUMBERS = ["ignore_index", "hot", "share", "z_loss", "softcap", "inverse"]
SIZES = ["R", "inner", "columns"]


@triton.jit
def _number(outer, column, inner, ROWS: tl.constexpr):
    """The numbers of columns, (ROWS, COLUMNS), as targets and losses count them.

    All threads of a column load its target, in the layout of x. Another layout would be exchanged between threads.
    """
    return outer * inner + column + tl.zeros((ROWS, 1), tl.int64)


@triton.jit
def _classes(target_ptr, number, inside, R, ignore_index):
    """Targets of columns as int32, with two instructions for a comparison of 64 bits: IGNORED, or -1 if another one is out of range."""
    target = tl.load(target_ptr + number, mask=inside, other=0)
    found = tl.where(target.to(tl.uint64, bitcast=True) < R, target.to(tl.int32), -1)
    return tl.where(target == ignore_index, IGNORED, found)


@triton.jit
def _base_and_norm(lse_ptr, sum_ptr, number, inside, z_loss):
    """Of the statistics or lse of columns: dx has exp(z - base) * norm."""
    if sum_ptr is None:
        base = tl.load(lse_ptr + number, mask=inside, other=0.0)
        lse = base
        norm = tl.full(base.shape, 1.0, tl.float32)
    else:
        base = tl.load(lse_ptr + 2 * number, mask=inside, other=0.0)
        s = tl.load(sum_ptr + 2 * number, mask=inside, other=1.0)
        lse = base + tl.log(s)
        norm = 1.0 / s
    if z_loss is not None:
        norm *= 1.0 + 2.0 * z_loss * lse
    return base, norm


@triton.jit
def _gradient_places(
    dx_ptr, columns, inner, strides, first, outer, column, inside, COLUMNS: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr
):  # fmt: skip
    """Where a tile of dx begins, the distance to the next one, and which columns exist: in pairs of 16 bits where all are in pairs."""
    if dx_ptr.dtype.element_ty.primitive_bitwidth == 16 and ALIGN % 2 == 0:
        outer, column, inside = _columns(columns * (ALIGN // 2), inner * (ALIGN // 2), COLUMNS // 2)
        to, step = _address(dx_ptr, outer, column, strides, first, ROWS, True, ALIGN // 2)
    else:
        to, step = _address(dx_ptr, outer, column, strides, first, ROWS, False, ALIGN)
    return to, step, inside


@triton.jit
def _store_gradient(to, dx, x, at_target, hot, softcap, inverse, keep, mask, DTYPE: tl.constexpr):
    """Stores dx without `hot`, which this subtracts at the target. `keep` has no bits where the target is ignored."""
    if softcap is not None:
        u = tanh(x * inverse)
        hot *= 1.0 - u * u
    dx = tl.where(at_target, dx - hot, dx)
    dx = (dx.to(tl.int32, bitcast=True) & keep).to(tl.float32, bitcast=True)
    if to.dtype.element_ty == tl.int32:
        lower, upper = tl.split(tl.reshape(dx, (dx.shape[0], dx.shape[1] // 2, 2)))
        tl.store(to, pack(lower, upper, DTYPE), mask=mask)
    else:
        tl.store(to, rounded(dx, to.dtype.element_ty), mask=mask)


@triton.jit
def _accumulate(
    m, s, d, count, z_target, x, inside, at, first, last, softcap, inverse, ROWS: tl.constexpr, TILES: tl.constexpr, THIRD: tl.constexpr
):  # fmt: skip
    """Each thread's partial results of its columns, (ROWS, COLUMNS), with tiles that begin at row `first`. `at` is the target."""
    row = first + tl.arange(0, ROWS)[:, None]
    n = m
    z = ()
    for k in tl.static_range(TILES):
        z = z + (logits(x[k].to(tl.float32), inside & (row + k * ROWS < last), softcap, inverse),)
        n = tl.maximum(n, z[k])
    base = finite_or_zero(n)
    s, d = rebased(m, s, d, count, base, THIRD)
    target_from_here = at - row
    for k in tl.static_range(TILES):
        there = inside & (row + k * ROWS < last)
        e, more = terms(z[k], there, base, THIRD)
        s += e
        if THIRD != "":
            d += more
            count += tl.where(there, 1.0, 0.0)
        z_target = tl.where(target_from_here == k * ROWS, z[k], z_target)
    return n, s, d, count, z_target


@triton.jit
def _merged(m, s, d, count, z_target, THIRD: tl.constexpr):
    """The sums of whole columns, (1, COLUMNS)."""
    top = tl.max(m, 0)[None, :]
    s, d = rebased(m, s, d, count, finite_or_zero(top), THIRD)
    if THIRD != "":
        d = tl.sum(d, 0)[None, :]
    return top, tl.sum(s, 0)[None, :], d, tl.max(z_target, 0)[None, :]


@triton.jit(do_not_specialize=["x_outer", "x_row", *SIZES, *NUMBERS])
def reduction_of_columns(
    x_ptr, target_ptr, loss_ptr, lse_ptr, sum_ptr, x_outer, x_row, x_column, R, inner, columns,
    ignore_index, hot, share, z_loss, softcap, inverse,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Strides of outers and rows, `inner` and `columns`, count units of ALIGN elements, as in `strided.py`.

    With a pointer to sums, the maximum takes the place of lse, and both are two numbers apart.
    """
    THIRD: tl.constexpr = "mean" if share is not None else ""
    outer, column, inside = _columns(columns * ALIGN, inner * ALIGN, COLUMNS)
    number = _number(outer, column, inner.to(tl.int64) * ALIGN, ROWS)
    at = _classes(target_ptr, number, inside, R, ignore_index)
    m = tl.full((ROWS, COLUMNS), -float("inf"), tl.float32)
    s = tl.zeros((ROWS, COLUMNS), tl.float32)
    d = tl.zeros((ROWS, COLUMNS), tl.float32)
    count = tl.zeros((ROWS, COLUMNS), tl.float32)
    z_target = m
    for first in range(0, R, ROWS * TILES):
        x = _load(x_ptr, outer, column, (x_outer, x_row, x_column), inside, first, R, ROWS, TILES, False, ALIGN, True, True)
        m, s, d, count, z_target = _accumulate(m, s, d, count, z_target, x, inside, at, first, R, softcap, inverse, ROWS, TILES, THIRD)
    top, s, d, z_target = _merged(m, s, d, count, z_target, THIRD)
    loss, lse = row_loss(top, s, d, z_target, R, at, IGNORED, hot, share, z_loss)
    once = inside & (tl.arange(0, ROWS)[:, None] == 0)
    tl.store(loss_ptr + number, loss, mask=once)
    if sum_ptr is None:
        tl.store(lse_ptr + number, lse + tl.zeros_like(m), mask=once)
    else:
        tl.store(lse_ptr + 2 * number, top + tl.zeros_like(m), mask=once)
        tl.store(sum_ptr + 2 * number, s + tl.zeros_like(m), mask=once)


@triton.jit(do_not_specialize=["x_outer", "x_row", "dx_outer", "dx_row", "dloss_step", *SIZES, *NUMBERS])
def gradient_of_columns(
    x_ptr, target_ptr, lse_ptr, sum_ptr, dloss_ptr, dx_ptr, x_outer, x_row, x_column, dx_outer, dx_row, dx_column, dloss_step,
    R, inner, columns, ignore_index, hot, share, z_loss, softcap, inverse,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """As `reduction_of_columns`; dloss is `dloss_step` elements apart."""
    outer, column, inside = _columns(columns * ALIGN, inner * ALIGN, COLUMNS)
    first = tl.program_id(1) * (ROWS * TILES)
    x = _load(x_ptr, outer, column, (x_outer, x_row, x_column), inside, first, R, ROWS, TILES, False, ALIGN, True, True)
    number = _number(outer, column, inner.to(tl.int64) * ALIGN, ROWS)
    target = _classes(target_ptr, number, inside, R, ignore_index)
    dloss = tl.load(dloss_ptr + number * dloss_step, mask=inside, other=0.0)
    base, norm = _base_and_norm(lse_ptr, sum_ptr, number, inside, z_loss)
    norm = tl.where(target >= 0, norm, float("nan")) * dloss
    of_row = share
    if share is not None:
        of_row = share * dloss
    shrink = tl.where(tl.abs(base) > HUGE, SMALL_FACTOR, LOG2E)
    exponent = base * shrink
    if softcap is None:
        norm *= tl.exp2(-tl.fma(base, shrink, -exponent))  # what the rounding of `exponent` has done
        if inverse is not None:
            shrink *= inverse
    to, step, kept = _gradient_places(
        dx_ptr, columns, inner, (dx_outer, dx_row, dx_column), first, outer, column, inside, COLUMNS, ROWS, ALIGN
    )
    row = first + tl.arange(0, ROWS)[:, None]
    keep = tl.where(target == IGNORED, 0, -1)
    for k in tl.static_range(TILES):
        z = x[k].to(tl.float32)
        if softcap is None:
            dx = tl.exp2(tl.fma(z, shrink, -exponent)) * norm
            if share is not None:
                dx -= of_row
        else:
            dx = slope(z, base, norm, of_row, None, softcap, inverse)
        _store_gradient(
            to + k * step,
            dx,
            z,
            k * ROWS == target - row,
            hot * dloss,
            softcap,
            inverse,
            keep,
            kept & (row + k * ROWS < R),
            dx_ptr.dtype.element_ty,
        )


@triton.jit(do_not_specialize=["x_outer", "x_row", "dx_outer", "dx_row", *SIZES, *NUMBERS, "dloss"])
def fused_columns(
    x_ptr, target_ptr, loss_ptr, dx_ptr, x_outer, x_row, x_column, dx_outer, dx_row, dx_column, R, inner, columns,
    ignore_index, hot, share, z_loss, softcap, inverse, dloss,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """As `reduction_of_columns`. `dloss` is that of all columns."""
    THIRD: tl.constexpr = "mean" if share is not None else ""
    outer, column, inside = _columns(columns * ALIGN, inner * ALIGN, COLUMNS)
    x = _load(x_ptr, outer, column, (x_outer, x_row, x_column), inside, 0, R, ROWS, TILES, False, ALIGN, True)
    number = _number(outer, column, inner.to(tl.int64) * ALIGN, ROWS)
    at = _classes(target_ptr, number, inside, R, ignore_index)
    row = tl.arange(0, ROWS)[:, None]
    z = ()
    m = tl.full((ROWS, COLUMNS), -float("inf"), tl.float32)
    for k in tl.static_range(TILES):
        there = inside if k < TILES - 1 else inside & (row + k * ROWS < R)
        z = z + (logits(x[k].to(tl.float32), there, softcap, inverse),)
        m = tl.maximum(m, z[k])
    base = finite_or_zero(m)
    e = ()
    z_target = tl.full((ROWS, COLUMNS), -float("inf"), tl.float32)
    s = tl.zeros((ROWS, COLUMNS), tl.float32)
    d = tl.zeros((ROWS, COLUMNS), tl.float32)
    count = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in tl.static_range(TILES):
        there = inside if k < TILES - 1 else inside & (row + k * ROWS < R)
        of_e, more = terms(z[k], there, base, THIRD)
        e = e + (of_e,)
        s += of_e
        if THIRD != "":
            d += more
            count += tl.where(there, 1.0, 0.0)
        z_target = tl.where(at - row == k * ROWS, z[k], z_target)
    top, s, d, z_target = _merged(m, s, d, count, z_target, THIRD)
    loss, _ = row_loss(top, s, d, z_target, R, at, IGNORED, hot, share, z_loss)
    tl.store(loss_ptr + number, loss, mask=inside & (row == 0))
    norm = row_norm(top, s, R, at, z_loss) * dloss * exp_fast(base - finite_or_zero(top))
    keep = tl.where(at == IGNORED, 0, -1)
    to, step, kept = _gradient_places(dx_ptr, columns, inner, (dx_outer, dx_row, dx_column), 0, outer, column, inside, COLUMNS, ROWS, ALIGN)
    for k in tl.static_range(TILES):
        dx = e[k] * norm
        if share is not None:
            dx -= share * dloss
        if softcap is not None:
            dx *= 1.0 - (z[k] / softcap) * (z[k] / softcap)
        there = kept if k < TILES - 1 else kept & (row + k * ROWS < R)
        _store_gradient(
            to + k * step,
            dx,
            x[k].to(tl.float32),
            k * ROWS == at - row,
            hot * dloss,
            softcap,
            inverse,
            keep,
            there,
            dx_ptr.dtype.element_ty,
        )


def cross_entropy_forward(x: torch.Tensor, target: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, lse) of each column."""
    target = targets_of_columns(x, target, DEVICE_TYPES)
    loss, lse = result_of_rows(x), result_of_rows(x)
    _launch(reduction_of_columns, (x,), (target, loss, lse, None), Options(**options), part_of(x, True))
    return loss, lse


def cross_entropy_statistics(x: torch.Tensor, target: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, statistics) of each column."""
    target = targets_of_columns(x, target, DEVICE_TYPES)
    loss, statistics = result_of_rows(x), statistics_of_rows(x)
    _launch(reduction_of_columns, (x,), (target, loss, *statistics.unbind(1)), Options(**options), part_of(x, True))
    return loss, statistics


def cross_entropy_backward(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, dloss: torch.Tensor, *, classes: int = 0, **options: Any
) -> torch.Tensor:
    """dx, contiguous, from the forward's lse or statistics and the gradient of each loss, of any stride.

    `classes`: over which labels are smoothed, if x has a part of them.
    """
    target = targets_of_columns(x, target, DEVICE_TYPES)
    of_columns, statistics = base_of_rows(lse, x)
    base = (of_columns, None) if statistics is None else statistics.unbind(1)
    dloss = number_of_rows(dloss, x, "dloss", spread=True)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    given = Options(**options, classes=classes)
    of_row = target, *base, dloss if given.logit_scale == 1.0 else dloss * given.logit_scale
    _launch(gradient_of_columns, (x, dx), of_row, given, part_of(x, False))
    return dx


def cross_entropy_fused(x: torch.Tensor, target: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, dx), where dx is contiguous and the gradient for a dloss of 1."""
    target = targets_of_columns(x, target, DEVICE_TYPES)
    given = Options(**options)
    loss, dx = result_of_rows(x), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if (tile := kept_tile(x.shape[1], COLUMNS_OF_THREAD, x.element_size())) is not None:
        _launch(fused_columns, (x, dx), (target, loss), given, tile)
        return loss, dx
    statistics, dloss = statistics_of_rows(x).unbind(1), loss.new_full((1,), given.logit_scale).expand(loss.shape)
    _launch(reduction_of_columns, (x,), (target, loss, *statistics), given, part_of(x, True))
    _launch(gradient_of_columns, (x, dx), (target, *statistics, dloss), given, part_of(x, False))
    return loss, dx


def part_of(x: torch.Tensor, reduces: bool) -> Tile:
    """What a program reads at once. Threads have whole columns, unless programs that reduce would be fewer than a GPU holds, or those of
    a gradient more than a grid's second axis."""
    outers, R, inner = x.shape
    rows, programs, most = 1, PROGRAMS_OF_SM * device_traits(x.device)[1] if reduces else 0, R if reduces else MOST_HELD * MOST_GRID_Y
    while rows < min(R, WARP) and (outers * inner * rows < programs * THREADS * COLUMNS_OF_THREAD or R > rows * most):
        rows *= 2
    tiles = triton.cdiv(R, rows)
    return Tile(rows, THREADS * COLUMNS_OF_THREAD // rows, triton.cdiv(tiles, triton.cdiv(tiles, MOST_HELD)), THREADS)


OfColumns = tuple[torch.Tensor | None, ...]
_cache: dict[tuple[Hashable, ...], tuple[Callable[..., object], tuple[Any, ...]]] = {}


def _launch(kernel: triton.JITFunction, tensors: tuple[torch.Tensor, ...], of_columns: OfColumns, options: Options, tile: Tile) -> None:
    """Launches on x and perhaps dx, and on numbers of each column. All but dloss are as far apart as the kernel takes them."""
    x = tensors[0]
    if x.is_cuda and x.device.index != torch._C._cuda_getDevice():  # Triton launches on the current device
        with torch.cuda.device(x.device):
            return _launch(kernel, tensors, of_columns, options, tile)
    operands = (x, *of_columns, *tensors[1:])
    key: list[Hashable] = [kernel, x.shape, x.dtype, x.device, options, tile]
    for tensor in operands:
        key += (None,) if tensor is None else (tensor.stride(), tensor.data_ptr() % VECTOR_BYTES)
    if (found := _cache.get(tuple(key))) is not None:
        found[0](*[None if tensor is None else tensor.data_ptr() for tensor in operands], *found[1])
        return None
    grid, arguments = prepare(kernel, tensors, of_columns, options, tile)
    if x.numel() == 0:
        return None
    compiled = with_stable_key(kernel)[grid](*operands, *arguments, num_warps=tile.threads // WARP, **CONTRACTION)
    if hasattr(compiled, "function"):  # not under the interpreter, nor while Triton compiles in the background
        if len(_cache) >= MAX_CACHED:
            _cache.clear()
        _cache[tuple(key)] = compiled[(*grid, 1)], arguments
    return None


def prepare(
    kernel: triton.JITFunction, tensors: tuple[torch.Tensor, ...], of_columns: OfColumns, options: Options, tile: Tile
) -> tuple[tuple[int, int], tuple[Any, ...]]:
    """The grid of a launch, and its arguments after the tensors."""
    outers, R, inner = tensors[0].shape
    unit, gradient = unit_of(tensors), kernel is gradient_of_columns
    grid = triton.cdiv(outers * inner, tile.columns), triton.cdiv(R, tile.rows * tile.tiles) if gradient else 1
    dloss = of_columns[-1] if gradient else None
    sizes = *(() if dloss is None else (dloss.stride(0),)), R, inner // unit, outers * inner // unit
    more = (float(options.logit_scale),) if kernel is fused_columns else ()
    return grid, (*strides_in_units(tensors, unit), *sizes, *options.numbers(R), *more, tile.rows, tile.columns, tile.tiles, unit)
