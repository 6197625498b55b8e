"""The kernel of the fused pass of cross entropy: loss and gradient of each row. It reads x once and writes dx once.

It has the tiers rows and cluster of softmax's forward (`forward.py`) with another result, and takes the same plans. After the gradient of
all columns is stored, one thread stores that of the target again. So no other element compares its column with the target's.

dx may be x itself. Each thread writes only elements that it has read before. The logit of the target is read before the barrier of
`block_reduce`, and is used in the program, or the CTA of a cluster, that owns the target: no other one writes there.

`dloss_ptr` has the gradient of each row's loss, one number, or is None: 1. share, softcap, inverse and z_loss are as in `loss_ops.py`, and
hot is 1 - label_smoothing. Strides and N count vectors where BASE_ALIGNMENT = 0, and elements otherwise.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .cluster_exchange import cluster_arrive, cluster_exchange
from .loss_ops import accumulate, add_edges, capped, column_of, gradient_of_losses, row_loss, row_norm, slope, store_first, write_slopes
from .packed_io import edge_columns, load_tiles, padding, rounded, row_vectors, word_pointers
from .softmax_ops import (
    MINUS_INFINITY,
    barrier_zero,
    block_reduce,
    exp_fast,
    finite_or_zero,
    init_partial,
    init_partial_online,
    merge,
    rematerialize,
)
from .staggered_start import staggered_start


@triton.jit
def thread_partial(
    x, edge, inside, anything, first, end, start, softcap, inverse,
    THREADS: tl.constexpr, DTYPE: tl.constexpr, BASE_ALIGNMENT: tl.constexpr,
):  # fmt: skip
    """Each thread's (max, sum) of its tiles and its element of the edges."""
    if inverse is not None:
        s = tl.zeros((first.shape[0], THREADS), tl.float32)
        m = s + MINUS_INFINITY
        d = s
        count = s
        for p in tl.static_range(len(x)):  # one after the other: of all tiles at once, the capped logits would fill the registers
            tile = rematerialize((x[p],), tl.where(s < 0, -1, 0)[:, :, None])
            m, s, d, count = accumulate(
                m, s, d, count, tile, first, end, start + p * THREADS, softcap, inverse, THREADS, DTYPE, BASE_ALIGNMENT, ""
            )
        if BASE_ALIGNMENT > 0:
            m, s, d, count = add_edges(m, s, d, count, edge, inside, softcap, inverse, "")
        return m, s
    else:
        if len(x) > 8:
            m, s = init_partial_online(rematerialize(x, barrier_zero(anything)), None, DTYPE)
        else:
            m, s = init_partial(x, None, DTYPE)
        if BASE_ALIGNMENT > 0:
            m, s = merge(m, s, edge, exp_fast(edge - finite_or_zero(edge)), None)
        return m, s


@triton.jit
def write_gradient(
    dx_row, x, edge, edge_at, edges, m, s, x_target, target, N, offset, first, end, start,
    dloss_ptr, ignore_index, hot, share, z_loss, softcap, inverse, THREADS: tl.constexpr, DTYPE: tl.constexpr, BASE_ALIGNMENT: tl.constexpr,
):  # fmt: skip
    """Stores dx of all elements as if none were the target. N counts elements.

    Returns each thread's sum of max - z, of label smoothing only, dx at the target, and whether the target is not ignored.
    """
    zero = tl.where(s < 0, -1, 0)  # s is never negative
    x = rematerialize(x, zero[:, :, None])
    kept = (target != ignore_index)[:, None]
    dloss = gradient_of_losses(dloss_ptr)
    norm = row_norm(m, s, N, target[:, None], z_loss) * dloss
    share_dx = share
    if share is not None:
        share_dx = share * dloss
    out = word_pointers(dx_row, offset, 4)
    below = write_slopes(
        out, x, m, norm, share_dx, softcap, inverse, kept, first, end[:, None] | zero, start, THREADS, DTYPE, BASE_ALIGNMENT
    )
    if BASE_ALIGNMENT > 0:
        edge_dx = tl.where(kept, slope(edge, m, norm, share_dx, None, softcap, inverse), 0.0)
        tl.store(dx_row[:, None] + edge_at, rounded(edge_dx, DTYPE), mask=edges)
        if share is not None:
            below += tl.where(edges, m - capped(edge, softcap, inverse), 0.0)
    return below, slope(x_target, m, norm, share_dx, hot * dloss, softcap, inverse), kept


