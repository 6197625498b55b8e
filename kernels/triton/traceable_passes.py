"""Kernels that compilers trace for rows in two passes. The first leaves partial results of each row, and the second writes the row.

No program waits for another one. So a row may have any number of programs, and nothing must be filled before. But the inputs are read
twice. The second pass finds them in L2 if they fit there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .generic import dot_terms
from .grid_exchange import slot_value
from .packed_io import edge_columns, load_tiles, output_pointers, padding, rounded, row_vectors, word_pointers
from .softmax_ops import (
    exp_fast,
    finite_or_zero,
    gradient,
    late_zero,
    norm_of,
    normalized,
    thread_dots,
    tile_exp_sum,
    write_gradient,
    write_normalized,
)
from .traceable_rows import VECTOR_MASK
from .traceable_split import chunk_dot, chunk_partial, merged, pair_of, slot_of, thread_max


@triton.jit
def partials_traceable(
    x_ptr, slots_ptr, x_stride, N, parts, part,
    TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The (max, sum) of each of a row's `parts` parts, of `part` vectors each, to a word of slots."""
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    row = (tl.program_id(0) // parts).to(tl.int64)
    rank = tl.program_id(0) % parts
    x_row = x_ptr + row * x_stride * UNIT
    place = slots_ptr + tl.program_id(0) + tl.arange(0, 1)
    if (BASE_ALIGNMENT > 0) | ((x_ptr.to(tl.int64) & VECTOR_MASK) == 0):
        m, s = part_by_tiles(x_row + tl.arange(0, 1), rank, N, part, TILES, THREADS, VECTOR, BASE_ALIGNMENT)
        tl.store(place, pair_of(m, s))
    else:
        first = rank * part * VECTOR
        length = tl.minimum(part * VECTOR, N * UNIT - first)
        one_max, one_sum = chunk_partial(x_row + first, length, tl.minimum(parts, 1), BLOCK)
        tl.store(place, pair_of(one_max, one_sum) + tl.zeros((1,), tl.int64))


@triton.jit
def part_by_tiles(
    x_row, rank, N, part, TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr
):  # fmt: skip
    """(max, sum), each (1), of part `rank` of the row at pointer x_row (1)."""
    DTYPE: tl.constexpr = x_row.dtype.element_ty
    offset, first, row_end = row_vectors(x_row, N, VECTOR, BASE_ALIGNMENT)
    start = rank * part
    end = tl.minimum(start + part, row_end)
    words = word_pointers(x_row, offset, 4)
    if BASE_ALIGNMENT > 0:
        columns, inside = edge_columns(N, offset, first, row_end, VECTOR, 2 * VECTOR)
        inside = inside & (rank + tl.arange(0, 1) == 0)[:, None]
        edge = tl.load(x_row[:, None] + columns, mask=inside, other=-float("inf")).to(tl.float32)
    m = tl.full((1, THREADS), -float("inf"), tl.float32)
    s = tl.zeros((1, THREADS), tl.float32)
    for at in range(start, start + part, TILES * THREADS):
        here = at + tl.arange(0, 1)
        x = load_tiles(words, first, end, here, padding(DTYPE), TILES, THREADS, 4, BASE_ALIGNMENT, False)
        n = tl.maximum(m, thread_max(x, DTYPE))
        base = finite_or_zero(n)
        s = s * exp_fast(m - base)
        for p in tl.static_range(TILES):
            s += tile_exp_sum(x[p], base[:, :, None], None, DTYPE)
        m = n
    whole = tl.max(m, 1)
    if BASE_ALIGNMENT > 0:
        whole = tl.maximum(whole, tl.max(edge, 1))
    base = finite_or_zero(whole)[:, None]
    total = tl.sum(s * exp_fast(m - base), 1)
    if BASE_ALIGNMENT > 0:
        total += tl.sum(exp_fast(edge - base), 1)
    return whole, total


@triton.jit
def normalize_traceable(
    x_ptr, y_ptr, slots_ptr, x_stride, y_stride, N, parts, ctas, chunk,
    TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, PLACES: tl.constexpr,
    BLOCK: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """Writes rows from their `parts` <= PLACES partial results; `ctas` programs a row, each with `chunk` <= TILES * THREADS vectors."""
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    row = (program // ctas).to(tl.int64)
    rank = program % ctas
    x_start = x_ptr + row * x_stride * UNIT
    y_start = y_ptr + row * y_stride * UNIT
    x_base = x_ptr.to(tl.int64) & VECTOR_MASK
    y_base = y_ptr.to(tl.int64) & VECTOR_MASK
    differ = x_base - y_base if BASE_ALIGNMENT > 0 else x_base | y_base
    if differ == 0:
        x_row = x_start + tl.arange(0, 1)
        y_row = y_start + tl.arange(0, 1)
        offset, first, row_end = row_vectors(y_row, N, VECTOR, BASE_ALIGNMENT)
        start = rank * chunk + tl.arange(0, 1)
        end = tl.minimum(start + chunk, row_end)
        x = load_tiles(word_pointers(x_row, offset, 4), first, end, start, padding(DTYPE), TILES, THREADS, 4, BASE_ALIGNMENT, False)
        if BASE_ALIGNMENT > 0:
            columns, inside = edge_columns(N, offset, first, row_end, VECTOR, 2 * VECTOR)
            inside = inside & (start == 0)[:, None]
            edge = tl.load(x_row[:, None] + columns, mask=inside, other=-float("inf")).to(tl.float32)
        m, s = row_result(slots_ptr, row, parts, PLACES)
        base = finite_or_zero(m) + tl.zeros((1, 1), tl.float32)
        norm = norm_of(s + tl.zeros((1, 1), tl.float32), LOG)
        y_out = output_pointers(y_row, offset, 4, DTYPE)
        late = tl.where(s < 0, -1, 0) + tl.zeros((1, 1), tl.int32)  # 0, but unknown to the compiler, so it keeps no mask from the loads on
        write_normalized(y_out, x, base, norm, None, first, end[:, None] | late, start, THREADS, 4, DTYPE, BASE_ALIGNMENT, LOG)
        if BASE_ALIGNMENT > 0:
            tl.store(y_row[:, None] + columns, rounded(normalized(edge, base, norm, None, LOG), DTYPE), mask=inside)
    else:
        end_column = tl.minimum((rank + 1) * chunk * VECTOR, N * UNIT)
        whole_max, whole_sum = row_result(slots_ptr, row, parts, PLACES)
        normalize_steps(x_start, y_start, rank * chunk * VECTOR, end_column, whole_max, whole_sum, BLOCK, LOG)


@triton.jit
def normalize_steps(x_start, y_start, begin, end, m, s, BLOCK: tl.constexpr, LOG: tl.constexpr):
    """Writes columns begin..end-1 of a row, element by element."""
    columns = tl.arange(0, BLOCK)
    for at in range(begin, end, BLOCK):
        inside = columns < end - at
        x = tl.load(x_start + at + columns, mask=inside, other=-float("inf")).to(tl.float32)
        y = normalized(x, finite_or_zero(m), norm_of(s, LOG), None, LOG)
        tl.store(y_start + at + columns, rounded(y, x_start.dtype.element_ty), mask=inside)


@triton.jit
def row_result(slots_ptr, row, parts, PLACES: tl.constexpr):
    """(max, sum) of a row, scalars, from its partial results."""
    place = tl.arange(0, PLACES)
    return merged(tl.load(slots_ptr + row * parts + place, mask=place < parts, other=0), parts, PLACES)


@triton.jit
def dots_traceable(
    dy_ptr, y_ptr, slots_ptr, dy_stride, y_stride, N, parts, part,
    TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """As `partials_traceable`, of sums of `dot_terms`. The rows of both inputs have the same offsets from a 16-byte boundary."""
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    row = (tl.program_id(0) // parts).to(tl.int64)
    rank = tl.program_id(0) % parts
    dy_start = dy_ptr + row * dy_stride * UNIT
    y_start = y_ptr + row * y_stride * UNIT
    place = slots_ptr + tl.program_id(0) + tl.arange(0, 1)
    dy_base = dy_ptr.to(tl.int64) & VECTOR_MASK
    y_base = y_ptr.to(tl.int64) & VECTOR_MASK
    differ = dy_base - y_base if BASE_ALIGNMENT > 0 else dy_base | y_base
    if differ == 0:
        DTYPE: tl.constexpr = y_ptr.dtype.element_ty
        dy_row = dy_start + tl.arange(0, 1)
        y_row = y_start + tl.arange(0, 1)
        offset, first, row_end = row_vectors(y_row, N, VECTOR, BASE_ALIGNMENT)
        end = tl.minimum(rank * part + part, row_end)
        dy_words = word_pointers(dy_row, offset, 4)
        y_words = word_pointers(y_row, offset, 4)
        if BASE_ALIGNMENT > 0:
            columns, inside = edge_columns(N, offset, first, row_end, VECTOR, 2 * VECTOR)
            inside = inside & (rank + tl.arange(0, 1) == 0)[:, None]
            dy_edge = tl.load(dy_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
            y_edge = tl.load(y_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
        terms = tl.zeros((1, THREADS), tl.float32)
        for at in range(rank * part, rank * part + part, TILES * THREADS):
            here = at + tl.arange(0, 1)
            dy = load_tiles(dy_words, first, end, here, 0, TILES, THREADS, 4, BASE_ALIGNMENT, False)
            y = load_tiles(y_words, first, end, here, 0, TILES, THREADS, 4, BASE_ALIGNMENT, False)
            terms += thread_dots(dy, y, DTYPE, LOG)
        dot = tl.sum(terms, 1)
        if BASE_ALIGNMENT > 0:
            dot += tl.sum(dot_terms(dy_edge, y_edge, LOG), 1)
        tl.store(place, slot_of(dot))
    else:
        begin = rank * part * VECTOR
        length = tl.minimum(part * VECTOR, N * UNIT - begin)
        one_dot = chunk_dot(dy_start + begin, y_start + begin, length, tl.minimum(parts, 1), BLOCK, LOG)
        tl.store(place, slot_of(one_dot) + tl.zeros((1,), tl.int64))


@triton.jit
def gradients_traceable(
    dy_ptr, y_ptr, dx_ptr, slots_ptr, dy_stride, y_stride, dx_stride, N, parts, ctas, chunk,
    TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, PLACES: tl.constexpr,
    BLOCK: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """As `normalize_traceable`, with TILES of each of dy and y."""
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    row = (program // ctas).to(tl.int64)
    rank = program % ctas
    dy_start = dy_ptr + row * dy_stride * UNIT
    y_start = y_ptr + row * y_stride * UNIT
    dx_start = dx_ptr + row * dx_stride * UNIT
    dy_base = dy_ptr.to(tl.int64) & VECTOR_MASK
    y_base = y_ptr.to(tl.int64) & VECTOR_MASK
    dx_base = dx_ptr.to(tl.int64) & VECTOR_MASK
    differ = (dy_base - y_base) | (dx_base - y_base) if BASE_ALIGNMENT > 0 else dy_base | y_base | dx_base
    if differ == 0:
        dy_row = dy_start + tl.arange(0, 1)
        y_row = y_start + tl.arange(0, 1)
        dx_row = dx_start + tl.arange(0, 1)
        offset, first, row_end = row_vectors(dx_row, N, VECTOR, BASE_ALIGNMENT)
        start = rank * chunk + tl.arange(0, 1)
        end = tl.minimum(start + chunk, row_end)
        dy = load_tiles(word_pointers(dy_row, offset, 4), first, end, start, 0, TILES, THREADS, 4, BASE_ALIGNMENT, False)
        y = load_tiles(word_pointers(y_row, offset, 4), first, end, start, 0, TILES, THREADS, 4, BASE_ALIGNMENT, False)
        if BASE_ALIGNMENT > 0:
            columns, inside = edge_columns(N, offset, first, row_end, VECTOR, 2 * VECTOR)
            inside = inside & (start == 0)[:, None]
            dy_edge = tl.load(dy_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
            y_edge = tl.load(y_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
        dot = row_dot(slots_ptr, row, parts, PLACES) + tl.zeros((1,), tl.float32)
        dx_out = output_pointers(dx_row, offset, 4, DTYPE)
        late = late_zero(dot)[:, None]
        write_gradient(dx_out, dy, y, dot, None, first, end[:, None] | late, start, THREADS, 4, DTYPE, BASE_ALIGNMENT, LOG)
        if BASE_ALIGNMENT > 0:
            tl.store(dx_row[:, None] + columns, rounded(gradient(y_edge, dy_edge, dot[:, None], None, LOG), DTYPE), mask=inside)
    else:
        end_column = tl.minimum((rank + 1) * chunk * VECTOR, N * UNIT)
        whole_dot = row_dot(slots_ptr, row, parts, PLACES)
        gradient_steps(dy_start, y_start, dx_start, rank * chunk * VECTOR, end_column, whole_dot, BLOCK, LOG)


@triton.jit
def gradient_steps(dy_start, y_start, dx_start, begin, end, dot, BLOCK: tl.constexpr, LOG: tl.constexpr):
    """As `normalize_steps`."""
    columns = tl.arange(0, BLOCK)
    for at in range(begin, end, BLOCK):
        inside = columns < end - at
        dy = tl.load(dy_start + at + columns, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(y_start + at + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_start + at + columns, rounded(gradient(y, dy, dot, None, LOG), y_start.dtype.element_ty), mask=inside)


@triton.jit
def row_dot(slots_ptr, row, parts, PLACES: tl.constexpr):
    """The sum of a row's `dot_terms`, a scalar, from its partial results."""
    place = tl.arange(0, PLACES)
    exists = place < parts
    return tl.sum(tl.where(exists, slot_value(tl.load(slots_ptr + row * parts + place, mask=exists, other=0)), 0.0), 0)
