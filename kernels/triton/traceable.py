"""The launches that a compiler traces: torch.compile, torch.export and AOTInductor see the kernels themselves.

Unlike the launches of `dispatch.py`, they need no workspace, no cooperative launch and no device properties. Sizes may be symbols, so only
comparisons choose the kernel and the block. A compiled graph is therefore guarded by a range of N, never by its value, and by none of M.
"""

from __future__ import annotations

import torch
from torch.library import wrap_triton

from .generic import LOOP_COLUMNS, TILE_COLUMNS, TILE_ELEMENTS, backward_loop, backward_tile, forward_loop, forward_tile, warps

SYMBOLIC_BLOCKS = (128, 512, 2048, 8192, TILE_COLUMNS)
"""Blocks for an N that is a symbol. With the loop for longer rows, six graphs cover all N; torch.compile allows a function eight by
default.
A block four times the row has idle lanes, but moves no more bytes."""


def block(N: int | torch.SymInt) -> int:
    """Columns of a tile for N <= TILE_COLUMNS: the next power of two, or the next of SYMBOLIC_BLOCKS if N is a symbol."""
    if isinstance(N, int):
        return 1 << (N - 1).bit_length()
    return next(columns for columns in SYMBOLIC_BLOCKS if columns >= N)


def launch_forward_traceable(x: torch.Tensor, y: torch.Tensor) -> None:
    """y = softmax(x) by rows; see `softbench.kernels.common.rows.Launch`."""
    M, N = x.shape
    if N > TILE_COLUMNS:
        wrap_triton(forward_loop)[(M,)](x, y, x.stride(0), y.stride(0), M, N, LOOP_COLUMNS, num_warps=warps(LOOP_COLUMNS))
        return
    BN = block(N)
    BM = max(1, TILE_ELEMENTS // BN)
    grid = ((M + BM - 1) // BM,)
    wrap_triton(forward_tile)[grid](x, y, x.stride(0), y.stride(0), M, N, BM, BN, num_warps=warps(BM * BN))


def launch_backward_traceable(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor) -> None:
    """dx by rows; see `softbench.kernels.common.rows.Launch`."""
    M, N = y.shape
    strides = dy.stride(0), y.stride(0), dx.stride(0)
    if N > TILE_COLUMNS // 2:
        wrap_triton(backward_loop)[(M,)](dy, y, dx, *strides, M, N, LOOP_COLUMNS // 2, num_warps=warps(LOOP_COLUMNS))
        return
    BN = block(N)
    BM = max(1, TILE_ELEMENTS // (2 * BN))
    grid = ((M + BM - 1) // BM,)
    wrap_triton(backward_tile)[grid](dy, y, dx, *strides, M, N, BM, BN, num_warps=warps(2 * BM * BN))
