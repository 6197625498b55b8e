"""Softmax, log-softmax and their gradients over a dimension that is not the last, without copies.

Tensors are (outer, R, inner): R is reduced, and the outer * inner columns are counted through. Any strides will do.

A program's tile is a tuple of `tiles` tensors (rows, columns), so that R need not be a power of two. It holds all R elements of its columns
in registers: one read, one write. 16-bit columns are read in pairs, which stay packed in registers until they are used. The kernels have no
inline assembly with side effects, so that compilers can trace them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from ..common.rows import Scale
from .generic import CONTRACTION, dot_terms
from .interpreter import INTERPRETED, interpreted_number
from .launch_plan import WARP
from .packed_io import larger, pack, padding, rounded, unpack_high, unpack_low
from .softmax_ops import LOG2E, finite_or_zero, gradient, norm_of, normalized
from .stable_key import with_stable_key

VECTOR_BYTES = 16
SECTOR_BYTES = 32
THREAD_BYTES = 256  # of a tile: half of the 128 registers with which an SM has 512 threads
MOST_HELD = 21  # rows of a thread with four columns whose float32 it keeps: two thirds of the 128 registers
MAX_CACHED = 4096  # launches
LN2, HUGE, SMALL_FACTOR = tl.constexpr(0.6931471805599453), tl.constexpr(2.0**100), tl.constexpr(2.0**-20)
MOST_SCALE = 2.0**26  # HUGE times it is finite


class Tile(NamedTuple):
    """How a program's part is cut."""

    rows: int
    columns: int
    tiles: int
    threads: int
    keep: bool = True
    """Whether exponentials are computed once, and kept in registers: of 16 bits these take twice the registers of the elements."""


