"""Softmax of causal scores in 16 bits and its gradient, for long aligned rows without mask and sink: no work for what a query does not see.

A program has one row in TILES tiles of THREADS vectors of 16 bytes (`packed_io.py`), as words of two elements. Loads end with the vectors
that the query sees. Zeros behind them are written while the loads are in flight. Tiles that the query does not see take a branch and
no arithmetic: forward a quarter of the tiles together, backward each by itself.

The vector that a query sees in part has -inf behind it. The gradient needs no such thing, as y is 0 there. A row of NaN has zeros in the
vectors that the query does not see.

The grid is (S, H, B), so a program divides nothing before its first load.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from .launch_plan import VECTOR_BYTES
from .packed_io import load_tiles, pack, packed_max, padding, unpack_high, unpack_low, word_pointers
from .softmax_ops import block_reduce, finite_or_zero, normalized, rematerialize, thread_dot, tile_exp_sum

VECTOR = tl.constexpr(VECTOR_BYTES // 2)
WORDS = tl.constexpr(4)

MOST_COLUMNS = 16384
LEAST_COLUMNS = {False: 4096, True: 8192}
"""Of the forward and the backward, exclusive: shorter rows reach the speed of a copy in `masked_softmax.py`."""
MOST_GRID = 65535
"""Of the grid's second and third axes."""


@dataclass(frozen=True, slots=True)
class CausalPlan:
    """How a program holds a row. Forward: as softmax's plans for as many columns. Backward: an SM has three rows of 16384 columns."""

    tiles: int
    threads: int
    group: int
    """Tiles that take one branch together. A branch for each tile costs the forward registers for predicates."""
    registers: int


def causal_plan(N: int, backward: bool) -> CausalPlan | None:
    """The plan for rows of N columns, or None: the kernels of `masked_softmax.py` are as fast or can do more."""
    if N % VECTOR.value or not LEAST_COLUMNS[backward] < N <= MOST_COLUMNS:
        return None
    threads = 256 if backward else 128
    tiles = triton.cdiv(N, VECTOR.value * threads)
    return CausalPlan(tiles, threads, 1 if backward else triton.cdiv(tiles, 4), 80 if backward or tiles > 8 else 56)


@triton.jit
def _row():
    """(query, row) of a program."""
    s = tl.program_id(0)
    head = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
    return s, head.to(tl.int64) * tl.num_programs(0) + s


