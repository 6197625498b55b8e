"""softbench's softmax in Helion, with fixed configurations and without its autotuner. Needs `helion`."""

from __future__ import annotations

import functools

import helion
import helion.language as hl
import torch

from softbench.backends.calls import Pair

PERSISTENT_COLUMNS = 16384  # longest row that stays in registers; a longer row is read three times
CHUNK = 4096
COLUMNS_PER_WARP = 512  # 16 elements per thread


def forward(x: torch.Tensor) -> torch.Tensor:
    """y = softmax(x) over the columns of (M, N), with float32 arithmetic."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        values = x[tile, :].to(torch.float32)
        numerator = torch.exp(values - torch.amax(values, dim=1, keepdim=True))
        out[tile, :] = (numerator / torch.sum(numerator, dim=1, keepdim=True)).to(x.dtype)
    return out


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """dx = y * (dy - sum(dy * y)) over the columns, with float32 arithmetic."""
    out = torch.empty_like(y)
    for tile in hl.tile(y.size(0)):
        gradient, values = dy[tile, :].to(torch.float32), y[tile, :].to(torch.float32)
        dot = torch.sum(gradient * values, dim=1, keepdim=True)
        out[tile, :] = (values * (gradient - dot)).to(y.dtype)
    return out


def config(N: int) -> helion.Config:
    """One row per program, warps by row length. A row over PERSISTENT_COLUMNS is reduced in a loop."""
    warps = min(32, max(1, 1 << ((min(N, PERSISTENT_COLUMNS) - 1) // COLUMNS_PER_WARP).bit_length()))
    loops = [] if N == 1 else [None if N <= PERSISTENT_COLUMNS else CHUNK]  # Helion makes no reduction of a single column
    return helion.Config(block_sizes=[1], num_warps=warps, reduction_loops=loops)


@functools.cache
def kernels(N: int) -> Pair:
    """Forward and backward for rows of N columns. Helion compiles them for each shape and dtype."""
    compiled = (helion.kernel(function, config=config(N), static_shapes=True) for function in (forward, backward))
    kernel_forward, kernel_backward = compiled
    return kernel_forward, kernel_backward
