"""Raw Triton kernels in plain functions for torch.compile, as in PyTorch's recipe "Using user-defined Triton kernels with torch.compile".

There is no operator and no autograd: Dynamo sees the launches themselves. The tile's shape follows from N by heuristics, and the number of
warps is autotuned. The heuristics wrap the autotuner: Dynamo calls them as Python, and then finds an autotuner with complete arguments.
Compile with static sizes (`dynamic=False`), because the autotuner chooses for one shape.
"""

from __future__ import annotations

import torch
import triton

from .generic import LOOP_COLUMNS, TILE_COLUMNS, backward_loop, forward_loop
from .tiled import BACKWARD_TILE, FORWARD_TILE

LOOP_CONFIGS = [triton.Config({}, num_warps=warps) for warps in (8, 16, 32)]
FORWARD_LOOP = triton.autotune(configs=LOOP_CONFIGS, key=["N"])(forward_loop)
BACKWARD_LOOP = triton.autotune(configs=LOOP_CONFIGS, key=["N"])(backward_loop)


def forward(x: torch.Tensor) -> torch.Tensor:
    """softmax over the last axis of contiguous (M, N) rows of float32, float16 or bfloat16, for torch.compile(fullgraph=True)."""
    y = torch.empty_like(x)
    M, N = x.shape
    if M * N == 0:
        return y
    strides = x.stride(0), y.stride(0)
    if N > TILE_COLUMNS:
        FORWARD_LOOP[(M,)](x, y, *strides, M, N, LOOP_COLUMNS)
    else:
        FORWARD_TILE[lambda meta: (triton.cdiv(M, meta["BLOCK_M"]),)](x, y, *strides, M, N)
    return y


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """dx over the last axis of such rows, for torch.compile(fullgraph=True)."""
    dx = torch.empty_like(y)
    M, N = y.shape
    if M * N == 0:
        return dx
    strides = dy.stride(0), y.stride(0), dx.stride(0)
    if N > TILE_COLUMNS // 2:
        BACKWARD_LOOP[(M,)](dy, y, dx, *strides, M, N, LOOP_COLUMNS // 2)
    else:
        BACKWARD_TILE[lambda meta: (triton.cdiv(M, meta["BLOCK_M"]),)](dy, y, dx, *strides, M, N)
    return dx
