"""softbench's softmax in Helion, with fixed configurations: its autotuner is off. Needs `helion`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import helion
import helion.language as hl
import torch

PERSISTENT_COLUMNS = 16384  # rows up to here stay in registers; longer ones are read three times, in pieces
PIECE = 4096
COLUMNS_A_WARP = 512  # 16 elements a thread


def forward(x: torch.Tensor) -> torch.Tensor:
    """y = softmax(x) over the columns of (M, N), in float32 between load and store."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        values = x[tile, :].to(torch.float32)
        numerator = torch.exp(values - torch.amax(values, dim=1, keepdim=True))
        out[tile, :] = (numerator / torch.sum(numerator, dim=1, keepdim=True)).to(x.dtype)
    return out


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """dx = y * (dy - sum(dy * y)) over the columns, likewise."""
    out = torch.empty_like(y)
    for tile in hl.tile(y.size(0)):
        gradient, values = dy[tile, :].to(torch.float32), y[tile, :].to(torch.float32)
        dot = torch.sum(gradient * values, dim=1, keepdim=True)
        out[tile, :] = (values * (gradient - dot)).to(y.dtype)
    return out


def config(N: int) -> Any:
    """A row a program; warps by its length; beyond PERSISTENT_COLUMNS the row is looped over."""
    warps = min(32, max(1, 1 << ((min(N, PERSISTENT_COLUMNS) - 1) // COLUMNS_A_WARP).bit_length()))
    loops = [] if N == 1 else [None if N <= PERSISTENT_COLUMNS else PIECE]  # a single column is no reduction
    return helion.Config(block_sizes=[1], num_warps=warps, reduction_loops=loops)


@functools.cache
def kernels(N: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Forward and backward for rows of N columns; Helion compiles them for each shape and dtype they meet."""
    made: Any = tuple(helion.kernel(function, config=config(N), static_shapes=True) for function in (forward, backward))
    return made
