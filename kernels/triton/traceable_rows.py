"""Kernels that compilers trace. Those of the tier rows have the loads, stores and arithmetic of `forward_rows` and `backward_rows`.

A compiler finds by analysis what a kernel writes. It takes all operands for written where it meets assembly with side effects, and an input
for written where the address of a store depends on it. So these kernels reduce by Triton's own reductions, and count all vectors from the
result's rows. Inductor writes global constants into its code by their `repr`, so these kernels have no infinity among them.

A compiled graph may be given tensors of any address. Where the operands' rows have different offsets from a 16-byte boundary, a program
takes its rows element by element, in steps of BLOCK columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .generic import dot_terms, gradient_of_row, gradient_tile, row_by_steps, tile_of_rows
from .packed_io import edge_columns, load_tiles, output_pointers, padding, rounded, row_vectors, word_pointers
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
    row_max,
    tile_exp_sum,
    write_exponentials,
    write_gradient,
    write_normalized,
)

VECTOR_MASK = tl.constexpr(15)


@triton.jit
def forward_traceable(
    x_ptr, y_ptr, x_stride, y_stride, M, N,
    ROWS: tl.constexpr, TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr,
    BASE_ALIGNMENT: tl.constexpr, KEEP_IN_L2: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """As `softbench.kernels.triton.forward.forward_rows`, of rows of any address."""
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    x_base = x_ptr.to(tl.int64) & VECTOR_MASK
    y_base = y_ptr.to(tl.int64) & VECTOR_MASK
    differ = x_base - y_base if BASE_ALIGNMENT > 0 else x_base | y_base
    if differ == 0:
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        forward_vectors(
            x_ptr + row * x_stride * UNIT, y_ptr + row * y_stride * UNIT, row < M, N,
            ROWS, TILES, THREADS, WORDS, VECTOR, BASE_ALIGNMENT, KEEP_IN_L2, LOG,
        )  # fmt: skip
    else:
        first_row = tl.program_id(0).to(tl.int64) * ROWS
        for number in range(ROWS):
            one = first_row + number
            if one < M:
                row_by_steps(x_ptr + one * x_stride * UNIT, y_ptr + one * y_stride * UNIT, N * UNIT, BLOCK, LOG, None)


@triton.jit
def forward_vectors(
    x_row, y_row, exists, N,
    ROWS: tl.constexpr, TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr,
    BASE_ALIGNMENT: tl.constexpr, KEEP_IN_L2: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """The rows at pointers (ROWS), of those that exist."""
    DTYPE: tl.constexpr = x_row.dtype.element_ty
    offset, first, end = row_vectors(y_row, N, VECTOR, BASE_ALIGNMENT)
    if ROWS > 1:
        end = tl.where(exists, end, 0)
    start = offset * 0
    if BASE_ALIGNMENT > 0:
        columns, inside = edge_columns(N, offset, first, end, VECTOR, 2 * VECTOR)
        if ROWS > 1:
            inside = inside & exists[:, None]
        edge = tl.load(x_row[:, None] + columns, mask=inside, other=-float("inf")).to(tl.float32)
    words = word_pointers(x_row, offset, WORDS)
    x = load_tiles(words, first, end, start, padding(DTYPE), TILES, THREADS, WORDS, BASE_ALIGNMENT, KEEP_IN_L2)
    m = row_max(x, DTYPE)
    if BASE_ALIGNMENT > 0:
        m = tl.maximum(m, tl.max(edge, 1))
    base = finite_or_zero(m)[:, None]
    y_out = output_pointers(y_row, offset, WORDS, DTYPE)
    if THREADS <= 32 or TILES * WORDS <= 8:
        lower, upper = exponentials(x, base, None, DTYPE)
        s = tl.sum(exponential_sum(lower, upper, DTYPE), 1)[:, None]
    else:  # computed again for the result: `softmax_ops.py`
        x = rematerialize(x, tl.where(base != base, -1, 0)[:, :, None])
        thread_sum = tile_exp_sum(x[0], base[:, :, None], None, DTYPE)
        for p in tl.static_range(1, TILES):
            thread_sum += tile_exp_sum(x[p], base[:, :, None], None, DTYPE)
        s = tl.sum(thread_sum, 1)[:, None]
    if BASE_ALIGNMENT > 0:
        s += tl.sum(exp_fast(edge - base), 1)[:, None]
    norm = norm_of(s, LOG)
    if LOG or (THREADS > 32 and TILES * WORDS > 8):
        x = rematerialize(x, tl.where(s < 0, -1, 0)[:, :, None])  # s is never negative
        write_normalized(y_out, x, base, norm, None, first, end, start, THREADS, WORDS, DTYPE, BASE_ALIGNMENT, LOG)
    else:
        write_exponentials(y_out, lower, upper, norm, first, end, start, THREADS, WORDS, DTYPE, BASE_ALIGNMENT)
    if BASE_ALIGNMENT > 0:
        tl.store(y_row[:, None] + columns, rounded(normalized(edge, base, norm, None, LOG), DTYPE), mask=inside)


@triton.jit
def backward_traceable(
    dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N,
    ROWS: tl.constexpr, TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr,
    BASE_ALIGNMENT: tl.constexpr, KEEP_IN_L2: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """As `softbench.kernels.triton.backward.backward_rows`, of rows of any address."""
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    dy_base = dy_ptr.to(tl.int64) & VECTOR_MASK
    y_base = y_ptr.to(tl.int64) & VECTOR_MASK
    dx_base = dx_ptr.to(tl.int64) & VECTOR_MASK
    differ = (dy_base - y_base) | (dx_base - y_base) if BASE_ALIGNMENT > 0 else dy_base | y_base | dx_base
    if differ == 0:
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        dy_row = dy_ptr + row * dy_stride * UNIT
        y_row = y_ptr + row * y_stride * UNIT
        backward_vectors(
            dy_row, y_row, dx_ptr + row * dx_stride * UNIT, row < M, N,
            ROWS, TILES, THREADS, WORDS, VECTOR, BASE_ALIGNMENT, KEEP_IN_L2, LOG,
        )  # fmt: skip
    else:
        first_row = tl.program_id(0).to(tl.int64) * ROWS
        for number in range(ROWS):
            one = first_row + number
            if one < M:
                dy_one = dy_ptr + one * dy_stride * UNIT
                y_one = y_ptr + one * y_stride * UNIT
                gradient_of_row(dy_one, y_one, dx_ptr + one * dx_stride * UNIT, N * UNIT, BLOCK, LOG, None)


@triton.jit
def backward_vectors(
    dy_row, y_row, dx_row, exists, N,
    ROWS: tl.constexpr, TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr,
    BASE_ALIGNMENT: tl.constexpr, KEEP_IN_L2: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """The rows at pointers (ROWS), of those that exist."""
    DTYPE: tl.constexpr = y_row.dtype.element_ty
    offset, first, end = row_vectors(dx_row, N, VECTOR, BASE_ALIGNMENT)
    if ROWS > 1:
        end = tl.where(exists, end, 0)
    start = offset * 0
    if BASE_ALIGNMENT > 0:
        columns, inside = edge_columns(N, offset, first, end, VECTOR, 2 * VECTOR)
        if ROWS > 1:
            inside = inside & exists[:, None]
        dy_edge = tl.load(dy_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
        y_edge = tl.load(y_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
    dy_words = word_pointers(dy_row, offset, WORDS)
    dy = load_tiles(dy_words, first, end, start, 0, TILES, THREADS, WORDS, BASE_ALIGNMENT, KEEP_IN_L2)
    y_words = word_pointers(y_row, offset, WORDS)
    y = load_tiles(y_words, first, end, start, 0, TILES, THREADS, WORDS, BASE_ALIGNMENT, KEEP_IN_L2)
    dot = dot_product(dy, y, DTYPE, LOG)
    if BASE_ALIGNMENT > 0:
        dot += tl.sum(dot_terms(dy_edge, y_edge, LOG), 1)
    if TILES * WORDS > 8:
        zero = tl.where(dot != dot, -1, 0)[:, None, None]  # of a NaN, every result is NaN in any case
        dy = rematerialize(dy, zero)
        y = rematerialize(y, zero)
    dx_out = output_pointers(dx_row, offset, WORDS, DTYPE)
    write_gradient(dx_out, dy, y, dot, None, first, end, start, THREADS, WORDS, DTYPE, BASE_ALIGNMENT, LOG)
    if BASE_ALIGNMENT > 0:
        tl.store(dx_row[:, None] + columns, rounded(gradient(y_edge, dy_edge, dot[:, None], None, LOG), DTYPE), mask=inside)


@triton.jit
def tile_traceable(
    x_ptr, y_ptr, x_stride, y_stride, M, N, BM: tl.constexpr, BN: tl.constexpr, KEEP_IN_L2: tl.constexpr, LOG: tl.constexpr
):  # fmt: skip
    POLICY: tl.constexpr = "evict_last" if KEEP_IN_L2 else ""
    tile_of_rows(x_ptr, y_ptr, x_stride, y_stride, M, N, BM, BN, POLICY, LOG, None)


@triton.jit
def gradient_tile_traceable(
    dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N,
    BM: tl.constexpr, BN: tl.constexpr, KEEP_IN_L2: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    POLICY: tl.constexpr = "evict_last" if KEEP_IN_L2 else ""
    gradient_tile(dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N, BM, BN, POLICY, LOG, None)
