"""The launches that a compiler traces: torch.compile, torch.export and AOTInductor see the kernels themselves.

Unlike the launches of `dispatch.py`, they need no workspace, no cooperative launch and no device properties. Sizes may be symbols, so only
comparisons choose the kernel and the block. A compiled graph is therefore guarded by a range of N, never by its value, and by none of M.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.library import wrap_triton

from .generic import (
    LOOP_COLUMNS,
    TILE_COLUMNS,
    TILE_ELEMENTS,
    backward_loop,
    backward_tile,
    forward_loop,
    forward_tile,
    log_backward_loop,
    log_backward_tile,
    log_forward_loop,
    log_forward_tile,
    warps,
)

SYMBOLIC_BLOCKS = (128, 512, 2048, 8192, TILE_COLUMNS)
"""Blocks for an N that is a symbol. With the loop for longer rows, six graphs cover all N; torch.compile allows a function eight by
default.
A block four times the row has idle lanes, but moves no more bytes."""


class Launch(NamedTuple):
    """How a traced kernel is launched."""

    loop: bool  # whether the loop's kernel is launched, and not the tile's
    programs: int
    arguments: tuple[int, ...]  # after the tensors: strides, sizes, constants
    num_warps: int


def block(N: int | torch.SymInt) -> int:
    """Columns of a tile for N <= TILE_COLUMNS: the next power of two, or the next of SYMBOLIC_BLOCKS if N is a symbol."""
    if isinstance(N, int):
        return 1 << (N - 1).bit_length()
    return next(columns for columns in SYMBOLIC_BLOCKS if columns >= N)


def _forward_launch(x: torch.Tensor, y: torch.Tensor) -> Launch:
    M, N = x.shape
    sizes = x.stride(0), y.stride(0), M, N
    if N > TILE_COLUMNS:
        return Launch(True, M, (*sizes, LOOP_COLUMNS), warps(LOOP_COLUMNS))
    BN = block(N)
    BM = max(1, TILE_ELEMENTS // BN)
    return Launch(False, (M + BM - 1) // BM, (*sizes, BM, BN), warps(BM * BN))


def _backward_launch(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor) -> Launch:
    M, N = y.shape
    sizes = dy.stride(0), y.stride(0), dx.stride(0), M, N
    if N > TILE_COLUMNS // 2:
        return Launch(True, M, (*sizes, LOOP_COLUMNS // 2), warps(LOOP_COLUMNS))
    BN = block(N)
    BM = max(1, TILE_ELEMENTS // (2 * BN))
    return Launch(False, (M + BM - 1) // BM, (*sizes, BM, BN), warps(2 * BM * BN))


# torch finds the kernels of an operator in the source of these functions: each names its own.
def launch_forward_traceable(x: torch.Tensor, y: torch.Tensor) -> None:
    """y = softmax(x) by rows; see `softbench.kernels.common.rows.Launch`."""
    how = _forward_launch(x, y)
    kernel = wrap_triton(forward_loop) if how.loop else wrap_triton(forward_tile)
    kernel[(how.programs,)](x, y, *how.arguments, num_warps=how.num_warps)


def launch_backward_traceable(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor) -> None:
    """dx of softmax by rows; see `softbench.kernels.common.rows.Launch`."""
    how = _backward_launch(dy, y, dx)
    kernel = wrap_triton(backward_loop) if how.loop else wrap_triton(backward_tile)
    kernel[(how.programs,)](dy, y, dx, *how.arguments, num_warps=how.num_warps)


def launch_log_forward_traceable(x: torch.Tensor, y: torch.Tensor) -> None:
    """y = log_softmax(x) by rows; see `softbench.kernels.common.rows.Launch`."""
    how = _forward_launch(x, y)
    kernel = wrap_triton(log_forward_loop) if how.loop else wrap_triton(log_forward_tile)
    kernel[(how.programs,)](x, y, *how.arguments, num_warps=how.num_warps)


def launch_log_backward_traceable(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor) -> None:
    """dx of log_softmax by rows; see `softbench.kernels.common.rows.Launch`."""
    how = _backward_launch(dy, y, dx)
    kernel = wrap_triton(log_backward_loop) if how.loop else wrap_triton(log_backward_tile)
    kernel[(how.programs,)](dy, y, dx, *how.arguments, num_warps=how.num_warps)
