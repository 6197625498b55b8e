"""Kernels of the tier split that compilers trace: several programs of the grid share a long row, and each has its chunk in registers.

They are `forward_split` and `backward_split` without the assembly that has side effects, for the reason in `traceable_rows.py`. Programs
exchange partial results in slots of global memory, a word a program. A graph keeps no counter from one launch to the next, so it fills the
slots with zeros before each launch. No partial result is the word 0 (`pair_of`, `slot_of`).

All threads of a program must agree on what was read. So each thread polls one or two slots of its own, and no two threads read the same
one. Then each reduction passes through the program's shared memory. As in `grid_exchange.py`, no order of programs can hang a launch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .generic import dot_terms, gradient_of_row, row_by_steps
from .grid_exchange import MAX_POLLS, slot_value
from .packed_io import edge_columns, larger, load_tiles, output_pointers, packed_max, padding, rounded, row_vectors, word_pointers
from .softmax_ops import (
    dot_product,
    exp_fast,
    exponential_sum,
    exponentials,
    finite_or_zero,
    gradient,
    norm_of,
    normalized,
    rematerialize,
    tile_exp_sum,
    tile_max,
    write_exponentials,
    write_gradient,
    write_normalized,
)
from .staggered_start import traceable_start
from .traceable_rows import VECTOR_MASK


@triton.jit
def slot_of(value):
    """A float32 in the low half of a word that is not 0."""
    return (value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF) | 0x100000000


@triton.jit
def pair_of(maximum, total):
    """A (max, sum) in one word, which is not 0: the sum is at least 1, or NaN, or the maximum is -inf."""
    return (maximum.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (total.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def pair_max(word):
    """The maximum of a word of `pair_of`. `slot_value` is the sum."""
    return (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def forward_split_traceable(
    x_ptr, y_ptr, slots_ptr, x_stride, y_stride, N, ctas, chunk, stagger_rows, stagger_cycles,
    TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, PLACES: tl.constexpr,
    KEEP_IN_L2: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """A row `ctas` programs, each with `chunk` <= TILES * THREADS vectors. slots: `ctas` zeros a row. PLACES >= ctas and THREADS."""
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    row = traceable_start((tl.program_id(0) // ctas).to(tl.int64), stagger_rows, stagger_cycles)
    rank = tl.program_id(0) % ctas
    x_row = x_ptr + row * x_stride * UNIT
    y_row = y_ptr + row * y_stride * UNIT
    x_base = x_ptr.to(tl.int64) & VECTOR_MASK
    y_base = y_ptr.to(tl.int64) & VECTOR_MASK
    differ = x_base - y_base if BASE_ALIGNMENT > 0 else x_base | y_base
    if differ == 0:
        forward_chunk(
            x_row, y_row, slots_ptr + row * ctas, rank, N, ctas, chunk,
            TILES, THREADS, VECTOR, BASE_ALIGNMENT, PLACES, KEEP_IN_L2, BLOCK, LOG,
        )  # fmt: skip
    else:
        if rank == 0:
            row_by_steps(x_row, y_row, N * UNIT, BLOCK, LOG, None)


@triton.jit
def forward_chunk(
    x_start, y_start, row_slots, rank, N, ctas, chunk,
    TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, PLACES: tl.constexpr,
    KEEP_IN_L2: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """Chunk `rank` of the row at pointer `x_start`."""
    DTYPE: tl.constexpr = x_start.dtype.element_ty
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    x_row = x_start + tl.arange(0, 1)
    y_row = y_start + tl.arange(0, 1)
    offset, first, row_end = row_vectors(y_row, N, VECTOR, BASE_ALIGNMENT)
    start = rank * chunk + tl.arange(0, 1)
    end = tl.minimum(start + chunk, row_end)
    x = load_tiles(word_pointers(x_row, offset, 4), first, end, start, padding(DTYPE), TILES, THREADS, 4, BASE_ALIGNMENT, KEEP_IN_L2)
    if BASE_ALIGNMENT > 0:
        columns, inside = edge_columns(N, offset, first, row_end, VECTOR, 2 * VECTOR)
        inside = inside & (start == 0)[:, None]
        edge = tl.load(x_row[:, None] + columns, mask=inside, other=-float("inf")).to(tl.float32)
    m = tl.max(thread_max(x, DTYPE), 1)
    if BASE_ALIGNMENT > 0:
        m = tl.maximum(m, tl.max(edge, 1))
    base = finite_or_zero(m)[:, None]
    if TILES <= 2:  # what a thread computes once it keeps until it writes
        lower, upper = exponentials(x, base, None, DTYPE)
        s = tl.sum(exponential_sum(lower, upper, DTYPE), 1)
    else:
        x = rematerialize(x, tl.where(base != base, -1, 0)[:, :, None])
        thread_sum = tile_exp_sum(x[0], base[:, :, None], None, DTYPE)
        for p in tl.static_range(1, TILES):
            thread_sum += tile_exp_sum(x[p], base[:, :, None], None, DTYPE)
        s = tl.sum(thread_sum, 1)
    if BASE_ALIGNMENT > 0:
        s += tl.sum(exp_fast(edge - base), 1)
    missing, words = exchanged(row_slots, rank, pair_of(m, s), ctas, PLACES)
    whole_max, whole_sum = merged(words, ctas, PLACES)
    if missing > 0:
        whole_max, whole_sum = chunk_partial(x_start, N * UNIT, missing, BLOCK)
    whole_base = finite_or_zero(whole_max) + tl.zeros((1, 1), tl.float32)
    norm = norm_of(whole_sum + tl.zeros((1, 1), tl.float32), LOG)
    y_out = output_pointers(y_row, offset, 4, DTYPE)
    if TILES <= 2 and not LOG:
        own_norm = exp_fast(m[:, None] - whole_base) * norm  # `m` may be -inf, where `base` is 0
        write_exponentials(y_out, lower, upper, own_norm, first, end, start, THREADS, 4, DTYPE, BASE_ALIGNMENT)
    else:
        zero = tl.where(whole_sum < 0, -1, 0) + tl.zeros((1, 1), tl.int32)  # the sum is never negative
        x = rematerialize(x, zero[:, :, None])
        write_normalized(y_out, x, whole_base, norm, None, first, end[:, None] | zero, start, THREADS, 4, DTYPE, BASE_ALIGNMENT, LOG)
    if BASE_ALIGNMENT > 0:
        tl.store(y_row[:, None] + columns, rounded(normalized(edge, whole_base, norm, None, LOG), DTYPE), mask=inside)


@triton.jit
def thread_max(tiles, DTYPE: tl.constexpr):
    """Each thread's maximum over all tiles, (R, THREADS). One instruction compares two 16-bit elements with two others."""
    if DTYPE == tl.float32:
        m = tile_max(tiles[0], DTYPE)
        for p in tl.static_range(1, len(tiles)):
            m = tl.maximum(m, tile_max(tiles[p], DTYPE))
        return m
    else:
        word = tiles[0]
        for p in tl.static_range(1, len(tiles)):
            word = larger(word, tiles[p], DTYPE)
        return packed_max(word, DTYPE)


