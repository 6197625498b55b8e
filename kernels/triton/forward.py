"""Kernels of the forward's fast tiers, of softmax and log-softmax: they read x once and write y once. `planner.py` chooses among them.

- rows: a program has whole rows in registers. For rows up to about 36 KiB, or 128 KiB without clusters. The grid is not persistent: the
  hardware's order of programs keeps the addresses in flight close together, and a static loop over rows does not.
- cluster: the CTAs of a cluster share a row, and each has a chunk of it in registers. For longer rows up to 1 MiB, and for few rows.
- split: programs anywhere in the grid share a row (`grid_exchange.py`), and each has a chunk in registers and shared memory. For the
  longest rows, and for few rows of any length above. With one program a row, for rows that registers alone do not hold well.

Each kernel loads its part of a row (`packed_io.py`), and reduces it to one (max, sum) a thread (`softmax_ops.py`). It merges those over the
program (`block_reduce`) and over the programs of the row. Then it writes the result from the registers. Lanes of a warp find the maximum
and then the sum, by Triton's own reductions.

LOG and `scale` are as in `softmax_ops.py`; here `scale` is None, a number, or a pointer to one number a row. y has x's dtype, or is float32
where x has 16 bits. Then a vector has 8 bytes of x.

`docs/kernels/triton.md` has the reasons for the design, and what was tried and does not work.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .cluster_exchange import cluster_arrive, cluster_exchange
from .grid_exchange import SLOT_WORDS, count_program, grid_exchange, launch_tag, prefetch_slot, publish
from .packed_io import edge_columns, load_tiles, output_pointers, padding, rounded, row_vectors, word_pointers
from .smem_tiles import accumulate_smem, copy_to_smem, write_smem
from .softmax_ops import (
    MINUS_INFINITY,
    accumulate_online,
    barrier_zero,
    block_reduce,
    exp_fast,
    exponential_sum,
    exponentials,
    finite_or_zero,
    init_partial,
    init_partial_cached,
    init_partial_online,
    merge,
    norm_of,
    normalized,
    rematerialize,
    row_max,
    tile_exp_sum,
    tile_max,
    write_exponentials,
    write_normalized,
)
from .staggered_start import staggered_start


@triton.jit(do_not_specialize=["x_stride", "y_stride", "M", "N", "scale"])
def forward_rows(
    x_ptr, y_ptr, x_stride, y_stride, M, N,
    ROWS: tl.constexpr, TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr,
    BASE_ALIGNMENT: tl.constexpr, KEEP_IN_L2: tl.constexpr, LOG: tl.constexpr, scale,
):  # fmt: skip
    """ROWS rows a program, each in TILES tiles of THREADS vectors of WORDS words (VECTOR elements).

    BASE_ALIGNMENT = 0: strides and N count vectors; otherwise elements.
    """
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    if scale is not None and scale.dtype.is_ptr():
        if ROWS > 1:
            scale = tl.load(scale + row, mask=row < M, other=1.0)[:, None]
        else:
            scale = tl.load(scale + tl.program_id(0))
    x_row = x_ptr + row * x_stride * UNIT
    y_row = y_ptr + row * y_stride * UNIT
    if THREADS <= 32:
        forward_vectors(
            x_row, y_row, x_row, row < M, N, scale, ROWS, TILES, THREADS, WORDS, VECTOR, BASE_ALIGNMENT, KEEP_IN_L2, LOG
        )  # fmt: skip
    else:
        forward_warps(x_row, y_row, N, scale, TILES, THREADS, WORDS, VECTOR, BASE_ALIGNMENT, KEEP_IN_L2, LOG)


@triton.jit
def forward_warps(
    x_row, y_row, N, scale,
    TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr,
    BASE_ALIGNMENT: tl.constexpr, KEEP_IN_L2: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """The row at a pointer (1), by several warps. They merge by `block_reduce`, for which launches of few rows wait less."""
    DTYPE: tl.constexpr = x_row.dtype.element_ty
    OUT: tl.constexpr = y_row.dtype.element_ty
    VECTORS: tl.constexpr = TILES if OUT == DTYPE else TILES * WORDS // 4
    offset, first, end = row_vectors(x_row, N, VECTOR, BASE_ALIGNMENT)
    start = offset * 0
    if BASE_ALIGNMENT > 0:
        columns, inside = edge_columns(N, offset, first, end, VECTOR, THREADS)
        edge = tl.load(x_row[:, None] + columns, mask=inside, other=MINUS_INFINITY).to(tl.float32)
    x_words = word_pointers(x_row, offset, WORDS)
    x = load_tiles(x_words, first, end, start, padding(DTYPE), TILES, THREADS, WORDS, BASE_ALIGNMENT, KEEP_IN_L2)
    y_out = output_pointers(y_row, offset, WORDS, DTYPE)
    if VECTORS > 8:
        loaded = rematerialize(x, barrier_zero(N))
        thread_max, thread_sum = init_partial_online(loaded, scale, DTYPE)
        if VECTORS < 16 or DTYPE != tl.float16:  # the second pass begins from these words, unless ptxas spills more with it
            x = loaded
    elif VECTORS > 2:
        thread_max, thread_sum = init_partial(x, scale, DTYPE)
    else:
        thread_max, thread_sum, lower, upper = init_partial_cached(x, scale, DTYPE)
    m, s = thread_max, thread_sum
    if BASE_ALIGNMENT > 0:
        m, s = merge(thread_max, thread_sum, edge, exp_fast(edge - finite_or_zero(edge)), scale)
    m, s = block_reduce(m, s, scale)
    norm = norm_of(s, LOG)
    if LOG or VECTORS > 2:
        zero = tl.where(s < 0, -1, 0)  # s is never negative
        if TILES * WORDS > 8:
            x = rematerialize(x, zero[:, :, None])
        write_normalized(y_out, x, m, norm, scale, first, end[:, None] | zero, start, THREADS, WORDS, DTYPE, BASE_ALIGNMENT, LOG)
    else:  # thread_max is -inf only where all exponentials of the thread are 0
        thread_norm = exp_fast(thread_max - m, scale) * norm
        write_exponentials(y_out, lower, upper, thread_norm, first, end, start, THREADS, WORDS, DTYPE, BASE_ALIGNMENT)
    if BASE_ALIGNMENT > 0:
        tl.store(y_row[:, None] + columns, rounded(normalized(edge, m, norm, scale, LOG), OUT), mask=inside)


@triton.jit
def forward_vectors(
    x_row, y_row, counted, exists, N, scale,
    ROWS: tl.constexpr, TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr,
    BASE_ALIGNMENT: tl.constexpr, KEEP_IN_L2: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """The rows at pointers (ROWS), of those that exist. No assembly has side effects, since compilers trace this (`traceable_rows.py`).

    `counted`: x_row or y_row, from whose addresses vectors are counted. `scale`: as in `softmax_ops.py`.
    """
    DTYPE: tl.constexpr = x_row.dtype.element_ty
    OUT: tl.constexpr = y_row.dtype.element_ty
    ONCE: tl.constexpr = THREADS <= 32 or TILES * WORDS <= 8  # each exponential
    offset, first, end = row_vectors(counted, N, VECTOR, BASE_ALIGNMENT)
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
    if ONCE:
        lower, upper = exponentials(x, base, scale, DTYPE)
        s = tl.sum(exponential_sum(lower, upper, DTYPE), 1)[:, None]
    else:
        x = rematerialize(x, tl.where(base != base, -1, 0)[:, :, None])
        thread_sum = tile_exp_sum(x[0], base[:, :, None], scale, DTYPE)
        for p in tl.static_range(1, TILES):
            thread_sum += tile_exp_sum(x[p], base[:, :, None], scale, DTYPE)
        s = tl.sum(thread_sum, 1)[:, None]
    if BASE_ALIGNMENT > 0:
        e = exp_fast(edge - base, scale)
        s += tl.sum(e, 1)[:, None]
    norm = norm_of(s, LOG)
    if not ONCE:
        x = rematerialize(x, tl.where(s < 0, -1, 0)[:, :, None])  # s is never negative
    if LOG or not ONCE:
        write_normalized(y_out, x, base, norm, scale, first, end, start, THREADS, WORDS, DTYPE, BASE_ALIGNMENT, LOG)
    else:
        write_exponentials(y_out, lower, upper, norm, first, end, start, THREADS, WORDS, DTYPE, BASE_ALIGNMENT)
    if BASE_ALIGNMENT > 0:
        edge_y = normalized(edge, base, norm, scale, LOG) if LOG else e * norm
        tl.store(y_row[:, None] + columns, rounded(edge_y, OUT), mask=inside)


@triton.jit(do_not_specialize=["x_stride", "y_stride", "N", "chunk", "stagger_rows", "stagger_cycles", "scale"])
def forward_cluster(
    x_ptr, y_ptr, x_stride, y_stride, N, chunk, stagger_rows, stagger_cycles,
    TILES: tl.constexpr, CTAS: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr,
    KEEP_IN_L2: tl.constexpr, LOG: tl.constexpr, scale,
):  # fmt: skip
    """A row a cluster of CTAS CTAs, each with `chunk` <= TILES * THREADS vectors. Strides and N count as in `forward_rows`."""
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    OUT: tl.constexpr = y_ptr.dtype.element_ty
    WIDE: tl.constexpr = OUT != DTYPE
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    WORDS: tl.constexpr = 2 if WIDE else 4
    VECTORS: tl.constexpr = TILES * WORDS // 4
    rank = tl.arange(0, CTAS)
    cluster_arrive(rank, CTAS)
    row_number = staggered_start(tl.program_id(0), stagger_rows, stagger_cycles)
    row = row_number.to(tl.int64) + rank * 0
    x_row = x_ptr + row * x_stride * UNIT
    y_row = y_ptr + row * y_stride * UNIT
    offset, first, end = row_vectors(x_row, N, VECTOR, BASE_ALIGNMENT)
    if scale is not None and scale.dtype.is_ptr():
        scale = tl.load(scale + row_number)
    if BASE_ALIGNMENT > 0:
        columns, inside = edge_columns(N, offset, first, end, VECTOR, THREADS)
        inside = inside & (rank == 0)[:, None]
        edge = tl.load(x_row[:, None] + columns, mask=inside, other=MINUS_INFINITY).to(tl.float32)
    start = rank * chunk
    end = tl.minimum(start + chunk, end)
    words = word_pointers(x_row, offset, WORDS)
    x = load_tiles(words, first, end, start, padding(DTYPE), TILES, THREADS, WORDS, BASE_ALIGNMENT, KEEP_IN_L2)
    if VECTORS > 2:
        loaded = rematerialize(x, barrier_zero(N))
        thread_max, thread_sum = init_partial_online(loaded, scale, DTYPE)
        if TILES == 16 or DTYPE != tl.float32:  # the second pass begins from these words, where ptxas spills without it
            x = loaded
    else:
        thread_max, thread_sum, lower, upper = init_partial_cached(x, scale, DTYPE)
    m, s = thread_max, thread_sum
    if BASE_ALIGNMENT > 0:
        m, s = merge(thread_max, thread_sum, edge, exp_fast(edge - finite_or_zero(edge)), scale)
    m, s = block_reduce(m, s, scale)
    m, s = cluster_exchange(m, s, scale, CTAS)
    norm = norm_of(s, LOG)
    y_out = output_pointers(y_row, offset, WORDS, DTYPE)
    if LOG or VECTORS > 2:
        zero = tl.where(s < 0, -1, 0)
        x = rematerialize(x, zero[:, :, None])
        write_normalized(y_out, x, m, norm, scale, first, end[:, None] | zero, start, THREADS, WORDS, DTYPE, BASE_ALIGNMENT, LOG)
    else:
        thread_norm = exp_fast(thread_max - m, scale) * norm
        write_exponentials(y_out, lower, upper, thread_norm, first, end, start, THREADS, WORDS, DTYPE, BASE_ALIGNMENT)
    if BASE_ALIGNMENT > 0:
        tl.store(y_row[:, None] + columns, rounded(normalized(edge, m, norm, scale, LOG), OUT), mask=inside)


@triton.jit
def whole_row(x_ptr, x_stride, row, N, one, scale, UNIT: tl.constexpr, THREADS: tl.constexpr):
    """Each thread's (max, sum) of a row of N * UNIT elements, one by one. It runs only after polls have timed out, so registers count.

    `one` is 1, but the compiler does not know it. So it neither unrolls the loop nor keeps values for it before the branch.
    """
    column = tl.arange(0, THREADS)[None, :]
    x_row = x_ptr + row.to(tl.int64) * x_stride * UNIT + column
    STEP: tl.constexpr = THREADS // UNIT
    m = tl.full((1, THREADS), MINUS_INFINITY, tl.float32)
    s = tl.zeros((1, THREADS), tl.float32)
    for i in range(0, (N - 1) // STEP + 1, one):
        at = i * STEP
        x = tl.load(x_row + at.to(tl.int64) * UNIT, mask=column // UNIT < N - at, other=MINUS_INFINITY).to(tl.float32)
        n = tl.maximum(m, x)
        base = finite_or_zero(n)
        s = s * exp_fast(m - base, scale) + exp_fast(x - base, scale)
        m = n
    return m, s


@triton.jit(
    do_not_specialize=["x_stride", "y_stride", "N", "ctas", "chunk", "programs", "extra_tiles", "stagger_rows", "stagger_cycles", "scale"]
)
def forward_split(
    x_ptr, y_ptr, counter, slots, x_stride, y_stride, N, ctas, chunk, programs, extra_tiles, stagger_rows, stagger_cycles,
    TILES: tl.constexpr, SMEM_TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr,
    MAX_CTAS: tl.constexpr, READ_TWICE: tl.constexpr, KEEP_IN_L2: tl.constexpr, LOG: tl.constexpr, scale,
):  # fmt: skip
    """A row `ctas` programs, each with `chunk` vectors: TILES tiles in registers, SMEM_TILES in shared memory. MAX_CTAS = 1: `ctas` is 1.

    READ_TWICE: the chunk is longer than that. Its other `extra_tiles` tiles are read again to be written, from L2 if they are still there.
    counter: an int64 that only these kernels write. slots: MAX_CTAS * SLOT_WORDS int64 a row, which may hold anything but this
    launch's tag.
    """
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    OUT: tl.constexpr = y_ptr.dtype.element_ty
    WIDE: tl.constexpr = OUT != DTYPE
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    WORDS: tl.constexpr = 2 if WIDE else 4
    CACHED: tl.constexpr = TILES * WORDS <= 8 and SMEM_TILES == 0
    IN_SMEM: tl.constexpr = SMEM_TILES * 4 // WORDS  # of tiles of WORDS words
    row_number = staggered_start(tl.program_id(0) // ctas, stagger_rows, stagger_cycles)
    rank = tl.program_id(0) % ctas
    row = row_number.to(tl.int64) + tl.arange(0, 1)
    x_row = x_ptr + row * x_stride * UNIT
    y_row = y_ptr + row * y_stride * UNIT
    offset, first, row_end = row_vectors(x_row, N, VECTOR, BASE_ALIGNMENT)
    start = rank * chunk + tl.arange(0, 1)
    end = tl.minimum(start + chunk, row_end)
    words = word_pointers(x_row, offset, WORDS)
    if scale is not None and scale.dtype.is_ptr():
        scale = tl.load(scale + row_number)
    if SMEM_TILES > 0:
        smem = copy_to_smem(words, end, start + TILES * THREADS, SMEM_TILES, THREADS, WORDS, KEEP_IN_L2)
    x = load_tiles(words, first, end, start, padding(DTYPE), TILES, THREADS, WORDS, BASE_ALIGNMENT, KEEP_IN_L2)
    if BASE_ALIGNMENT > 0:
        columns, inside = edge_columns(N, offset, first, row_end, VECTOR, THREADS)
        inside = inside & (start == 0)[:, None]
        edge = tl.load(x_row[:, None] + columns, mask=inside, other=MINUS_INFINITY).to(tl.float32)
    if MAX_CTAS > 1:
        tag = launch_tag(counter, THREADS)
        row_slots = slots + row_number.to(tl.int64) * (MAX_CTAS * SLOT_WORDS)
        prefetch_slot(row_slots + rank * SLOT_WORDS)
    if SMEM_TILES > 0:  # first the tiles whose copies were issued before the loads
        issued = barrier_zero(N)
        m, s = accumulate_smem(smem, end, start + TILES * THREADS, issued, scale, IN_SMEM, THREADS, WORDS, DTYPE)
        x = rematerialize(x, issued)
        m, s = accumulate_online(m, s, x, scale, DTYPE)
    elif CACHED:
        thread_max, thread_sum, lower, upper = init_partial_cached(x, scale, DTYPE)
        m, s = thread_max, thread_sum
    else:
        x = rematerialize(x, barrier_zero(N))
        m, s = init_partial_online(x, scale, DTYPE)
    if READ_TWICE:
        for i in range(extra_tiles):
            at = start + (TILES + IN_SMEM + i) * THREADS
            tile = load_tiles(words, first, end, at, padding(DTYPE), 1, THREADS, WORDS, BASE_ALIGNMENT, KEEP_IN_L2)
            n = tl.maximum(m, tile_max(tile[0], DTYPE))
            base = finite_or_zero(n)
            s = s * exp_fast(m - base, scale) + tile_exp_sum(tile[0], base[:, :, None], scale, DTYPE)
            m = n
    if BASE_ALIGNMENT > 0:
        m, s = merge(m, s, edge, exp_fast(edge - finite_or_zero(edge)), scale)
    m, s = block_reduce(m, s, scale)
    if MAX_CTAS > 1:
        publish(slots + (row * MAX_CTAS + rank) * SLOT_WORDS, tag, m, s, THREADS)
        count_program(counter, tag, programs)
        timed_out, row_m, row_s = grid_exchange(row_slots, tag, ctas, scale, MAX_CTAS, THREADS)
        m = row_m + tl.zeros((1, THREADS), tl.float32)
        s = row_s + tl.zeros((1, THREADS), tl.float32)
        if timed_out != 0:  # reduce the whole row again, from x
            m_all, s_all = whole_row(x_ptr, x_stride, row_number * timed_out, N, timed_out, scale, UNIT, THREADS)
            m, s = block_reduce(m_all, s_all, scale)
        if SMEM_TILES > 0:
            # The same values, but nothing that is made of them is kept in registers through the exchange.
            late = tl.where(row_s < 0, -1, 0)  # row_s is never negative
            row, start, offset, first, row_end = row | late, start | late, offset | late, first | late, row_end | late
            y_row = y_ptr + row * y_stride * UNIT
    norm = norm_of(s, LOG)
    y_out = output_pointers(y_row, offset, WORDS, DTYPE)
    zero = tl.where(s < 0, -1, 0)
    if CACHED and not LOG:
        thread_norm = exp_fast(thread_max - m, scale) * norm
        write_exponentials(y_out, lower, upper, thread_norm, first, end, start, THREADS, WORDS, DTYPE, BASE_ALIGNMENT)
    else:
        x = rematerialize(x, zero[:, :, None])
        write_normalized(y_out, x, m, norm, scale, first, end[:, None] | zero, start, THREADS, WORDS, DTYPE, BASE_ALIGNMENT, LOG)
    if SMEM_TILES > 0:
        write_smem(y_out, smem, m, norm, scale, end[:, None] | zero, start + TILES * THREADS, IN_SMEM, THREADS, WORDS, DTYPE, LOG)
    if READ_TWICE:
        for i in range(extra_tiles):
            at = start + (TILES + IN_SMEM + i) * THREADS
            again = load_tiles(words, first, end, at, padding(DTYPE), 1, THREADS, WORDS, BASE_ALIGNMENT, KEEP_IN_L2)
            write_normalized(y_out, again, m, norm, scale, first, end, at, THREADS, WORDS, DTYPE, BASE_ALIGNMENT, LOG)
    if BASE_ALIGNMENT > 0:
        columns, inside = edge_columns(N, offset, first, row_end, VECTOR, THREADS)
        inside = inside & (start == 0)[:, None]
        tl.store(y_row[:, None] + columns, rounded(normalized(edge, m, norm, scale, LOG), OUT), mask=inside)
