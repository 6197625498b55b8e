"""Kernels of the other passes of losses over rows, for rows longer than a tile (`loss_tiles.py`): they read x once, from any program.

- reduce_row: loss and lse, or log-probability, entropy and lse. `parts` programs share a row, each with `chunk` vectors, which it reads
  TILES tiles at a time. The last program of a row to finish merges the partial results of all. No program waits for another one.
- gradient_of_row: dx from lse. It is elementwise, so each program has TILES tiles of a row. dx may be x itself.

Parameters that are None and units of strides and N are as in `loss_fused.py`. LOGPROB chooses the operation.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..common import losses
from .loss_ops import (
    accumulate,
    add_edges,
    capped,
    column_of,
    logprob_slope,
    rebased,
    row_logprob,
    row_loss,
    slope,
    store_first,
)
from .packed_io import (
    edge_columns,
    load_tiles,
    padding,
    rounded,
    row_vectors,
    store_tile,
    unpack_high,
    unpack_low,
    vectors_inside,
    word_pointers,
)
from .softmax_ops import MINUS_INFINITY, barrier_zero, block_reduce, finite_or_zero

FIELDS = tl.constexpr(4)  # of a partial result
ELSEWHERE = tl.constexpr(losses.ELSEWHERE)


@triton.jit(do_not_specialize=["x_stride", "N", "parts", "chunk", "ignore_index", "hot", "share", "z_loss", "softcap", "inverse"])
def reduce_row(
    x_ptr, target_ptr, first_ptr, second_ptr, third_ptr, partials, counters, x_stride, N, parts, chunk,
    ignore_index, hot, share, z_loss, softcap, inverse,
    TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, MAX_PARTS: tl.constexpr,
    LOGPROB: tl.constexpr,
):  # fmt: skip
    """Stores loss and lse, or loss and statistics if there is a third pointer, or logprob, entropy and lse,
    or with LOGPROB = 2 statistics.

    partials: FIELDS float32 for each part of each row. counters: an int64 for each row, 0 before and after. MAX_PARTS = 1: `parts` is 1.
    """
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    THIRD: tl.constexpr = "entropy" if LOGPROB else ("mean" if share is not None else "")
    row_number = (tl.program_id(0) // parts).to(tl.int64)
    rank = tl.program_id(0) % parts
    row = row_number + tl.arange(0, 1)
    x_row = x_ptr + row * x_stride * UNIT
    offset, first, row_end = row_vectors(x_row, N, VECTOR, BASE_ALIGNMENT)
    start = rank * chunk + tl.arange(0, 1)
    end = tl.minimum(start + chunk, row_end)
    words = word_pointers(x_row, offset, 4)
    target = tl.load(target_ptr + row_number)
    if BASE_ALIGNMENT > 0:
        edge_at, edges = edge_columns(N, offset, first, row_end, VECTOR, THREADS)
        edges = edges & (start == 0)[:, None]
        edge = tl.load(x_row[:, None] + edge_at, mask=edges, other=MINUS_INFINITY).to(tl.float32)
    x_target = tl.load(x_ptr + row_number * x_stride * UNIT + column_of(target, N * UNIT)).to(tl.float32)
    count = tl.zeros((1, THREADS), tl.float32)
    s = tl.zeros((1, THREADS), tl.float32)
    d = tl.zeros((1, THREADS), tl.float32)
    m = s + MINUS_INFINITY
    for at in range(0, chunk, TILES * THREADS):
        x = load_tiles(words, first, end, start + at, padding(DTYPE), TILES, THREADS, 4, BASE_ALIGNMENT, False)
        m, s, d, count = accumulate(m, s, d, count, x, first, end, start + at, softcap, inverse, THREADS, DTYPE, BASE_ALIGNMENT, THIRD)
    if BASE_ALIGNMENT > 0:
        m, s, d, count = add_edges(m, s, d, count, edge, edges, softcap, inverse, THIRD)
    program_m, program_s = block_reduce(m, s, None)
    if THIRD != "":
        _, d = rebased(m, s, d, count, finite_or_zero(program_m), THIRD)
        d = tl.sum(d, 1)[:, None] + program_s * 0
        count = tl.sum(count, 1)[:, None] + program_s * 0
    if MAX_PARTS > 1:
        slot = (partials + (row * parts + rank) * FIELDS)[:, None]
        any_row = (row >= 0)[:, None]
        store_first(slot, program_m, any_row)
        store_first(slot + 1, program_s, any_row)
        if THIRD != "":
            store_first(slot + 2, d, any_row)
            store_first(slot + 3, count, any_row)
        finished = tl.atomic_add(counters + row_number + barrier_zero(N), 1)
        if finished == parts - 1:
            peer = tl.arange(0, MAX_PARTS)
            there = peer < parts
            slots = partials + (row_number * parts + peer) * FIELDS
            part_m = tl.load(slots, mask=there, other=MINUS_INFINITY, volatile=True)
            part_s = tl.load(slots + 1, mask=there, other=0.0, volatile=True)
            row_m = tl.max(part_m, 0)
            part_d = part_s * 0
            part_count = part_d
            if THIRD != "":
                part_d = tl.load(slots + 2, mask=there, other=0.0, volatile=True)
                part_count = tl.load(slots + 3, mask=there, other=0.0, volatile=True)
            part_s, part_d = rebased(part_m, part_s, part_d, part_count, finite_or_zero(row_m), THIRD)
            row_s = tl.sum(part_s, 0)
            row_d = tl.sum(part_d, 0)
            store_results(
                first_ptr, second_ptr, third_ptr, row_number, row_m, row_s, row_d, x_target, N * UNIT, target,
                ignore_index, hot, share, z_loss, softcap, inverse, LOGPROB,
            )  # fmt: skip
            tl.store(counters + row_number, 0)
    else:
        store_results(
            first_ptr, second_ptr, third_ptr, row, program_m, program_s, d, x_target, N * UNIT, target,
            ignore_index, hot, share, z_loss, softcap, inverse, LOGPROB,
        )  # fmt: skip


@triton.jit(do_not_specialize=["x_stride", "N", "ignore_index", "hot", "share", "z_loss", "softcap", "inverse"])
def reduce_row_by_element(
    x_ptr, target_ptr, first_ptr, second_ptr, third_ptr, x_stride, N, ignore_index, hot, share, z_loss, softcap, inverse,
    THREADS: tl.constexpr, LOGPROB: tl.constexpr,
):  # fmt: skip
    """As `reduce_row`, of a row a program, element by element: where the row begins does not change the order of the sums."""
    THIRD: tl.constexpr = "entropy" if LOGPROB else ("mean" if share is not None else "")
    row_number = tl.program_id(0).to(tl.int64)
    row = row_number + tl.arange(0, 1)
    target = tl.load(target_ptr + row_number)
    x_target = tl.load(x_ptr + row_number * x_stride + column_of(target, N)).to(tl.float32)
    column = tl.arange(0, THREADS)[None, :]
    x_row = x_ptr + row_number * x_stride + column
    count = tl.zeros((1, THREADS), tl.float32)
    s = tl.zeros((1, THREADS), tl.float32)
    d = tl.zeros((1, THREADS), tl.float32)
    m = s + MINUS_INFINITY
    for at in range(0, N, THREADS):
        inside = column < N - at
        x = tl.load(x_row + at, mask=inside, other=MINUS_INFINITY).to(tl.float32)
        m, s, d, count = add_edges(m, s, d, count, x, inside, softcap, inverse, THIRD)
    row_m, row_s = block_reduce(m, s, None)
    if THIRD != "":
        _, d = rebased(m, s, d, count, finite_or_zero(row_m), THIRD)
        d = tl.sum(d, 1)[:, None] + row_s * 0
    store_results(
        first_ptr, second_ptr, third_ptr, row, row_m, row_s, d, x_target, N, target,
        ignore_index, hot, share, z_loss, softcap, inverse, LOGPROB,
    )  # fmt: skip


@triton.jit
def store_value(pointer, value):
    """Stores a number, or that of the first of a row's threads."""
    if len(value.shape) == 2:
        store_first(pointer, value, pointer.to(tl.int64) != 0)
    else:
        tl.store(pointer, value)


