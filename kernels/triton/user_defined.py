"""Raw Triton kernels in plain functions for torch.compile, as in PyTorch's recipe "Using user-defined Triton kernels with torch.compile".

There is no operator and no autograd: Dynamo sees the launches themselves.

- Rows that compilers can launch: the launch of `traceable.py`, which Dynamo takes as constants.
- Others: a call of the opaque operator, as in `traceable.py`.

Compile with static sizes (`dynamic=False`), because the plan is for one shape.
"""

from __future__ import annotations

import torch

from .operator import SOFTMAX
from .traceable import calls_operator, launch_of
from .traceable_rows import (
    backward_traceable,
    forward_traceable,
    gradient_tile_traceable,
    tile_traceable,
)

FORWARD, BACKWARD = SOFTMAX.overloads
Constants = tuple[str, int, int, tuple[int, ...]]
"""Of a launch: tier, programs, warps, and the arguments after the tensors. The tier is empty for a call of an operator."""


def forward(x: torch.Tensor) -> torch.Tensor:
    """softmax over the last axis of contiguous (M, N) rows of float32, float16 or bfloat16, for torch.compile(fullgraph=True)."""
    y = torch.empty_like(x)
    M, N = x.shape
    if M * N == 0:
        return y
    tier, programs, warps, arguments = _constants(M, N, x.dtype, 1)
    if not tier:
        result: torch.Tensor = FORWARD(x, 1)
        return result
    kernel = forward_traceable if tier == "rows" else tile_traceable
    kernel[(programs,)](x, y, *arguments, num_warps=warps)
    return y


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """dx over the last axis of such rows, for torch.compile(fullgraph=True)."""
    dx = torch.empty_like(y)
    M, N = y.shape
    if M * N == 0:
        return dx
    tier, programs, warps, arguments = _constants(M, N, y.dtype, 2)
    if not tier:
        result: torch.Tensor = BACKWARD(dy, y, 1)
        return result
    kernel = backward_traceable if tier == "rows" else gradient_tile_traceable
    kernel[(programs,)](dy, y, dx, *arguments, num_warps=warps)
    return dx


@torch.compiler.assume_constant_result
def _constants(M: int, N: int, dtype: torch.dtype, reads: int) -> Constants:
    """The launch for contiguous rows."""
    x, device = torch.empty(M, N, dtype=dtype, device="meta"), torch.device("cuda")
    if calls_operator((x,) * reads, 1, device):
        return "", 0, 0, ()
    how = launch_of((x,) * (reads + 1), False, device)
    return how.tier, int(how.programs), how.num_warps, how.arguments  # type: ignore[return-value]
