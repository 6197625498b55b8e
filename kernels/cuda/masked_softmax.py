"""masked_softmax(x): softmax of attention scores with scale, bias or mask, causal order and sink, differentiable in x and sink.

`scores.cuh` has the kernels; nvcc compiles them on first use. What needs neither mask, order nor sink is softmax with a scale, so
`softmax.cu` computes it. `softbench.kernels.common.masked_softmax.MaskedSoftmax` has the arguments. A bias has the dtype of x here.

Launches raise BuildError if the kernels cannot be compiled, and RuntimeError if a launch fails.
"""

from __future__ import annotations

import torch

from ..common.masked_softmax import MaskedSoftmax
from .launch import Plan, launch_function, softmax

MAX_COLUMNS = 16384
"""A row is at most 512 threads of 128 bytes each, or of 64."""
ALIGNMENT = 16
"""Bytes. Rows are read from there in vectors."""
_NO_MASK, _BIAS, _BOOLEAN = 0, 1, 2


def launch_forward(
    x: torch.Tensor, mask: torch.Tensor | None, sink: torch.Tensor | None, y: torch.Tensor, share: torch.Tensor | None,
    scale: float, causal: bool, *, plan: Plan | None = None, seen: int | None = None,
) -> None:  # fmt: skip
    """Writes y and the share of the sink; see `softbench.kernels.common.masked_softmax.Forward`. `seen`: as `first_sees`, by default that.

    Raises TypeError for a bias of another dtype than x, and as `softbench.kernels.cuda.launch.launch_forward`.
    """
    kind = _NO_MASK
    if mask is not None:
        kind = _BOOLEAN if mask.dtype is torch.bool else _BIAS
        if kind == _BIAS and mask.dtype != x.dtype:
            raise TypeError(f"the bias is {mask.dtype} and x is {x.dtype}; the CUDA kernels take one dtype: mask.to(x.dtype)")
    strides = (0, 0, 0) if mask is None else mask.stride()[:3]
    x, sink = _aligned(x), None if sink is None else sink.float()
    pointers = x.data_ptr(), _pointer(mask), _pointer(sink), y.data_ptr(), _pointer(share)
    launch_function("masked_softmax", "forward", (*pointers, scale, kind, *strides, seen or first_sees(x, causal), *_sizes(x)), x, plan)


def launch_backward(
    dy: torch.Tensor, y: torch.Tensor, share: torch.Tensor | None, dx: torch.Tensor, dsink: torch.Tensor | None,
    scale: float, causal: bool, *, plan: Plan | None = None, seen: int | None = None,
) -> None:  # fmt: skip
    """Writes dx and dsink of each row; see `softbench.kernels.common.masked_softmax.Backward`."""
    dy, y = _aligned(dy), _aligned(y)
    share = None if share is None else share.contiguous()
    pointers = dy.data_ptr(), y.data_ptr(), _pointer(share), dx.data_ptr(), _pointer(dsink)
    launch_function("masked_softmax", "backward", (*pointers, scale, seen or first_sees(y, causal), *_sizes(y)), y, plan)


def first_sees(x: torch.Tensor, causal: bool) -> int:
    """How many columns query 0 sees."""
    S, N = x.shape[2:]
    return 1 + max(0, N - S) if causal else N


def _sizes(x: torch.Tensor) -> tuple[int, ...]:
    """B, H, S, the number of rows, and N."""
    B, H, S, N = x.shape
    return B, H, S, B * H * S, N


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy if it is a view that begins within a vector."""
    return x.clone() if x.data_ptr() % ALIGNMENT else x


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


masked_softmax = MaskedSoftmax(softmax, launch_forward, launch_backward, MAX_COLUMNS)
