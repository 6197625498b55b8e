"""The raw kernels as PyTorch's recipe "Using user-defined Triton kernels with torch.compile" has them: plain functions to be compiled.

No operator and no autograd: Dynamo sees the launches themselves. The tile's shape follows from N by heuristics, the number of warps is
autotuned. Heuristics stand before the autotuner: Dynamo calls them as Python and finds an autotuner of finished arguments. Sizes are
to be static (`dynamic=False`): the autotuner's launch is chosen for one shape.
"""

from __future__ import annotations

import torch
import triton

from .plain import LOOP_COLUMNS, TILE_COLUMNS, backward_loop, forward_loop
from .tile import BACKWARD_TILE, FORWARD_TILE

LOOP_CONFIGS = [triton.Config({}, num_warps=warps) for warps in (8, 16, 32)]
FORWARD_LOOP = triton.autotune(configs=LOOP_CONFIGS, key=["N"])(forward_loop)
BACKWARD_LOOP = triton.autotune(configs=LOOP_CONFIGS, key=["N"])(backward_loop)


def forward(x: torch.Tensor) -> torch.Tensor:
    """softmax over the last axis of contiguous (M, N) rows of float32, float16 or bfloat16; for torch.compile(fullgraph=True)."""
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
    """dx of such rows, likewise."""
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
