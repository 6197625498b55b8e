"""Launches of the CUDA C++ softmax kernels on rows, through ctypes. nvcc compiles `softmax.cu` on first use (`build.py`).

Launches whose CTAs share a row anywhere on the device need a workspace. Each device and stream has one workspace, because launches on one
stream follow each other. A launch that a CUDA graph captures gets its own, which the graph sets to zero. The graph may be replayed on
another stream while the first stream still works.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from ..common.allocation import persistent_zeros
from ..common.rows import DTYPES
from ..common.softmax import Softmax
from . import build
from .launch_plan import Plan

_DTYPE_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}
_MIN_WORKSPACE_BYTES = 1 << 16  # enough for nearly every launch, so that a workspace hardly ever grows
_workspaces: dict[tuple[int, int], torch.Tensor] = {}  # by device and stream
_libraries: dict[int, ctypes.CDLL] = {}  # by device


def launch_forward(x: torch.Tensor, y: torch.Tensor, plan: Plan | None = None) -> None:
    """Writes the softmax of the rows of `x` (M, N) to `y`, on the current stream.

    `y` has x's dtype or float32. See `softbench.kernels.common.rows.Launch`.

    Raises:
        BuildError: the kernels cannot be compiled.
        RuntimeError: the launch failed, or `plan` does not fit.
    """
    index = x.device.index
    call = _library(index).softbench_forward
    M, N = x.shape
    arguments = (x.data_ptr(), y.data_ptr(), x.stride(0), y.stride(0), M, N, _DTYPE_NUMBERS[x.dtype], _DTYPE_NUMBERS[y.dtype])
    _launch(call, arguments, index, plan)


def launch_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, plan: Plan | None = None) -> None:
    """Writes the gradient of rows (M, N) to `dx`. All three have one dtype. Raises as `launch_forward`."""
    index = y.device.index
    call = _library(index).softbench_backward
    M, N = y.shape
    strides = dy.stride(0), y.stride(0), dx.stride(0)
    _launch(call, (dy.data_ptr(), y.data_ptr(), dx.data_ptr(), *strides, M, N, _DTYPE_NUMBERS[y.dtype]), index, plan)


def _library(index: int) -> ctypes.CDLL:
    library = _libraries.get(index)
    if library is None:
        library = _libraries[index] = build.load(torch.cuda.get_device_capability(index))
    return library


def _launch(call: Callable[..., int], arguments: tuple[int, ...], index: int, plan: Plan | None) -> None:
    if index != torch._C._cuda_getDevice():  # torch.cuda calls these functions with more Python around them
        with torch.cuda.device(index):
            return _launch(call, arguments, index, plan)
    stream = torch._C._cuda_getCurrentRawStream(index)
    workspace = _workspaces.get((index, stream))
    capturing = workspace is not None and torch.cuda.is_current_stream_capturing()
    given = (None, 0) if workspace is None or capturing else (workspace.data_ptr(), workspace.numel())
    by_reference = None if plan is None else ctypes.addressof(plan)
    code = call(*arguments, *given, stream, by_reference)
    if code < 0:  # nothing was launched: the workspace lacks -code bytes
        if torch.cuda.is_current_stream_capturing():
            fresh = torch.zeros(-code, dtype=torch.uint8, device=f"cuda:{index}")
        else:
            fresh = _workspaces[index, stream] = persistent_zeros(index, max(-code, _MIN_WORKSPACE_BYTES), torch.uint8)
        code = call(*arguments, fresh.data_ptr(), fresh.numel(), stream, by_reference)
    if code != 0:
        shape = arguments[-4:-2] if call.__name__ == "softbench_forward" else arguments[-3:-1]
        raise RuntimeError(f"{call.__name__} on {shape}: {_library(index).softbench_error(int(code)).decode()}")
    return None


softmax = Softmax(launch_forward, launch_backward)
"""softmax(x, dim=-1), differentiable once, without an operator; see `softbench.kernels.common.softmax.Softmax`."""
