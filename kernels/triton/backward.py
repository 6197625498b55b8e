"""The fast tiers of the backward, dx = y * (dy - sum(dy * y)): one read of dy and y, one write of dx.

As in `forward.py`, with two tensors in registers, so that every tier ends at half the row; the exchange is one sum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .groups import arrive_for_sum, exchange_sum, in_turn, leave, meet_sum, slot, tag_of, warm
from .words import after, dot_lanes, dot_of, edges_of, element, load, store_slopes, vectors_of, words_at


@triton.jit(do_not_specialize=["dy_stride", "y_stride", "dx_stride", "M", "N"])
def backward_rows(
    dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N,
    BM: tl.constexpr, P: tl.constexpr, T: tl.constexpr, W: tl.constexpr, V: tl.constexpr, ALIGN: tl.constexpr, STAYS: tl.constexpr,
):  # fmt: skip
    """See `softbench.kernels.triton.forward.forward_rows`."""
    D: tl.constexpr = y_ptr.dtype.element_ty
    UNIT: tl.constexpr = 1 if ALIGN > 0 else V
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    dy_row = dy_ptr + row * dy_stride * UNIT
    y_row = y_ptr + row * y_stride * UNIT
    dx_row = dx_ptr + row * dx_stride * UNIT
    shift, first, end = vectors_of(y_row, N, V, ALIGN)
    if BM > 1:
        end = tl.where(row < M, end, 0)
    start = shift * 0
    if ALIGN > 0:
        columns, inside = edges_of(N, shift, first, end, V, 2 * V)
        if BM > 1:
            inside = inside & (row < M)[:, None]
        dy_edge = tl.load(dy_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
        y_edge = tl.load(y_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
    dy = load(words_at(dy_row, shift, W), first, end, start, 0, P, T, W, ALIGN, STAYS)
    y = load(words_at(y_row, shift, W), first, end, start, 0, P, T, W, ALIGN, STAYS)
    s = dot_of(dy, y, D)
    if ALIGN > 0:
        s += tl.sum(dy_edge * y_edge, 1)
    if P * W > 8:
        zero = tl.where(s != s, -1, 0)[:, None, None]  # of a NaN, NaN is what comes anyway
        dy = after(dy, zero)
        y = after(y, zero)
    store_slopes(words_at(dx_row, shift, W), dy, y, s, first, end, start, T, W, D, ALIGN)
    if ALIGN > 0:
        tl.store(dx_row[:, None] + columns, element(y_edge * (dy_edge - s[:, None]), D), mask=inside)


@triton.jit(do_not_specialize=["dy_stride", "y_stride", "dx_stride", "N", "CHUNK", "FIRST", "CYCLES"])
def backward_cluster(
    dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, N, CHUNK, FIRST, CYCLES,
    P: tl.constexpr, C: tl.constexpr, T: tl.constexpr, V: tl.constexpr, ALIGN: tl.constexpr, STAYS: tl.constexpr,
):  # fmt: skip
    """See `softbench.kernels.triton.forward.forward_cluster`."""
    D: tl.constexpr = y_ptr.dtype.element_ty
    UNIT: tl.constexpr = 1 if ALIGN > 0 else V
    rank = tl.arange(0, C)
    arrive_for_sum(rank, C)
    row = in_turn(tl.program_id(0), FIRST, CYCLES).to(tl.int64) + rank * 0
    dy_row = dy_ptr + row * dy_stride * UNIT
    y_row = y_ptr + row * y_stride * UNIT
    dx_row = dx_ptr + row * dx_stride * UNIT
    shift, first, end = vectors_of(y_row, N, V, ALIGN)
    if ALIGN > 0:
        columns, inside = edges_of(N, shift, first, end, V, 2 * V)
        inside = inside & (rank == 0)[:, None]
        dy_edge = tl.load(dy_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
        y_edge = tl.load(y_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
    start = rank * CHUNK
    end = tl.minimum(start + CHUNK, end)
    dy = load(words_at(dy_row, shift, 4), first, end, start, 0, P, T, 4, ALIGN, STAYS)
    y = load(words_at(y_row, shift, 4), first, end, start, 0, P, T, 4, ALIGN, STAYS)
    s = dot_of(dy, y, D)
    if ALIGN > 0:
        s += tl.sum(dy_edge * y_edge, 1)
    s = exchange_sum(s, C)
    zero = tl.where(s != s, -1, 0)[:, None, None]
    dx_words = words_at(dx_row, shift, 4)
    store_slopes(dx_words, after(dy, zero), after(y, zero), s, first, end, start, T, 4, D, ALIGN)
    if ALIGN > 0:
        tl.store(dx_row[:, None] + columns, element(y_edge * (dy_edge - s[:, None]), D), mask=inside)


@triton.jit(do_not_specialize=["dy_stride", "y_stride", "dx_stride", "N", "G", "CHUNK", "programs", "EXTRA", "FIRST", "CYCLES"])
def backward_group(
    dy_ptr, y_ptr, dx_ptr, counter, slots, dy_stride, y_stride, dx_stride, N, G, CHUNK, programs, EXTRA, FIRST, CYCLES,
    P: tl.constexpr, T: tl.constexpr, V: tl.constexpr, ALIGN: tl.constexpr, PEERS: tl.constexpr, STREAM: tl.constexpr,
    STAYS: tl.constexpr,
):  # fmt: skip
    """See `softbench.kernels.triton.forward.forward_group`; `slots` are PEERS a row, G > 1, and nothing is held in shared memory."""
    D: tl.constexpr = y_ptr.dtype.element_ty
    UNIT: tl.constexpr = 1 if ALIGN > 0 else V
    number = in_turn(tl.program_id(0) // G, FIRST, CYCLES)
    rank = tl.program_id(0) % G
    row = number.to(tl.int64) + tl.arange(0, 1)
    dy_row = dy_ptr + row * dy_stride * UNIT
    y_row = y_ptr + row * y_stride * UNIT
    dx_row = dx_ptr + row * dx_stride * UNIT
    shift, first, row_end = vectors_of(y_row, N, V, ALIGN)
    start = rank * CHUNK + tl.arange(0, 1)
    end = tl.minimum(start + CHUNK, row_end)
    dy_words = words_at(dy_row, shift, 4)
    y_words = words_at(y_row, shift, 4)
    dy = load(dy_words, first, end, start, 0, P, T, 4, ALIGN, STAYS)
    y = load(y_words, first, end, start, 0, P, T, 4, ALIGN, STAYS)
    if ALIGN > 0:
        columns, row_edges = edges_of(N, shift, first, row_end, V, 2 * V)
        inside = row_edges & (start == 0)[:, None]
        dy_edge = tl.load(dy_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
        y_edge = tl.load(y_row[:, None] + columns, mask=inside, other=0.0).to(tl.float32)
    tag = tag_of(counter, T)
    row_slots = slots + number.to(tl.int64) * PEERS
    warm(row_slots, G, PEERS, False, T)
    s = dot_of(dy, y, D)
    if STREAM:
        lanes = tl.zeros((1, T), tl.float32)
        for i in range(EXTRA):
            d = load(dy_words, first, end, start + (P + i) * T, 0, 1, T, 4, ALIGN, STAYS)
            v = load(y_words, first, end, start + (P + i) * T, 0, 1, T, 4, ALIGN, STAYS)
            lanes += dot_lanes(d[0], v[0], D)
        s += tl.sum(lanes, 1)
    if ALIGN > 0:
        s += tl.sum(dy_edge * y_edge, 1)
    tl.store(slots + row * PEERS + rank, slot(tag, s))
    leave(counter, tag, programs)
    late, dot = meet_sum(row_slots, tag, G, PEERS, T)
    if late != 0:
        all_lanes = tl.zeros((1, T), tl.float32)
        for at in range(0, G * CHUNK, T):
            place = at + tl.arange(0, 1)
            d_one = load(dy_words, first, row_end, place, 0, 1, T, 4, ALIGN, STAYS)
            y_one = load(y_words, first, row_end, place, 0, 1, T, 4, ALIGN, STAYS)
            all_lanes += dot_lanes(d_one[0], y_one[0], D)
        whole = tl.sum(all_lanes, 1)
        if ALIGN > 0:
            d_edge = tl.load(dy_row[:, None] + columns, mask=row_edges, other=0.0).to(tl.float32)
            v_edge = tl.load(y_row[:, None] + columns, mask=row_edges, other=0.0).to(tl.float32)
            whole += tl.sum(d_edge * v_edge, 1)
        dot = tl.sum(whole, 0)
    s = dot + tl.zeros((1,), tl.float32)
    zero = tl.where(s != s, -1, 0)[:, None, None]
    dx_words = words_at(dx_row, shift, 4)
    store_slopes(dx_words, after(dy, zero), after(y, zero), s, first, end, start, T, 4, D, ALIGN)
    if STREAM:
        for i in range(EXTRA):
            at_one = start + (P + i) * T
            d_again = load(dy_words, first, end, at_one, 0, 1, T, 4, ALIGN, STAYS)
            y_again = load(y_words, first, end, at_one, 0, 1, T, 4, ALIGN, STAYS)
            store_slopes(dx_words, d_again, y_again, s, first, end, at_one, T, 4, D, ALIGN)
    if ALIGN > 0:
        tl.store(dx_row[:, None] + columns, element(y_edge * (dy_edge - s[:, None]), D), mask=inside)
