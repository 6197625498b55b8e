"""Kernels of the backward's fast tiers, of softmax and log-softmax: they read dy and y once and write dx once.

dx is y * (dy - sum(dy * y)), or for LOG dy - exp(y) * sum(dy), in both cases times `scale`, which is as in `forward.py`. dx has the dtype
of dy and y, or 16 bits where they are float32.

They work as in `forward.py`. With two tensors in registers, every tier ends at half the row. The programs of a row exchange one sum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .cluster_exchange import cluster_arrive_sum, cluster_exchange_sum
from .generic import dot_terms
from .grid_exchange import SLOT_WORDS, count_program, grid_exchange_sum, launch_tag, prefetch_slot, slot_word
from .packed_io import edge_columns, load_tiles, output_pointers, rounded, row_vectors, word_pointers
from .smem_tiles import copy_pair_to_smem, smem_dots, write_smem_gradient
from .softmax_ops import dot_product, gradient, late_zero, rematerialize, thread_dots, write_gradient
from .staggered_start import staggered_start


@triton.jit(do_not_specialize=["dy_stride", "y_stride", "dx_stride", "M", "N", "scale"])
def backward_rows(
    dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N,
    ROWS: tl.constexpr, TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr,
    BASE_ALIGNMENT: tl.constexpr, KEEP_IN_L2: tl.constexpr, LOG: tl.constexpr, scale,
):  # fmt: skip
    """See `softbench.kernels.triton.forward.forward_rows`."""
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    if scale is not None and scale.dtype.is_ptr():
        if ROWS > 1:
            scale = tl.load(scale + row, mask=row < M, other=1.0)[:, None]
        else:
            scale = tl.load(scale + tl.program_id(0))
    y_row = y_ptr + row * y_stride * UNIT
    backward_vectors(
        dy_ptr + row * dy_stride * UNIT, y_row, dx_ptr + row * dx_stride * UNIT, y_row, row < M, N, scale,
        ROWS, TILES, THREADS, WORDS, VECTOR, BASE_ALIGNMENT, KEEP_IN_L2, LOG,
    )  # fmt: skip


@triton.jit
def backward_vectors(
    dy_row, y_row, dx_row, counted, exists, N, scale,
    ROWS: tl.constexpr, TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr,
    BASE_ALIGNMENT: tl.constexpr, KEEP_IN_L2: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """See `softbench.kernels.triton.forward.forward_vectors`."""
    DTYPE: tl.constexpr = y_row.dtype.element_ty
    OUT: tl.constexpr = dx_row.dtype.element_ty
    offset, first, end = row_vectors(counted, N, VECTOR, BASE_ALIGNMENT)
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
    write_gradient(dx_out, dy, y, dot, scale, first, end, start, THREADS, WORDS, DTYPE, BASE_ALIGNMENT, LOG)
    if BASE_ALIGNMENT > 0:
        tl.store(dx_row[:, None] + columns, rounded(gradient(y_edge, dy_edge, dot[:, None], scale, LOG), OUT), mask=inside)


@triton.jit(do_not_specialize=["dy_stride", "y_stride", "dx_stride", "N", "chunk", "stagger_rows", "stagger_cycles", "scale"])
def backward_cluster(
    dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, N, chunk, stagger_rows, stagger_cycles,
    TILES: tl.constexpr, CTAS: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr,
    KEEP_IN_L2: tl.constexpr, LOG: tl.constexpr, scale,
):  # fmt: skip
    """See `softbench.kernels.triton.forward.forward_cluster`."""
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    OUT: tl.constexpr = dx_ptr.dtype.element_ty
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    LATE: tl.constexpr = DTYPE != tl.float32 and BASE_ALIGNMENT > 0 and TILES == 5  # ptxas spills such tiles
    rank = tl.arange(0, CTAS)
    cluster_arrive_sum(rank, CTAS)
    row_number = staggered_start(tl.program_id(0), stagger_rows, stagger_cycles)
    row = row_number.to(tl.int64) + rank * 0
    dy_row = dy_ptr + row * dy_stride * UNIT
    y_row = y_ptr + row * y_stride * UNIT
    dx_row = dx_ptr + row * dx_stride * UNIT
    offset, first, end = row_vectors(y_row, N, VECTOR, BASE_ALIGNMENT)
    if scale is not None and scale.dtype.is_ptr():
        scale = tl.load(scale + row_number)
    if BASE_ALIGNMENT > 0:
        columns, inside = edge_columns(N, offset, first, end, VECTOR, 2 * VECTOR)
        inside = inside & (rank == 0)[:, None]
        dy_edge = tl.load(dy_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
        y_edge = tl.load(y_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
    start = rank * chunk
    end = tl.minimum(start + chunk, end)
    dy = load_tiles(word_pointers(dy_row, offset, 4), first, end, start, 0, TILES, THREADS, 4, BASE_ALIGNMENT, KEEP_IN_L2)
    y = load_tiles(word_pointers(y_row, offset, 4), first, end, start, 0, TILES, THREADS, 4, BASE_ALIGNMENT, KEEP_IN_L2)
    dot = dot_product(dy, y, DTYPE, LOG)
    if BASE_ALIGNMENT > 0:
        dot += tl.sum(dot_terms(dy_edge, y_edge, LOG), 1)
    dot = cluster_exchange_sum(dot, CTAS)
    zero = tl.where(dot != dot, -1, 0)[:, None, None]
    if LATE:  # the same row, but no address of dx is kept from before the exchange
        dx_row = dx_ptr + (row | late_zero(dot)) * dx_stride * UNIT
    dx_out = output_pointers(dx_row, offset, 4, DTYPE)
    dy = rematerialize(dy, zero)
    y = rematerialize(y, zero)
    write_gradient(dx_out, dy, y, dot, scale, first, end, start, THREADS, 4, DTYPE, BASE_ALIGNMENT, LOG)
    if BASE_ALIGNMENT > 0:
        tl.store(dx_row[:, None] + columns, rounded(gradient(y_edge, dy_edge, dot[:, None], scale, LOG), OUT), mask=inside)


@triton.jit
def whole_row_dot(
    dy_ptr, y_ptr, dy_stride, y_stride, row, N, one, UNIT: tl.constexpr, THREADS: tl.constexpr, LOG: tl.constexpr
):  # fmt: skip
    """The sum of `dot_terms` over a row of N * UNIT elements. `one` is as in `softbench.kernels.triton.forward.whole_row`."""
    column = tl.arange(0, THREADS)
    dy_row = dy_ptr + row.to(tl.int64) * dy_stride * UNIT + column
    y_row = y_ptr + row.to(tl.int64) * y_stride * UNIT + column
    STEP: tl.constexpr = THREADS // UNIT
    terms = tl.zeros((THREADS,), tl.float32)
    for i in range(0, (N - 1) // STEP + 1, one):
        at = i * STEP
        inside = column // UNIT < N - at
        dy = tl.load(dy_row + at.to(tl.int64) * UNIT, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(y_row + at.to(tl.int64) * UNIT, mask=inside, other=0.0).to(tl.float32)
        terms += dot_terms(dy, y, LOG)
    return tl.sum(terms, 0)


@triton.jit(do_not_specialize=[
    "dy_stride", "y_stride", "dx_stride", "N", "ctas", "chunk", "programs", "step", "stagger_rows", "stagger_cycles", "scale",
])  # fmt: skip
def backward_split(
    dy_ptr, y_ptr, dx_ptr, counter, slots, dy_stride, y_stride, dx_stride, N, ctas, chunk, programs, step, stagger_rows,
    stagger_cycles,
    TILES: tl.constexpr, SMEM_TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr,
    MAX_CTAS: tl.constexpr, READ_TWICE: tl.constexpr, L2_POLICY: tl.constexpr, LOG: tl.constexpr, scale,
):  # fmt: skip
    """See `softbench.kernels.triton.forward.forward_split`. `slots` are MAX_CTAS * SLOT_WORDS int64 a row, and `ctas` > 1.

    READ_TWICE: how many tiles that are read twice are in flight at once, or 0. step: READ_TWICE * THREADS. As an argument, it keeps the
    compiler from loading more at once, for which there are no registers.
    """
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    OUT: tl.constexpr = dx_ptr.dtype.element_ty
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    row_number = staggered_start(tl.program_id(0) // ctas, stagger_rows, stagger_cycles)
    rank = tl.program_id(0) % ctas
    row = row_number.to(tl.int64) + tl.arange(0, 1)
    dy_row = dy_ptr + row * dy_stride * UNIT
    y_row = y_ptr + row * y_stride * UNIT
    dx_row = dx_ptr + row * dx_stride * UNIT
    offset, first, row_end = row_vectors(y_row, N, VECTOR, BASE_ALIGNMENT)
    start = rank * chunk + tl.arange(0, 1)
    end = tl.minimum(start + chunk, row_end)
    if scale is not None and scale.dtype.is_ptr():
        scale = tl.load(scale + row_number)
    dy_words = word_pointers(dy_row, offset, 4)
    y_words = word_pointers(y_row, offset, 4)
    if SMEM_TILES > 0:
        smem = copy_pair_to_smem(dy_words, y_words, end, start + TILES * THREADS, SMEM_TILES, THREADS, L2_POLICY)
    dy = load_tiles(dy_words, first, end, start, 0, TILES, THREADS, 4, BASE_ALIGNMENT, L2_POLICY)
    y = load_tiles(y_words, first, end, start, 0, TILES, THREADS, 4, BASE_ALIGNMENT, L2_POLICY)
    if BASE_ALIGNMENT > 0:
        columns, row_edges = edge_columns(N, offset, first, row_end, VECTOR, 2 * VECTOR)
        inside = row_edges & (start == 0)[:, None]
        dy_edge = tl.load(dy_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
        y_edge = tl.load(y_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
    row_slots = slots + row_number.to(tl.int64) * (MAX_CTAS * SLOT_WORDS)
    own_slot = row_slots + rank * SLOT_WORDS
    if DTYPE == tl.float32:  # before the tag is read, and in 16 bits after it: else ptxas of Triton 3.9 spills
        prefetch_slot(own_slot)
    tag = launch_tag(counter, THREADS)
    if DTYPE != tl.float32:
        prefetch_slot(own_slot)
    terms = thread_dots(dy, y, DTYPE, LOG)
    if SMEM_TILES > 0:
        terms += smem_dots(smem, SMEM_TILES, THREADS, DTYPE, LOG)
    HELD: tl.constexpr = (TILES + SMEM_TILES) * THREADS
    if READ_TWICE > 0:
        for at in range(HELD, chunk, step):
            dy_more = load_tiles(dy_words, first, end, start + at, 0, READ_TWICE, THREADS, 4, BASE_ALIGNMENT, L2_POLICY)
            y_more = load_tiles(y_words, first, end, start + at, 0, READ_TWICE, THREADS, 4, BASE_ALIGNMENT, L2_POLICY)
            terms += thread_dots(dy_more, y_more, DTYPE, LOG)
    chunk_dot = tl.sum(terms, 1)
    if BASE_ALIGNMENT > 0:
        chunk_dot += tl.sum(dot_terms(dy_edge, y_edge, LOG), 1)
    tl.store(own_slot + tl.arange(0, 1), slot_word(tag, chunk_dot))
    count_program(counter, tag, programs)
    timed_out, row_dot = grid_exchange_sum(row_slots, tag, ctas, MAX_CTAS, THREADS)
    if timed_out != 0:  # reduce the whole row again, from dy and y
        again = row_number * timed_out
        row_dot = whole_row_dot(dy_ptr, y_ptr, dy_stride, y_stride, again, N, timed_out, UNIT, THREADS, LOG)
    dot = row_dot + tl.zeros((1,), tl.float32)
    zero = tl.where(dot != dot, -1, 0)[:, None, None]
    if TILES == 1 or SMEM_TILES > 0:  # with a limit of 32: the same row, but no address of dx is kept from before the exchange
        dx_row = dx_ptr + (row | late_zero(dot)) * dx_stride * UNIT
        end = end | late_zero(dot)
    dx_out = output_pointers(dx_row, offset, 4, DTYPE)
    dy = rematerialize(dy, zero)
    y = rematerialize(y, zero)
    write_gradient(dx_out, dy, y, dot, scale, first, end, start, THREADS, 4, DTYPE, BASE_ALIGNMENT, LOG)
    if SMEM_TILES > 0:
        write_smem_gradient(dx_out, smem, dot, scale, end, start + TILES * THREADS, SMEM_TILES, THREADS, DTYPE, LOG)
    if READ_TWICE > 0:
        for at_again in range(HELD, chunk, step):
            here = start + at_again
            dy_again = load_tiles(dy_words, first, end, here, 0, READ_TWICE, THREADS, 4, BASE_ALIGNMENT, L2_POLICY)
            y_again = load_tiles(y_words, first, end, here, 0, READ_TWICE, THREADS, 4, BASE_ALIGNMENT, L2_POLICY)
            write_gradient(dx_out, dy_again, y_again, dot, scale, first, end, here, THREADS, 4, DTYPE, BASE_ALIGNMENT, LOG)
    if BASE_ALIGNMENT > 0:
        tl.store(dx_row[:, None] + columns, rounded(gradient(y_edge, dy_edge, dot[:, None], scale, LOG), OUT), mask=inside)
