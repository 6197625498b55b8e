"""Kernels of the other passes of losses over rows, for rows longer than a tile (`loss_tiles.py`): they read x once, from any program.

- reduce_row: loss and lse, or log-probability, entropy and lse. `parts` programs share a row, each with `chunk` vectors, which it reads
  TILES tiles at a time. The last program of a row to finish merges the partial results of all. No program waits for another one.
  FACTOR times as many programs share each of the last rows, so that the last programs of a launch are short.
- gradient_of_row: dx from lse. It is elementwise, so each program has TILES tiles of a row. dx may be x itself.

Parameters that are None and units of strides and N are as in `loss_fused.py`. LOGPROB chooses the operation.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .block_reduce import block_reduce
from .loss_ops import accumulate, add_edges, column_of, logprob_slope, rebased, slope
from .loss_parts import merge_parts, place, store_results
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
from .softmax_ops import MINUS_INFINITY, finite_or_zero

NUMBERS = ["ignore_index", "hot", "share", "z_loss", "softcap", "inverse"]  # of an operation's parameters


@triton.jit(do_not_specialize=["x_stride", "N", "parts", "chunk", "before", "last_chunk", *NUMBERS])
def reduce_row(
    x_ptr, target_ptr, first_ptr, second_ptr, third_ptr, partials, counters, x_stride, N, parts, chunk,
    before, last_chunk, ignore_index, hot, share, z_loss, softcap, inverse,
    TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, FACTOR: tl.constexpr,
    MAX_PARTS: tl.constexpr, LOGPROB: tl.constexpr,
):  # fmt: skip
    """Stores loss and lse, or loss, maximum and sum if there is a third pointer, or logprob, entropy and lse.

    Programs from `before` on have the last rows: FACTOR times as many share each, with `last_chunk` vectors. FACTOR = 1: there are none.
    MAX_PARTS: the power of two from parts * FACTOR on. So MAX_PARTS = FACTOR means that `parts` is 1.
    partials: FIELDS float32 for each part of each shared row. counters: an int64 for each shared row, 0 before and after.
    """
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    THIRD: tl.constexpr = "entropy" if LOGPROB else ("mean" if share is not None else "")
    row_number, rank, parts, chunk, slot = place(parts, chunk, before, last_chunk, FACTOR, MAX_PARTS)
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
    if MAX_PARTS == 1:
        store_results(
            first_ptr, second_ptr, third_ptr, row, program_m, program_s, d, x_target, N * UNIT, target,
            ignore_index, hot, share, z_loss, softcap, inverse, LOGPROB,
        )  # fmt: skip
    elif MAX_PARTS == FACTOR:
        if slot < 0:
            store_results(
                first_ptr, second_ptr, third_ptr, row, program_m, program_s, d, x_target, N * UNIT, target,
                ignore_index, hot, share, z_loss, softcap, inverse, LOGPROB,
            )  # fmt: skip
        else:
            merge_parts(
                first_ptr, second_ptr, third_ptr, partials, counters + (row_number - before), row_number, slot, rank, parts,
                program_m, program_s, d, count, x_target, N * UNIT, target,
                ignore_index, hot, share, z_loss, softcap, inverse, MAX_PARTS, LOGPROB, THIRD,
            )  # fmt: skip
    else:
        merge_parts(
            first_ptr, second_ptr, third_ptr, partials, counters + row_number, row_number, slot, rank, parts,
            program_m, program_s, d, count, x_target, N * UNIT, target,
            ignore_index, hot, share, z_loss, softcap, inverse, MAX_PARTS, LOGPROB, THIRD,
        )  # fmt: skip


@triton.jit
def gradients(
    x, target_at, base, norm, share, hot, g, dentropy, softcap, inverse, kept, element, LOGPROB: tl.constexpr
):  # fmt: skip
    """dx of elements. The target is `target_at`, counted as `element` is. The other factors are from `row_factors`."""
    if LOGPROB:
        v = logprob_slope(x, base, norm, dentropy)
        return tl.where(element == target_at, v + g, v)
    else:
        of_column = None
        if share is not None:
            of_column = g * share
        others = slope(x, base, norm, of_column, None, softcap, inverse)
        at_target = slope(x, base, norm, of_column, g * hot, softcap, inverse)
        return tl.where(kept, tl.where(element == target_at, at_target, others), 0.0)


@triton.jit(do_not_specialize=["x_stride", "dx_stride", "N", "parts", *NUMBERS])
def gradient_of_row(
    x_ptr, target_ptr, lse_ptr, extra_ptr, dfirst_ptr, dsecond_ptr, dx_ptr, x_stride, dx_stride, N, parts,
    ignore_index, hot, share, z_loss, softcap, inverse,
    TILES: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, KEEP_IN_L2: tl.constexpr,
    LOGPROB: tl.constexpr,
):  # fmt: skip
    """dfirst is dloss or dlogprob, and a dfirst of None is 1. dsecond is dentropy of logprob, and extra its entropy.

    For cross entropy with an extra, lse is the maximum and extra the sum, so that nothing is rounded at the size of the maximum.
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

    The column is -1 if the target is ignored or out of range. The row is NaN if it is out of range. g is dlogprob or dloss.
    """
    base = tl.load(lse_ptr + row, mask=mask)
    if dfirst_ptr is None:
        g = tl.where(base == base, 1.0, 1.0)
    else:
        g = tl.load(dfirst_ptr + row, mask=mask)
    valid = (target >= 0) & (target < N)
    column = tl.where(valid, target, -1).to(tl.int32)
    if LOGPROB:
        dentropy = tl.load(dsecond_ptr + row, mask=mask)
        norm = g + dentropy * tl.load(extra_ptr + row, mask=mask)
        kept = valid | True
    else:
        dentropy = g
        norm = g
        lse = base
        if extra_ptr is not None:
            s = tl.load(extra_ptr + row, mask=mask)
            lse = base + tl.log(s)
            norm = norm / s
        if z_loss is not None:
            norm = norm * (1.0 + 2.0 * z_loss * lse)
        kept = target != ignore_index
    return column, kept, base, tl.where(valid, norm, float("nan")), g, dentropy