@triton.jit
def exchanged(row_slots, rank, word, ctas, PLACES: tl.constexpr):
    """Publishes this program's word, (1), which is not 0. (0, words) as soon as it has those of all `ctas` programs of the row.

    (1, ..) after MAX_POLLS vain polls. Only words that are still missing are polled: polls delay the loads and stores of other programs.
    """
    peer = tl.arange(0, PLACES)
    exists = peer < ctas
    words = tl.zeros((PLACES,), tl.int64)
    missing = tl.full((), 1, tl.int32)
    polls = tl.full((), 0, tl.int32)
    tl.atomic_xchg(row_slots + rank + tl.arange(0, 1), word, sem="relaxed")
    while (missing > 0) & (polls < MAX_POLLS):
        words = tl.load(row_slots + peer, mask=exists & (words == 0), other=words, volatile=True)
        missing = tl.max((exists & (words == 0)).to(tl.int32), 0)
        polls += 1
    return missing, words


@triton.jit
def merged(words, ctas, PLACES: tl.constexpr):
    """(max, sum) of the first `ctas` words of `pair_of`, scalars."""
    exists = tl.arange(0, PLACES) < ctas
    m = tl.where(exists, pair_max(words), -float("inf"))
    whole = tl.max(m, 0)
    return whole, tl.sum(tl.where(exists, slot_value(words) * exp_fast(m - finite_or_zero(whole)), 0.0), 0)


