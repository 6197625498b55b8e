"""softbench's CUDA C++ softmax kernels. Nothing here imports the benchmarking side.

    from softbench.kernels.cuda import softmax
    y = softmax(x, dim=-1)        # any shape and strides, float32, float16, bfloat16; differentiable

`softmax.cu` is compiled by nvcc on first use (`build.py`).
"""

from __future__ import annotations

import ctypes

import torch

from ..triton.rows import DTYPES, Softmax
from . import build


def launch_forward(x: torch.Tensor, y: torch.Tensor) -> None:
    """y = softmax(x) by rows, on the current stream; see `softbench.kernels.triton.rows.Launch`. Raises BuildError, RuntimeError."""
    _launch("softbench_forward", (x, y))


def launch_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor) -> None:
    """dx of rows, likewise."""
    _launch("softbench_backward", (dy, y, dx))


def _launch(name: str, tensors: tuple[torch.Tensor, ...]) -> None:
    first = tensors[0]
    with torch.cuda.device(first.device):
        library = build.load(torch.cuda.get_device_capability(first.device))
        stream = ctypes.c_void_p(torch.cuda.current_stream(first.device).cuda_stream)
        pointers, strides = [tensor.data_ptr() for tensor in tensors], [tensor.stride(0) for tensor in tensors]
        code = getattr(library, name)(*pointers, *strides, *first.shape, DTYPES.index(first.dtype), stream)
    if code != 0:
        raise RuntimeError(f"{name} on {tuple(first.shape)}: {library.softbench_error(code).decode()}")


softmax = Softmax(launch_forward, launch_backward)
"""softmax(x, dim=-1): differentiable, any shape and strides; see `softbench.kernels.triton.rows.Softmax`."""