@triton.jit
def _cut(x, seen, TILES: tl.constexpr, THREADS: tl.constexpr, DTYPE: tl.constexpr):
    """The tiles with -inf behind `seen` elements in the vector that the query sees in part."""
    partly = tl.where(seen % VECTOR == 0, TILES, seen // (VECTOR * THREADS))  # the number of its tile
    place = tl.arange(0, THREADS)[None, :, None] * VECTOR + tl.arange(0, WORDS)[None, None, :] * 2
    filler = padding(DTYPE)
    out = ()
    for p in tl.static_range(TILES):
        tile = x[p]
        if p == partly:
            kept = seen - p * THREADS * VECTOR - place
            tile = tl.where(kept > 1, tile, tl.where(kept == 1, (tile & 0xFFFF) | (filler & -65536), filler))
        out = out + (tile,)
    return out


@triton.jit
def _write_zeros(out, first, vectors, TILES: tl.constexpr, THREADS: tl.constexpr):
    """Writes zeros to the vectors first..vectors-1 of a row."""
    t = tl.arange(0, THREADS)[None, :, None]
    o = t * WORDS + tl.arange(0, WORDS)[None, None, :]
    for p in tl.static_range(TILES):
        behind = (t - first + p * THREADS).to(tl.uint32) < (vectors - first).to(tl.uint32)
        tl.store(out[:, None, None] + o + p * THREADS * WORDS, o * 0, mask=behind)


@triton.jit
def _write_tile(out, lower, upper, end, p: tl.constexpr, THREADS: tl.constexpr, DTYPE: tl.constexpr):
    """Writes the results of tile `p` up to vector `end`."""
    t = tl.arange(0, THREADS)[None, :, None]
    o = t * WORDS + tl.arange(0, WORDS)[None, None, :]
    tl.store(out[:, None, None] + o + p * THREADS * WORDS, pack(lower, upper, DTYPE), mask=t + p * THREADS < end)


@triton.jit(do_not_specialize=["scale", "N", "first_sees"])
def forward_causal(
    x_ptr, y_ptr, scale, N, first_sees, TILES: tl.constexpr, THREADS: tl.constexpr, GROUP: tl.constexpr,
    KEEP_IN_L2: tl.constexpr,
):  # fmt: skip
    """N counts vectors. Query s sees s + first_sees columns, or all."""
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    s, number = _row()
    at = number + tl.arange(0, 1)
    seen = tl.minimum(s + first_sees, N * VECTOR)
    end = (seen + VECTOR - 1) // VECTOR
    zero = (at * 0).to(tl.int32)
    x_words = word_pointers(x_ptr + at * N * VECTOR, zero, WORDS)
    x = load_tiles(x_words, zero, end + zero, zero, padding(DTYPE), TILES, THREADS, WORDS, 0, KEEP_IN_L2)
    y_words = word_pointers(y_ptr + at * N * VECTOR, zero, WORDS)
    _write_zeros(y_words, end, N, TILES, THREADS)
    x = _cut(x, seen, TILES, THREADS, DTYPE)
    m = packed_max(x[0], DTYPE)
    for group in tl.static_range(0, TILES, GROUP):
        if group * THREADS < end:
            for p in tl.static_range(max(1, group), min(group + GROUP, TILES)):
                m = tl.maximum(m, packed_max(x[p], DTYPE))
    base = finite_or_zero(m)[:, :, None]
    total = tile_exp_sum(x[0], base, scale, DTYPE)
    for group in tl.static_range(0, TILES, GROUP):
        if group * THREADS < end:
            for p in tl.static_range(max(1, group), min(group + GROUP, TILES)):
                total += tile_exp_sum(x[p], base, scale, DTYPE)
    m, total = block_reduce(m, total, scale)
    norm = 1.0 / total
    x = rematerialize(x, tl.where(total < 0, -1, 0)[:, :, None])  # it is never negative
    for group in tl.static_range(0, TILES, GROUP):
        if group * THREADS < end:
            for p in tl.static_range(group, min(group + GROUP, TILES)):
                lower = normalized(unpack_low(x[p], DTYPE), m[:, :, None], norm[:, :, None], scale, False)
                upper = normalized(unpack_high(x[p], DTYPE), m[:, :, None], norm[:, :, None], scale, False)
                _write_tile(y_words, lower, upper, end, p, THREADS, DTYPE)


@triton.jit(do_not_specialize=["scale", "N", "first_sees"])
def backward_causal(
    dy_ptr, y_ptr, dx_ptr, scale, N, first_sees, TILES: tl.constexpr, THREADS: tl.constexpr, GROUP: tl.constexpr,
    KEEP_IN_L2: tl.constexpr,
):  # fmt: skip
    """See `forward_causal`."""
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    s, number = _row()
    at = number + tl.arange(0, 1)
    end = (tl.minimum(s + first_sees, N * VECTOR) + VECTOR - 1) // VECTOR
    zero = (at * 0).to(tl.int32)
    dy_words = word_pointers(dy_ptr + at * N * VECTOR, zero, WORDS)
    y_words = word_pointers(y_ptr + at * N * VECTOR, zero, WORDS)
    dx_words = word_pointers(dx_ptr + at * N * VECTOR, zero, WORDS)
    dy = load_tiles(dy_words, zero, end + zero, zero, 0, TILES, THREADS, WORDS, 0, KEEP_IN_L2)
    y = load_tiles(y_words, zero, end + zero, zero, 0, TILES, THREADS, WORDS, 0, KEEP_IN_L2)
    _write_zeros(dx_words, end, N, TILES, THREADS)
    dot = tl.zeros((1, THREADS), tl.float32)
    for group in tl.static_range(0, TILES, GROUP):
        if group * THREADS < end:
            for p in tl.static_range(group, min(group + GROUP, TILES)):
                dot += thread_dot(dy[p], y[p], DTYPE, False)
    d = tl.sum(dot, 1)[:, None, None]
    never = tl.where(d != d, -1, 0)  # of a NaN, every result is NaN in any case
    dy = rematerialize(dy, never)
    y = rematerialize(y, never)
    for group in tl.static_range(0, TILES, GROUP):
        if group * THREADS < end:
            for p in tl.static_range(group, min(group + GROUP, TILES)):
                lower = unpack_low(y[p], DTYPE) * (unpack_low(dy[p], DTYPE) - d) * scale
                upper = unpack_high(y[p], DTYPE) * (unpack_high(dy[p], DTYPE) - d) * scale
                _write_tile(dx_words, lower, upper, end, p, THREADS, DTYPE)