@triton.jit
def store_results(
    first_ptr, second_ptr, third_ptr, row, m, s, d, x_target, N, target, ignore_index, hot, share, z_loss, softcap, inverse,
    LOGPROB: tl.constexpr,
):  # fmt: skip
    """Stores the results of a row. Its sums are numbers, or all threads have them, (1, THREADS); `row` is a number, or (1)."""
    at = row
    if len(m.shape) == 2:
        at = row[:, None]
    z_target = capped(x_target, softcap, inverse)
    if LOGPROB:
        logprob, entropy, lse = row_logprob(m, s, d, z_target, N, target, ignore_index)
        store_value(first_ptr + at, logprob)
        store_value(second_ptr + at, entropy)
        if LOGPROB == 2:
            store_value(third_ptr + 2 * at, m)
            store_value(third_ptr + 2 * at + 1, s)
        else:
            store_value(third_ptr + at, lse)
    else:
        loss, lse = row_loss(m, s, d, z_target, N, target, ignore_index, hot, share, z_loss)
        store_value(first_ptr + at, loss)
        if third_ptr is None:
            store_value(second_ptr + at, lse)
        else:
            store_value(second_ptr + 2 * at, m)
            store_value(third_ptr + 2 * at, s)


@triton.jit
def gradients(
    x, target_at, base, norm, share, hot, g, dentropy, softcap, inverse, kept, element, LOGPROB: tl.constexpr
):  # fmt: skip
    """dx of elements. The target is `target_at`, counted as `element` is. The other factors are from `row_factors`."""
    if LOGPROB:
        v = logprob_slope(capped(x, softcap, inverse), base, norm, dentropy)
        return tl.where(element == target_at, v + g, v)
    else:
        of_column = None
        if share is not None:
            of_column = g * share
        others = slope(x, base, norm, of_column, None, softcap, inverse)
        at_target = slope(x, base, norm, of_column, g * hot, softcap, inverse)
        return tl.where(kept, tl.where(element == target_at, at_target, others), 0.0)


