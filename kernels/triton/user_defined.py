"""Raw Triton kernels in plain functions for torch.compile, as in PyTorch's recipe "Using user-defined Triton kernels with torch.compile".

There is no operator and no autograd: Dynamo sees the launches themselves.

- Rows of up to LONG_ROW bytes: the launch of `traceable.py`, which Dynamo takes as constants.
- Rows that need several programs: a call of an operator on rows, as in `traceable.py`.

Compile with static sizes (`dynamic=False`), because the plan is for one shape.
"""

from __future__ import annotations

import torch

from .row_operators import NOT_PACKAGED
from .traceable import LONG_ROW, launch_of
from .traceable_rows import (
    backward_traceable,
    forward_traceable,
    gradient_loop_traceable,
    gradient_tile_traceable,
    loop_traceable,
    tile_traceable,
)
from .traceable_staged import backward_staged_traceable, forward_staged_traceable

Constants = tuple[str, int, int, tuple[int, ...]]
"""Of a launch: tier, programs, warps, and the arguments after the tensors."""


def forward(x: torch.Tensor) -> torch.Tensor:
    """softmax over the last axis of contiguous (M, N) rows of float32, float16 or bfloat16, for torch.compile(fullgraph=True)."""
    y = torch.empty_like(x)
    M, N = x.shape
    if M * N == 0:
        return y
    if N * x.element_size() > LONG_ROW:
        result: torch.Tensor = torch.ops.softbench.triton_softmax_rows.default(x, NOT_PACKAGED)
        return result
    tier, programs, warps, arguments = _constants(M, N, x.dtype, 1)
    if tier in ("rows", "staged"):
        kernel = forward_traceable if tier == "rows" else forward_staged_traceable
    else:
        kernel = loop_traceable if tier == "loop" else tile_traceable
    kernel[(programs,)](x, y, *arguments, num_warps=warps)
    return y


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """dx over the last axis of such rows, for torch.compile(fullgraph=True)."""
    dx = torch.empty_like(y)
    M, N = y.shape
    if M * N == 0:
        return dx
    if 2 * N * y.element_size() > LONG_ROW:
        result: torch.Tensor = torch.ops.softbench.triton_softmax_rows_backward.default(dy, y, NOT_PACKAGED)
        return result
    tier, programs, warps, arguments = _constants(M, N, y.dtype, 2)
    if tier in ("rows", "staged"):
        kernel = backward_traceable if tier == "rows" else backward_staged_traceable
    else:
        kernel = gradient_loop_traceable if tier == "loop" else gradient_tile_traceable
    kernel[(programs,)](dy, y, dx, *arguments, num_warps=warps)
    return dx


@torch.compiler.assume_constant_result
def _constants(M: int, N: int, dtype: torch.dtype, reads: int) -> Constants:
    """The launch for contiguous rows."""
    how = launch_of((torch.empty(M, N, dtype=dtype, device="meta"),) * (reads + 1), False, torch.device("cuda"))
    return how.tier, int(how.programs), how.num_warps, how.arguments  # type: ignore[return-value]