@triton.jit
def chunk_partial(x_start, N, one, BLOCK: tl.constexpr):
    """(max, sum) of N elements, scalars. `one` is as in `softbench.kernels.triton.forward.whole_row`."""
    columns = tl.arange(0, BLOCK)
    m = tl.full((BLOCK,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, N, one * BLOCK):
        x = tl.load(x_start + at + columns, mask=columns < N - at, other=-float("inf")).to(tl.float32)
        n = tl.maximum(m, x)
        base = finite_or_zero(n)
        s = s * exp_fast(m - base) + exp_fast(x - base)
        m = n
    whole = tl.max(m, 0)
    return whole, tl.sum(s * exp_fast(m - finite_or_zero(whole)), 0)


@triton.jit
def backward_split_traceable(
    dy_ptr, y_ptr, dx_ptr, slots_ptr, dy_stride, y_stride, dx_stride, N, ctas, chunk, stagger_rows, stagger_cycles,
    TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, PLACES: tl.constexpr,
    KEEP_IN_L2: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """As `forward_split_traceable`, with TILES of each of dy and y. slots: `ctas` zeros a row."""
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    row = traceable_start((tl.program_id(0) // ctas).to(tl.int64), stagger_rows, stagger_cycles)
    rank = tl.program_id(0) % ctas
    dy_row = dy_ptr + row * dy_stride * UNIT
    y_row = y_ptr + row * y_stride * UNIT
    dx_row = dx_ptr + row * dx_stride * UNIT
    dy_base = dy_ptr.to(tl.int64) & VECTOR_MASK
    y_base = y_ptr.to(tl.int64) & VECTOR_MASK
    dx_base = dx_ptr.to(tl.int64) & VECTOR_MASK
    differ = (dy_base - y_base) | (dx_base - y_base) if BASE_ALIGNMENT > 0 else dy_base | y_base | dx_base
    if differ == 0:
        backward_chunk(
            dy_row, y_row, dx_row, slots_ptr + row * ctas, rank, N, ctas, chunk,
            TILES, THREADS, VECTOR, BASE_ALIGNMENT, PLACES, KEEP_IN_L2, BLOCK, LOG,
        )  # fmt: skip
    else:
        if rank == 0:
            gradient_of_row(dy_row, y_row, dx_row, N * UNIT, BLOCK, LOG, None)


@triton.jit
def backward_chunk(
    dy_start, y_start, dx_start, row_slots, rank, N, ctas, chunk,
    TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, PLACES: tl.constexpr,
    KEEP_IN_L2: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """Chunk `rank` of the row at pointer `dy_start`."""
    DTYPE: tl.constexpr = y_start.dtype.element_ty
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    dy_row = dy_start + tl.arange(0, 1)
    y_row = y_start + tl.arange(0, 1)
    dx_row = dx_start + tl.arange(0, 1)
    offset, first, row_end = row_vectors(dx_row, N, VECTOR, BASE_ALIGNMENT)
    start = rank * chunk + tl.arange(0, 1)
    end = tl.minimum(start + chunk, row_end)
    dy = load_tiles(word_pointers(dy_row, offset, 4), first, end, start, 0, TILES, THREADS, 4, BASE_ALIGNMENT, KEEP_IN_L2)
    y = load_tiles(word_pointers(y_row, offset, 4), first, end, start, 0, TILES, THREADS, 4, BASE_ALIGNMENT, KEEP_IN_L2)
    if BASE_ALIGNMENT > 0:
        columns, inside = edge_columns(N, offset, first, row_end, VECTOR, 2 * VECTOR)
        inside = inside & (start == 0)[:, None]
        dy_edge = tl.load(dy_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
        y_edge = tl.load(y_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
    own_dot = dot_product(dy, y, DTYPE, LOG)
    if BASE_ALIGNMENT > 0:
        own_dot += tl.sum(dot_terms(dy_edge, y_edge, LOG), 1)
    missing, words = exchanged(row_slots, rank, slot_of(own_dot), ctas, PLACES)
    whole_dot = tl.sum(tl.where(tl.arange(0, PLACES) < ctas, slot_value(words), 0.0), 0)
    if missing > 0:
        whole_dot = chunk_dot(dy_start, y_start, N * UNIT, missing, BLOCK, LOG)
    dot = whole_dot + tl.zeros((1,), tl.float32)
    zero = tl.where(dot != dot, -1, 0)[:, None, None]  # of a NaN, every result is NaN in any case
    dy = rematerialize(dy, zero)
    y = rematerialize(y, zero)
    late = tl.where(missing < 0, -1, 0) + tl.zeros((1, 1), tl.int32)  # `missing` is never negative
    dx_out = output_pointers(dx_row, offset, 4, DTYPE)
    write_gradient(dx_out, dy, y, dot, None, first, end[:, None] | late, start, THREADS, 4, DTYPE, BASE_ALIGNMENT, LOG)
    if BASE_ALIGNMENT > 0:
        tl.store(dx_row[:, None] + columns, rounded(gradient(y_edge, dy_edge, dot[:, None], None, LOG), DTYPE), mask=inside)


@triton.jit
def chunk_dot(dy_start, y_start, N, one, BLOCK: tl.constexpr, LOG: tl.constexpr):
    """The sum of `dot_terms` over N elements, as `chunk_partial`."""
    columns = tl.arange(0, BLOCK)
    terms = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, N, one * BLOCK):
        dy = tl.load(dy_start + at + columns, mask=columns < N - at, other=0.0).to(tl.float32)
        y = tl.load(y_start + at + columns, mask=columns < N - at, other=0.0).to(tl.float32)
        terms += dot_terms(dy, y, LOG)
    return tl.sum(terms, 0)