@triton.jit(do_not_specialize=["x_stride", "dx_stride", "N", "parts", "ignore_index", "hot", "share", "z_loss", "softcap", "inverse"])
def gradient_of_row(
    x_ptr, target_ptr, lse_ptr, extra_ptr, dfirst_ptr, dsecond_ptr, dx_ptr, x_stride, dx_stride, N, parts,
    ignore_index, hot, share, z_loss, softcap, inverse,
    TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, KEEP_IN_L2: tl.constexpr,
    LOGPROB: tl.constexpr,
):  # fmt: skip
    """dfirst is dloss or dlogprob, and a dfirst of None is 1. dsecond is dentropy of logprob, and extra its entropy.

    For cross entropy with an extra, lse is the maximum and extra the sum, both of statistics (M, 2). LOGPROB = 2: lse is statistics.
    """
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    row_number = (tl.program_id(0) // parts).to(tl.int64)
    rank = tl.program_id(0) % parts
    row = row_number + tl.arange(0, 1)
    x_row = x_ptr + row * x_stride * UNIT
    dx_row = dx_ptr + row * dx_stride * UNIT
    offset, first, end = row_vectors(x_row, N, VECTOR, BASE_ALIGNMENT)
    start = rank * (TILES * THREADS) + tl.arange(0, 1)
    x = load_tiles(word_pointers(x_row, offset, 4), first, end, start, padding(DTYPE), TILES, THREADS, 4, BASE_ALIGNMENT, KEEP_IN_L2)
    if BASE_ALIGNMENT > 0:
        edge_at, edges = edge_columns(N, offset, first, end, VECTOR, THREADS)
        edges = edges & (start == 0)[:, None]
        edge = tl.load(x_row[:, None] + edge_at, mask=edges, other=MINUS_INFINITY).to(tl.float32)
    target = tl.load(target_ptr + row_number)
    column, kept, base, norm, g, dentropy = row_factors(
        target, row_number, N * UNIT, lse_ptr, extra_ptr, dfirst_ptr, dsecond_ptr, ignore_index, z_loss, LOGPROB
    )
    out = word_pointers(dx_row, offset, 4)
    # An element's number is counted from its thread's first one, so that a comparison has a constant on its other side.
    thread = (start[:, None] + tl.arange(0, THREADS)[None, :]) * VECTOR
    target_at = (column + offset[:, None] - thread)[:, :, None]
    SIZE: tl.constexpr = VECTOR // 4
    for p in tl.static_range(TILES):
        inside = vectors_inside(first, end, start, p, THREADS, 4, BASE_ALIGNMENT)
        element = p * THREADS * VECTOR + SIZE * tl.arange(0, 4)[None, None, :]
        lower = gradients(unpack_low(x[p], DTYPE), target_at, base, norm, share, hot, g, dentropy, softcap, inverse, kept, element, LOGPROB)
        if DTYPE == tl.float32:
            upper = lower
        else:
            high = unpack_high(x[p], DTYPE)
            upper = gradients(high, target_at, base, norm, share, hot, g, dentropy, softcap, inverse, kept, element + 1, LOGPROB)
        store_tile(out, start, lower, upper, inside, p, DTYPE)
    if BASE_ALIGNMENT > 0:
        edge_dx = gradients(edge, column, base, norm, share, hot, g, dentropy, softcap, inverse, kept, edge_at, LOGPROB)
        tl.store(dx_row[:, None] + edge_at, rounded(edge_dx, DTYPE), mask=edges)


@triton.jit
def row_factors(
    target, row, N, lse_ptr, extra_ptr, dfirst_ptr, dsecond_ptr, ignore_index, z_loss, LOGPROB: tl.constexpr, mask=None
):  # fmt: skip
    """(column of the target, kept, base, norm, g, dentropy) of rows, for `gradients`. `row` is a number, or a tensor of any shape.

    The column is -1 if the target is out of range. The row is NaN then, unless the target is ignored or
    ELSEWHERE. g is dlogprob or dloss.
    """
    if LOGPROB == 1 or (LOGPROB == 0 and extra_ptr is None):
        base = tl.load(lse_ptr + row, mask=mask)
    else:
        base = tl.load(lse_ptr + 2 * row, mask=mask)
    if dfirst_ptr is None:
        g = tl.where(base == base, 1.0, 1.0)
    else:
        g = tl.load(dfirst_ptr + row, mask=mask)
    valid = (target >= 0) & (target < N)
    column = tl.where(valid, target, -1).to(tl.int32)
    valid = valid | (target == ELSEWHERE)
    if LOGPROB:
        g = tl.where(target == ignore_index, 0.0, g)
        valid = valid | (target == ignore_index)
        dentropy = tl.load(dsecond_ptr + row, mask=mask)
        entropy = tl.load(extra_ptr + row, mask=mask)
        if LOGPROB == 2:
            s = tl.load(lse_ptr + 2 * row + 1, mask=mask)
            norm = (g + dentropy * (entropy - tl.log(s))) / s
            dentropy = dentropy / s
        else:
            norm = g + dentropy * entropy
        kept = valid | True
    else:
        dentropy = g
        norm = g
        lse = base
        if extra_ptr is not None:
            s = tl.load(extra_ptr + 2 * row, mask=mask)
            lse = base + tl.log(s)
            norm = norm / s
        if z_loss is not None:
            norm = norm * (1.0 + 2.0 * z_loss * lse)
        kept = target != ignore_index
    return column, kept, base, tl.where(valid, norm, float("nan")), g, dentropy
