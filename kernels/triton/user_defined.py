"""Raw Triton kernels in plain functions for torch.compile, as in PyTorch's recipe "Using user-defined Triton kernels with torch.compile".

There is no operator and no autograd: Dynamo sees the launches themselves.

- Rows that compilers can launch: the launch of `traceable.py`, which Dynamo takes as constants.
- Others: a call of the opaque operator, as in `traceable.py`.

Compile with static sizes (`dynamic=False`), because the plan is for one shape.
"""

from __future__ import annotations

from typing import Any

import torch

from .operator import SOFTMAX
from .traceable import calls_operator, launch_of
from .traceable_rows import (
    backward_traceable,
    forward_traceable,
    gradient_tile_traceable,
    tile_traceable,
)

Constants = tuple[str, int, int, tuple[int, ...]]
"""Of a launch: tier, programs, warps, and the arguments after the tensors. The tier is empty for a call of an operator."""


def forward(x: torch.Tensor) -> torch.Tensor:
    """softmax over the last axis of contiguous (M, N) rows of float32, float16 or bfloat16, for torch.compile(fullgraph=True)."""
    return _launch((x,), forward_traceable, tile_traceable)


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """dx over the last axis of such rows, for torch.compile(fullgraph=True)."""
    return _launch((dy, y), backward_traceable, gradient_tile_traceable)


def _launch(inputs: tuple[torch.Tensor, ...], of_rows: Any, of_tiles: Any) -> torch.Tensor:
    like = inputs[-1]
    M, N = like.shape
    if M * N == 0:
        return torch.empty_like(like)
    tier, programs, warps, arguments = _constants(M, N, like.dtype, len(inputs))
    if not tier:
        called: torch.Tensor = SOFTMAX.unrecorded[len(inputs) - 1](*inputs, 1)
        return called
    out = torch.empty_like(like)
    (of_rows if tier == "rows" else of_tiles)[(programs,)](*inputs, out, *arguments, num_warps=warps)
    return out


@torch.compiler.assume_constant_result
def _constants(M: int, N: int, dtype: torch.dtype, reads: int) -> Constants:
    """The launch for contiguous rows."""
    x, device = torch.empty(M, N, dtype=dtype, device="meta"), torch.device("cuda")
    if calls_operator((x,) * reads, 1, device):
        return "", 0, 0, ()
    how = launch_of((x,) * (reads + 1), False, device)
    return how.tier, int(how.programs), how.num_warps, how.arguments  # type: ignore[return-value]
