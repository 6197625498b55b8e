"""Kernels of losses for short rows: BLOCK_M whole rows a program, each in BLOCK_N columns (`generic.py` has those of softmax).

Parameters that are None are as in `loss_ops.py`. Strides and N count UNIT elements: a vector, where rows start at one, so that the compiler
sees that it can move whole vectors. dx may be x itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .loss_ops import LOWEST, gradient_of_losses, logits, row_logprob, row_loss, row_norm, slope
from .loss_stream import gradients, row_factors
from .packed_io import rounded
from .softmax_ops import LOG2E, MINUS_INFINITY, exp_fast, finite_or_zero


@triton.jit
def tile_of_losses(
    x_ptr, target_ptr, dx_ptr, first_ptr, second_ptr, third_ptr, dloss_ptr, x_stride, dx_stride, M, N,
    ignore_index, hot, share, z_loss, softcap, inverse, UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LOGPROB: tl.constexpr,
):  # fmt: skip
    """Loss, lse if there is a second pointer or statistics if there is a third, and dx if there is one; or logprob, entropy and lse."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)[None, :]
    N *= UNIT
    there = rows < M
    mask = there[:, None] & (columns < N)
    target = tl.load(target_ptr + rows, mask=there, other=0)
    x = tl.load(x_ptr + rows[:, None] * x_stride * UNIT + columns, mask=mask, other=MINUS_INFINITY).to(tl.float32)
    z = logits(x, mask, softcap, inverse)
    m = tl.max(z, 1)
    base = finite_or_zero(m)[:, None]
    e = exp_fast(z - base)
    s = tl.sum(e, 1)
    hit = columns == target[:, None]
    z_target = tl.sum(tl.where(hit, z, 0.0), 1)
    d = s
    if LOGPROB:
        # A product that is rounded before it is added: else each lane of a row rounds its own product less, and their sums differ.
        d = tl.sum(tl.fma(e, tl.maximum((z - base) * LOG2E, LOWEST), 0.0), 1)
        logprob, entropy, lse = row_logprob(m, s, d, z_target, N, target, ignore_index)
        tl.store(first_ptr + rows, logprob, mask=there)
        tl.store(second_ptr + rows, entropy, mask=there)
        if LOGPROB == 2:
            tl.store(third_ptr + 2 * rows, m, mask=there)
            tl.store(third_ptr + 2 * rows + 1, s, mask=there)
        else:
            tl.store(third_ptr + rows, lse, mask=there)
    else:
        if share is not None:
            d = tl.sum(tl.where(mask, base - z, 0.0), 1)
        loss, lse = row_loss(m, s, d, z_target, N, target, ignore_index, hot, share, z_loss)
        tl.store(first_ptr + rows, loss, mask=there)
        if third_ptr is not None:
            tl.store(second_ptr + 2 * rows, m, mask=there)
            tl.store(third_ptr + 2 * rows, s, mask=there)
        elif second_ptr is not None:
            tl.store(second_ptr + rows, lse, mask=there)
        if dx_ptr is not None:
            dloss = gradient_of_losses(dloss_ptr)
            norm = row_norm(m, s, N, target, z_loss)[:, None] * dloss
            hot_dx = hot * dloss
            share_dx = share
            if share is not None:
                share_dx = share * dloss
            others = slope(x, m[:, None], norm, share_dx, None, softcap, inverse)
            dx = tl.where(hit, slope(x, m[:, None], norm, share_dx, hot_dx, softcap, inverse), others)
            dx = tl.where((target != ignore_index)[:, None], dx, 0.0)
            tl.store(dx_ptr + rows[:, None] * dx_stride * UNIT + columns, rounded(dx, dx_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["M", "ignore_index", "hot", "share", "z_loss", "softcap", "inverse"])
def reduction_tile(
    x_ptr, target_ptr, first_ptr, second_ptr, third_ptr, x_stride, M, N,
    ignore_index, hot, share, z_loss, softcap, inverse, UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LOGPROB: tl.constexpr,
):  # fmt: skip
    tile_of_losses(
        x_ptr, target_ptr, None, first_ptr, second_ptr, third_ptr, None, x_stride, 0, M, N,
        ignore_index, hot, share, z_loss, softcap, inverse, UNIT, BLOCK_M, BLOCK_N, LOGPROB,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M", "ignore_index", "hot", "share", "z_loss", "softcap", "inverse"])
def fused_tile(
    x_ptr, target_ptr, dx_ptr, loss_ptr, dloss_ptr, x_stride, dx_stride, M, N,
    ignore_index, hot, share, z_loss, softcap, inverse, UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LOGPROB: tl.constexpr,
):  # fmt: skip
    tile_of_losses(
        x_ptr, target_ptr, dx_ptr, loss_ptr, None, None, dloss_ptr, x_stride, dx_stride, M, N,
        ignore_index, hot, share, z_loss, softcap, inverse, UNIT, BLOCK_M, BLOCK_N, LOGPROB,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M", "ignore_index", "hot", "share", "z_loss", "softcap", "inverse"])
def gradient_tile(
    x_ptr, target_ptr, lse_ptr, extra_ptr, dfirst_ptr, dsecond_ptr, dx_ptr, x_stride, dx_stride, M, N,
    ignore_index, hot, share, z_loss, softcap, inverse, UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LOGPROB: tl.constexpr,
):  # fmt: skip
    """dx from lse; the pointers are those of `loss_stream.gradient_of_row`."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)[None, :]
    N *= UNIT
    there = rows < M
    mask = there[:, None] & (columns < N)
    target = tl.load(target_ptr + rows, mask=there, other=0)
    x = tl.load(x_ptr + rows[:, None] * x_stride * UNIT + columns, mask=mask, other=MINUS_INFINITY).to(tl.float32)
    column, kept, base, norm, g, dentropy = row_factors(
        target, rows, N, lse_ptr, extra_ptr, dfirst_ptr, dsecond_ptr, ignore_index, z_loss, LOGPROB, there
    )
    column, kept, base, norm, g, dentropy = column[:, None], kept[:, None], base[:, None], norm[:, None], g[:, None], dentropy[:, None]
    dx = gradients(x, column, base, norm, share, hot, g, dentropy, softcap, inverse, kept, columns, LOGPROB)
    tl.store(dx_ptr + rows[:, None] * dx_stride * UNIT + columns, rounded(dx, dx_ptr.dtype.element_ty), mask=mask)