@triton.jit(
    do_not_specialize=[
        "x_stride", "dx_stride", "N", "chunk", "stagger_rows", "stagger_cycles",
        "ignore_index", "hot", "share", "z_loss", "softcap", "inverse",
    ]
)  # fmt: skip
def fused_rows(
    x_ptr, target_ptr, dx_ptr, loss_ptr, dloss_ptr, below_ptr, x_stride, dx_stride, N, chunk, stagger_rows, stagger_cycles,
    ignore_index, hot, share, z_loss, softcap, inverse,
    TILES: tl.constexpr, CTAS: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr,
    KEEP_IN_L2: tl.constexpr,
):  # fmt: skip
    """A row a program, or a cluster of CTAS CTAs, each with `chunk` <= TILES * THREADS vectors of 16 bytes (VECTOR elements).

    With label smoothing each CTA of a cluster stores its part of sum(max - z) to `below_ptr`, (M, CTAS), and the loss lacks share times the
    whole sum.
    """
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    rank = tl.arange(0, CTAS)
    row_number = tl.program_id(0)
    if CTAS > 1:
        cluster_arrive(rank, CTAS)
        row_number = staggered_start(row_number, stagger_rows, stagger_cycles)
    row = row_number.to(tl.int64) + rank * 0
    x_row = x_ptr + row * x_stride * UNIT
    dx_row = dx_ptr + row * dx_stride * UNIT
    offset, first, row_end = row_vectors(x_row, N, VECTOR, BASE_ALIGNMENT)
    target = tl.load(target_ptr + row)
    edge = None
    edge_at = None
    edges = None
    if BASE_ALIGNMENT > 0:
        edge_at, edges = edge_columns(N, offset, first, row_end, VECTOR, THREADS)
        edges = edges & (rank == 0)[:, None]
        edge = tl.load(x_row[:, None] + edge_at, mask=edges, other=MINUS_INFINITY).to(tl.float32)
    start = rank * chunk
    end = tl.minimum(start + chunk, row_end)
    x = load_tiles(word_pointers(x_row, offset, 4), first, end, start, padding(DTYPE), TILES, THREADS, 4, BASE_ALIGNMENT, KEEP_IN_L2)
    column = column_of(target, N * UNIT)
    x_target = tl.load(x_row + column).to(tl.float32)[:, None]
    m, s = thread_partial(x, edge, edges, N, first, end, start, softcap, inverse, THREADS, DTYPE, BASE_ALIGNMENT)
    m, s = block_reduce(m, s, None)
    if CTAS > 1:
        m, s = cluster_exchange(m, s, None, CTAS)
    below, at_target, kept = write_gradient(
        dx_row, x, edge, edge_at, edges, m, s, x_target, target, N * UNIT, offset, first, end, start,
        dloss_ptr, ignore_index, hot, share, z_loss, softcap, inverse, THREADS, DTYPE, BASE_ALIGNMENT,
    )  # fmt: skip
    d = tl.zeros_like(m)
    if share is not None:
        of_cta = tl.where(kept, tl.sum(below, 1)[:, None], 0.0) + d
        if CTAS > 1:
            store_first((below_ptr + row * CTAS + rank)[:, None], of_cta, row[:, None] >= 0)
        else:
            d = of_cta
    owner = (rank == 0)[:, None]
    if CTAS > 1:
        vector = (offset + column) // VECTOR
        whole = (vector >= first) & (vector < row_end)
        owner = tl.where(whole, (vector >= start) & (vector < end), rank == 0)[:, None]
    z_target = capped(x_target, softcap, inverse)
    loss, _lse = row_loss(m, s, d, z_target, N * UNIT, target[:, None], ignore_index, hot, share, z_loss)
    store_first((loss_ptr + row)[:, None], loss, owner)
    after = barrier_zero(N)
    store_first((dx_row + column + after)[:, None], at_target, owner & kept & (target == column)[:, None])