@triton.jit
def _columns(columns, inner, COLUMNS: tl.constexpr):
    """Columns (1, C) of a program: their outers, their places there, and whether they exist."""
    column = tl.program_id(0).to(columns.dtype) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return (column // inner).to(tl.int64), (column % inner).to(tl.int64), column < columns


@triton.jit
def _half(tile, HIGH: tl.constexpr, PAIRS: tl.constexpr, DTYPE: tl.constexpr):
    """A tile's elements in float32; of pairs, those at the higher addresses if HIGH."""
    if not PAIRS:
        return tile.to(tl.float32)
    elif HIGH:
        return unpack_high(tile, DTYPE)
    else:
        return unpack_low(tile, DTYPE)


@triton.jit
def _load(
    x_ptr, outer, column, strides, inside, first, last,
    ROWS: tl.constexpr, TILES: tl.constexpr, PAIRS: tl.constexpr, ALIGN: tl.constexpr, MINUS_INFINITY: tl.constexpr,
    PART: tl.constexpr = False,
):  # fmt: skip
    """Rows `first` to `last` of the columns. Behind the last one, elements are 0 or -infinity.

    PART: `last` may be in any tile, or far behind them, instead of in the last one.
    """
    at, step = _address(x_ptr, outer, column, strides, first, ROWS, PAIRS, ALIGN)
    row = first + tl.arange(0, ROWS)[:, None]
    if MINUS_INFINITY:
        other = padding(x_ptr.dtype.element_ty) if PAIRS else -float("inf")
    else:
        other = 0
    tiles = ()
    for k in tl.static_range(TILES):
        mask = inside if k < TILES - 1 and not PART else inside & (row + k * ROWS < last)
        tiles = tiles + (tl.load(at + k * step, mask=mask, other=other),)
    return tiles


@triton.jit
def _address(x_ptr, outer, column, strides, first, ROWS: tl.constexpr, PAIRS: tl.constexpr, ALIGN: tl.constexpr):
    """Where a tile begins, and the distance to the next one."""
    row = first + tl.arange(0, ROWS)[:, None]
    pointer = x_ptr.to(tl.pointer_type(tl.int32)) if PAIRS else x_ptr
    of_row = strides[1].to(tl.int64) * ALIGN
    return pointer + outer * (strides[0].to(tl.int64) * ALIGN) + row * of_row + column * strides[2], ROWS * of_row


@triton.jit
def _store(at, lower, upper, mask, PAIRS: tl.constexpr, DTYPE: tl.constexpr):
    tl.store(at, pack(lower, upper, DTYPE) if PAIRS else rounded(lower, at.dtype.element_ty), mask=mask)


@triton.jit
def _over_rows(lower, upper, MAXIMUM: tl.constexpr, PAIRS: tl.constexpr):
    """The maxima or sums over the rows, (1, C): of both halves by one reduction."""
    if not PAIRS:
        found = (tl.max(lower, 0) if MAXIMUM else tl.sum(lower, 0))[None, :]
        return found, found
    else:
        both = tl.join(lower, upper)
        low, high = tl.split(tl.max(both, 0) if MAXIMUM else tl.sum(both, 0))
        return low[None, :], high[None, :]


@triton.jit
def _again(tiles, low, high, PAIRS: tl.constexpr):
    """The same tiles. The compiler unpacks pairs again, as it does not know that `low` and `high` are numbers.

    Otherwise it would keep float32 copies in registers. Where both are NaN, all results are.
    """
    if not PAIRS:
        return tiles
    else:
        zero = tl.where((low != low) & (high != high), -1, 0)
        out = ()
        for k in tl.static_range(len(tiles)):
            out = out + (tiles[k] | zero,)
        return out


@triton.jit
def _maxima(tiles, PAIRS: tl.constexpr, DTYPE: tl.constexpr):
    """The maxima of the columns, (1, C), lower and higher."""
    most = tiles[0]
    for k in tl.static_range(1, len(tiles)):
        most = larger(most, tiles[k], DTYPE) if PAIRS else tl.maximum(most.to(tl.float32), tiles[k].to(tl.float32))
    low = _half(most, False, PAIRS, DTYPE)
    return _over_rows(low, _half(most, True, PAIRS, DTYPE) if PAIRS else low, True, PAIRS)


@triton.jit
def _exponent(m, scale):
    """(factor, base) of columns with these maxima: exp((x - m) * scale) is exp2(x * factor - base), by one fused operation.

    All terms of a column share the rounding of `base`, so it is in no result of softmax. With a maximum that could overflow, the factor is
    smaller: elements that differ from it are so far away there that exp2 is 0.
    """
    factor = LOG2E
    if scale is not None:
        factor = scale * LOG2E
    factor = tl.where(tl.abs(m) > HUGE, tl.minimum(factor, SMALL_FACTOR), factor)
    return factor, finite_or_zero(m) * factor


@triton.jit
def _exponential(x, factor, base):
    return tl.exp2(tl.fma(x, factor, -base))


@triton.jit
def _norm(s, m, factor, base, LOG: tl.constexpr):
    """`norm_of` the exponentials' sum s. For a logarithm it is corrected by the rounding of `base`."""
    if LOG:
        return norm_of(s, True) - tl.fma(m, factor, -base) * LN2
    else:
        return norm_of(s, False)


@triton.jit
def _exponentials(tiles, factor, base, HIGH: tl.constexpr, PAIRS: tl.constexpr, DTYPE: tl.constexpr):
    """The exponentials of each tile, and their sum."""
    out = (_exponential(_half(tiles[0], HIGH, PAIRS, DTYPE), factor, base),)
    s = out[0]
    for k in tl.static_range(1, len(tiles)):
        out = out + (_exponential(_half(tiles[k], HIGH, PAIRS, DTYPE), factor, base),)
        s += out[k]
    return out, s


@triton.jit
def _dot(dy, y, LOG: tl.constexpr, HIGH: tl.constexpr, PAIRS: tl.constexpr, DTYPE: tl.constexpr):
    s = dot_terms(_half(dy[0], HIGH, PAIRS, DTYPE), _half(y[0], HIGH, PAIRS, DTYPE), LOG)
    for k in tl.static_range(1, len(y)):
        s += dot_terms(_half(dy[k], HIGH, PAIRS, DTYPE), _half(y[k], HIGH, PAIRS, DTYPE), LOG)
    return s


@triton.jit(do_not_specialize=["x_outer", "x_row", "y_outer", "y_row", "R", "inner", "columns", "scale"])
def forward_tile(
    x_ptr, y_ptr, x_outer, x_row, x_column, y_outer, y_row, y_column, R, inner, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, PAIRS: tl.constexpr, ALIGN: tl.constexpr,
    KEEP: tl.constexpr, LOG: tl.constexpr, scale,
):  # fmt: skip
    """Strides of outers and rows, `inner` and `columns`, count units of ALIGN columns: so the compiler knows alignments that no 16 divides.
    With PAIRS a column is a pair of them."""
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    outer, column, inside = _columns(columns * ALIGN, inner * ALIGN, COLUMNS)
    x = _load(x_ptr, outer, column, (x_outer, x_row, x_column), inside, 0, R, ROWS, TILES, PAIRS, ALIGN, True)
    m, high_m = _maxima(x, PAIRS, DTYPE)
    again = x if KEEP else _again(x, m, high_m, PAIRS)
    factor, base = _exponent(m, scale)
    high_factor, high_base = factor, base
    lows, s = _exponentials(again, factor, base, False, PAIRS, DTYPE)
    highs, high_s = lows, s
    if PAIRS:
        high_factor, high_base = _exponent(high_m, scale)
        highs, high_s = _exponentials(again, high_factor, high_base, True, PAIRS, DTYPE)
    s, high_s = _over_rows(s, high_s, False, PAIRS)
    norm = _norm(s, m, factor, base, LOG)
    high_norm = _norm(high_s, high_m, high_factor, high_base, LOG) if PAIRS else norm
    if not KEEP:
        x = _again(x, s, high_s, PAIRS)
    at, step = _address(y_ptr, outer, column, (y_outer, y_row, y_column), 0, ROWS, PAIRS, ALIGN)
    row = tl.arange(0, ROWS)[:, None]
    for k in tl.static_range(TILES):
        if LOG:
            lower = normalized(_half(x[k], False, PAIRS, DTYPE), m, norm, scale, True)
            upper = normalized(_half(x[k], True, PAIRS, DTYPE), high_m, high_norm, scale, True) if PAIRS else lower
        elif KEEP:
            lower = lows[k] * norm
            upper = highs[k] * high_norm
        else:
            lower = _exponential(_half(x[k], False, PAIRS, DTYPE), factor, base) * norm
            upper = _exponential(_half(x[k], True, PAIRS, DTYPE), high_factor, high_base) * high_norm if PAIRS else lower
        _store(at + k * step, lower, upper, inside if k < TILES - 1 else inside & (row + k * ROWS < R), PAIRS, DTYPE)


@triton.jit(do_not_specialize=["dy_outer", "dy_row", "y_outer", "y_row", "dx_outer", "dx_row", "R", "inner", "columns", "scale"])
def backward_tile(
    dy_ptr, y_ptr, dx_ptr, dy_outer, dy_row, dy_column, y_outer, y_row, y_column, dx_outer, dx_row, dx_column, R, inner, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, PAIRS: tl.constexpr, ALIGN: tl.constexpr,
    LOG: tl.constexpr, scale,
):  # fmt: skip
    """As `forward_tile`."""
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    outer, column, inside = _columns(columns * ALIGN, inner * ALIGN, COLUMNS)
    dy = _load(dy_ptr, outer, column, (dy_outer, dy_row, dy_column), inside, 0, R, ROWS, TILES, PAIRS, ALIGN, False)
    y = _load(y_ptr, outer, column, (y_outer, y_row, y_column), inside, 0, R, ROWS, TILES, PAIRS, ALIGN, False)
    dot = _dot(dy, y, LOG, False, PAIRS, DTYPE)
    dot, high_dot = _over_rows(dot, _dot(dy, y, LOG, True, PAIRS, DTYPE) if PAIRS else dot, False, PAIRS)
    dy = _again(dy, dot, high_dot, PAIRS)
    y = _again(y, dot, high_dot, PAIRS)
    at, step = _address(dx_ptr, outer, column, (dx_outer, dx_row, dx_column), 0, ROWS, PAIRS, ALIGN)
    row = tl.arange(0, ROWS)[:, None]
    for k in tl.static_range(TILES):
        lower = gradient(_half(y[k], False, PAIRS, DTYPE), _half(dy[k], False, PAIRS, DTYPE), dot, scale, LOG)
        upper = gradient(_half(y[k], True, PAIRS, DTYPE), _half(dy[k], True, PAIRS, DTYPE), high_dot, scale, LOG) if PAIRS else lower
        _store(at + k * step, lower, upper, inside if k < TILES - 1 else inside & (row + k * ROWS < R), PAIRS, DTYPE)


def tile_of(R: int, size: int, reads: int) -> Tile | None:
    """The tile for columns of `size` bytes, pairs counting as one; None if no program holds R rows of a sector.

    The widest segments of rows for which small programs hold the columns: their exchange is short, and others load meanwhile.
    """
    for segment, most in ((512, 64), (256, 256), (128, 256), (64, 512), (SECTOR_BYTES, 512)):
        threads = max(64, triton.next_power_of_2(triton.cdiv(reads * R * segment, THREAD_BYTES)))
        if threads <= most:
            rows = max(1, threads * VECTOR_BYTES // segment)
            return Tile(rows, segment // size, triton.cdiv(R, rows), threads)
    return None


def kept_tile(R: int, columns: int, size: int) -> Tile | None:
    """The tile of threads that keep float32 of four columns, which lie in `columns` columns of the tile of `size` bytes.

    Threads of short columns have whole ones, and exchange nothing. None if no program holds R rows of a sector.
    """
    rows = triton.next_power_of_2(triton.cdiv(R, MOST_HELD))
    threads = 64 if rows == 1 else 128 if rows <= 8 else 256
    wide = threads * columns // rows
    return Tile(rows, wide, triton.cdiv(R, rows), threads) if wide * size >= SECTOR_BYTES else None


class Launch(NamedTuple):
    """A launch on tensors of one layout."""

    kernel: Any
    programs: int
    arguments: tuple[Any, ...]
    """After the tensors: strides, sizes and constants."""
    options: dict[str, Any]


def unit_of(tensors: tuple[torch.Tensor, ...]) -> int:
    """The columns of (outer, R, inner) tensors that the kernels count as a unit: a vector, or what divides all sizes and addresses."""
    outers, _, inner = tensors[0].shape
    # Units are multiplied in the type of `columns`.
    align = VECTOR_BYTES // max(tensor.element_size() for tensor in tensors) if outers * inner < 2**31 else 1
    for tensor in tensors:
        for number in (inner, tensor.stride(0), tensor.stride(1), tensor.data_ptr() // tensor.element_size()):
            align = min(align, number & -number or align)
        if tensor.stride(2) != 1:
            align = 1
    return align


def strides_in_units(tensors: tuple[torch.Tensor, ...], unit: int) -> list[int]:
    """The strides of outers and rows in units, and those of columns in elements."""
    return [number // (1 if axis == 2 else unit) for tensor in tensors for axis, number in enumerate(tensor.stride())]


def prepare(tensors: tuple[torch.Tensor, ...], log: bool = False, tile: Tile | None = None) -> Launch | None:
    """The launch on (outer, R, inner) tensors, x and y or dy, y and dx; None if R is too long. `tile` replaces the rule's."""
    first = tensors[0]
    outers, R, inner = first.shape
    size, align = max(tensor.element_size() for tensor in tensors), unit_of(tensors)
    pairs = size == 2 and align >= 2 and torch.version.hip is None and all(tensor.dtype == first.dtype for tensor in tensors)
    unit = 2 if pairs else 1
    if tile is None and pairs and len(tensors) == 2:
        tile = kept_tile(R, 2, size * unit)
        if tile is None and (longer := tile_of(R, size * unit, 1)) is not None:
            tile = longer._replace(keep=False)
    tile = tile or tile_of(R, size * unit, len(tensors) - 1)
    if tile is None:
        return None
    columns = outers * inner // unit
    strides = strides_in_units(tensors, align)
    forward = len(tensors) == 2
    keep = (tile.keep and not log,) if forward else ()
    constants = tile.rows, tile.columns, tile.tiles, pairs, align // unit, *keep, log
    options = {"num_warps": tile.threads // WARP, **CONTRACTION}
    kernel = forward_tile if forward else backward_tile
    return Launch(kernel, triton.cdiv(columns, tile.columns), (*strides, R, inner // align, outers * inner // align, *constants), options)


_cache: dict[tuple[Hashable, ...], tuple[Callable[..., object], tuple[Any, ...]]] = {}


def launch(*tensors: torch.Tensor, log: bool = False, scale: Scale | None = None) -> bool:
    """y of x, or dx of dy and y, which are (outer, R, inner) tensors of any strides; the last one is written.

    False, with nothing written, if R is too long, if `scale` is a tensor or above MOST_SCALE, or for float64.
    """
    device = tensors[0].device
    if isinstance(scale, torch.Tensor) or tensors[0].dtype is torch.float64:
        return False
    if device.type == "cuda" and device.index != torch._C._cuda_getDevice():  # Triton launches on the current device
        with torch.cuda.device(device):
            return launch(*tensors, log=log, scale=scale)
    given = None if scale is None else float(scale)
    if given is not None and given > MOST_SCALE:
        return False
    key: list[Hashable] = [tensors[0].shape, device, log, given is None]
    for tensor in tensors:
        key += (tensor.dtype, tensor.stride(), tensor.data_ptr() % VECTOR_BYTES)
    if (found := _cache.get(tuple(key))) is not None:
        found[0](*[tensor.data_ptr() for tensor in tensors], *found[1], given)
        return True
    if (planned := prepare(tensors, log)) is None:
        return False
    number = interpreted_number(given) if INTERPRETED and given is not None else given
    compiled = with_stable_key(planned.kernel)[(planned.programs,)](*tensors, *planned.arguments, number, **planned.options)
    if hasattr(compiled, "function"):  # not under the interpreter, nor while Triton compiles in the background
        if len(_cache) >= MAX_CACHED:
            _cache.clear()
        _cache[tuple(key)] = compiled[(planned.programs, 1, 1)], planned.arguments
    return True


def launch_log(*tensors: torch.Tensor, scale: Scale | None = None) -> bool:
    """As `launch`, of log_softmax."""
    return launch(*tensors, log=True, scale=scale)
