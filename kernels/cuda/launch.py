"""Launches of the CUDA C++ softmax kernels on rows, by ctypes: `softmax.cu` is compiled by nvcc on first use (`build.py`).

Launches that need a workspace (CTAs all over the card that share a row) get one for their device and stream:
launches on one stream follow each other, so they can share it. Under CUDA-graph capture each launch gets its own, zeroed by the graph: a
graph may be replayed on another stream than the one it was captured on, while that one works on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from ..common.allocation import persistent_zeros
from ..common.rows import DTYPES
from ..common.softmax import Softmax
from . import build

_NUMBER = {dtype: index for index, dtype in enumerate(DTYPES)}
_WORKSPACE_BYTES = 1 << 16  # at least: enough for nearly every launch, so that it hardly ever grows
_workspaces: dict[tuple[int, int], torch.Tensor] = {}
_libraries: dict[int, ctypes.CDLL] = {}


def launch_forward(x: torch.Tensor, y: torch.Tensor, plan: build.Plan | None = None) -> None:
    """y = softmax(x) by rows, on the current stream; see `softbench.kernels.common.rows.Launch`. y is of x's dtype or float32.

    Raises:
        BuildError: the kernels cannot be compiled.
        RuntimeError: the launch failed, or `plan` does not fit.
    """
    index = x.device.index
    call = _library(index).softbench_forward
    M, N = x.shape
    arguments = (x.data_ptr(), y.data_ptr(), x.stride(0), y.stride(0), M, N, _NUMBER[x.dtype], _NUMBER[y.dtype])
    _launch(call, arguments, index, plan)


def launch_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, plan: build.Plan | None = None) -> None:
    """dx of rows, likewise; one dtype."""
    index = y.device.index
    call = _library(index).softbench_backward
    M, N = y.shape
    strides = dy.stride(0), y.stride(0), dx.stride(0)
    _launch(call, (dy.data_ptr(), y.data_ptr(), dx.data_ptr(), *strides, M, N, _NUMBER[y.dtype]), index, plan)


def _library(index: int) -> ctypes.CDLL:
    library = _libraries.get(index)
    if library is None:
        library = _libraries[index] = build.load(torch.cuda.get_device_capability(index))
    return library


def _launch(call: Callable[..., int], arguments: tuple[int, ...], index: int, plan: build.Plan | None) -> None:
    if index != torch._C._cuda_getDevice():  # what torch.cuda's functions ask, without their Python
        with torch.cuda.device(index):
            return _launch(call, arguments, index, plan)
    stream = torch._C._cuda_getCurrentRawStream(index)
    workspace = _workspaces.get((index, stream))
    capturing = workspace is not None and torch.cuda.is_current_stream_capturing()
    given = (None, 0) if workspace is None or capturing else (workspace.data_ptr(), workspace.numel())
    by_reference = None if plan is None else ctypes.addressof(plan)
    code = call(*arguments, *given, stream, by_reference)
    if code < 0:  # nothing was launched: so many bytes of workspace are missing
        if torch.cuda.is_current_stream_capturing():
            fresh = torch.zeros(-code, dtype=torch.uint8, device=f"cuda:{index}")
        else:
            fresh = _workspaces[index, stream] = persistent_zeros(index, max(-code, _WORKSPACE_BYTES), torch.uint8)
        code = call(*arguments, fresh.data_ptr(), fresh.numel(), stream, by_reference)
    if code != 0:
        shape = arguments[-4:-2] if call.__name__ == "softbench_forward" else arguments[-3:-1]
        raise RuntimeError(f"{call.__name__} on {shape}: {_library(index).softbench_error(int(code)).decode()}")
    return None


softmax = Softmax(launch_forward, launch_backward)
"""softmax(x, dim=-1) without an operator, differentiable once; see `softbench.kernels.common.softmax.Softmax`."""
