"""Softmax in Helion: PyTorch operations on tiles, compiled to Triton.

A program takes a row. Helion's autotuner would try hundreds of configurations for each shape; `config` takes one by the row's
length instead.

softbench run --plugin helion_row.py
"""

import functools

import helion
import helion.language as hl
import torch

PERSISTENT_COLUMNS = 16384  # longest row that stays in registers; a longer row is read in a loop, once for each reduction
CHUNK = 4096
COLUMNS_PER_WARP = 512  # 16 elements a thread


def forward_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        values = x[tile, :].to(torch.float32)
        numerator = torch.exp(values - torch.amax(values, dim=1, keepdim=True))
        out[tile, :] = (numerator / torch.sum(numerator, dim=1, keepdim=True)).to(x.dtype)
    return out


def backward_rows(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(y)
    for tile in hl.tile(y.size(0)):
        gradient, values = dy[tile, :].to(torch.float32), y[tile, :].to(torch.float32)
        dot = torch.sum(gradient * values, dim=1, keepdim=True)
        out[tile, :] = (values * (gradient - dot)).to(y.dtype)
    return out


def config(N: int) -> helion.Config:
    """One row a program, warps by the row's length. A row over PERSISTENT_COLUMNS is reduced in a loop."""
    warps = min(32, max(1, 1 << ((min(N, PERSISTENT_COLUMNS) - 1) // COLUMNS_PER_WARP).bit_length()))
    loops = [] if N == 1 else [None if N <= PERSISTENT_COLUMNS else CHUNK]  # Helion makes no reduction of a single column
    return helion.Config(block_sizes=[1], num_warps=warps, reduction_loops=loops)


@functools.cache
def compiled(rows, N: int):
    """A kernel for rows of N columns. Helion compiles it for each shape and dtype."""
    return helion.kernel(rows, config=config(N), static_shapes=True)


def supports(case) -> str | None:
    """None, or why a run skips the case."""
    return None if case.M * case.N else "it takes no tensors without elements"


def softmax(x: torch.Tensor) -> torch.Tensor:
    return compiled(forward_rows, x.shape[1])(x)


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return compiled(backward_rows, y.shape[1])(dy, y)
