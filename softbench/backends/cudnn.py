"""cuDNN's own softmax (`cudnnSoftmaxForward`, `cudnnSoftmaxBackward`), by ctypes from the library that torch brings along.

PyTorch itself does not call it. An (M, N) tensor is given as M images of N channels and one pixel, in mode INSTANCE: softmax over all of an
image. Source: the reference of the cudnn_ops library in NVIDIA's cuDNN documentation.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from softbench.backends.autograd import differentiable
from softbench.backends.directions import by_direction
from softbench.core.case import Case, Direction
from softbench.core.text import one_line

ACCURATE, INSTANCE, NCHW = 1, 0, 0  # CUDNN_SOFTMAX_ACCURATE subtracts the maximum, FAST does not
TYPES = {"fp32": 0, "fp16": 2, "bf16": 9}  # cudnnDataType_t
MOST_ELEMENTS = 2**31  # of a tensor, exclusive: the documentation's limit
SONAMES = ("libcudnn.so.9", "libcudnn.so.8", "libcudnn_ops.so.9", "libcudnn.so")
NEEDED = ("cudnnCreate", "cudnnSetStream", "cudnnSetTensor4dDescriptor", "cudnnSoftmaxForward", "cudnnSoftmaxBackward")
PACKAGE = "pip install nvidia-cudnn-cu13 (for CUDA 12: nvidia-cudnn-cu12), which torch's own CUDA builds from PyPI bring along"

Call = Callable[..., Any]
_streams: dict[int, int] = {}
"""The stream of each device's handle."""


class CudnnError(RuntimeError):
    """cuDNN refused a call; the message names it and cuDNN's reason."""


@functools.cache
def library() -> ctypes.CDLL:
    """libcudnn: the one that is loaded, else the one of pip's package. Its functions return a status, which is checked.

    Raises:
        OSError: there is none that has a softmax.
    """
    folders = [Path(place) / "lib" for place in _package_folders()]
    places = [*SONAMES, *(str(folder / name) for folder in folders for name in SONAMES if (folder / name).is_file())]
    for place in places:  # by its bare name the loader finds what torch has loaded
        try:
            found = ctypes.CDLL(place)
            if all(hasattr(found, name) for name in NEEDED):
                return found
        except OSError:
            continue
    raise OSError("no libcudnn with a softmax is loaded, on the loader's path or in nvidia's packages")


def _package_folders() -> list[str]:
    found = importlib.util.find_spec("nvidia")
    roots = list(found.submodule_search_locations or []) if found else []
    return [str(Path(root) / "cudnn") for root in roots]


def _checked(name: str, *arguments: Any) -> None:
    if status := getattr(library(), name)(*arguments):
        raise _refused(name, status)


def _refused(name: str, status: int) -> CudnnError:
    explain = library().cudnnGetErrorString
    explain.restype = ctypes.c_char_p
    text: bytes = explain(status) or b""
    return CudnnError(f"{name}: {text.decode(errors='replace') or f'status {status}'}")


@functools.cache
def _handle(index: int) -> ctypes.c_void_p:
    """One for each device, made while that is the current one; it lives as long as the process."""
    handle = ctypes.c_void_p()
    with torch.cuda.device(index):
        _checked("cudnnCreate", ctypes.byref(handle))
    return handle


@functools.cache
def _descriptor(M: int, N: int, dtype: str) -> ctypes.c_void_p:
    """Of contiguous rows; kept, as making one costs more than a launch."""
    descriptor = ctypes.c_void_p()
    _checked("cudnnCreateTensorDescriptor", ctypes.byref(descriptor))
    _checked("cudnnSetTensor4dDescriptor", descriptor, NCHW, TYPES[dtype], M, N, 1, 1)
    return descriptor


class _Softmax:
    """Both directions of one shape; on torch's current stream."""

    def __init__(self, M: int, N: int, dtype: str) -> None:
        self.index = torch.cuda.current_device()
        self.handle, self.rows = _handle(self.index), _descriptor(M, N, dtype)
        self.one, self.zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self.by_one, self.by_zero = ctypes.byref(self.one), ctypes.byref(self.zero)
        cudnn = library()
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self.call_forward, self.call_backward = cudnn.cudnnSoftmaxForward, cudnn.cudnnSoftmaxBackward
        self.call_forward.argtypes = [pointer, number, number, pointer, pointer, pointer, pointer, pointer, pointer]
        self.call_backward.argtypes = [pointer, number, number, *[pointer] * 8]

    def _on_current_stream(self) -> None:
        stream = torch.cuda.current_stream(self.index).cuda_stream
        if stream != _streams.get(self.index):
            _checked("cudnnSetStream", self.handle, ctypes.c_void_p(stream))
            _streams[self.index] = stream

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y = softmax(x)."""
        y = torch.empty_like(x, requires_grad=False)
        self._on_current_stream()
        status = self.call_forward(
            *(self.handle, ACCURATE, INSTANCE, self.by_one, self.rows, x.data_ptr(), self.by_zero, self.rows, y.data_ptr())
        )
        if status:
            raise _refused("cudnnSoftmaxForward", status)
        return y

    def backward(self, dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """dx from dy and y. Autograd may hand over a gradient that is expanded: cuDNN takes rows."""
        dy = dy.contiguous()
        dx = torch.empty_like(y)
        self._on_current_stream()
        status = self.call_backward(
            *(self.handle, ACCURATE, INSTANCE, self.by_one, self.rows, y.data_ptr(), self.rows, dy.data_ptr()),
            *(self.by_zero, self.rows, dx.data_ptr()),
        )
        if status:
            raise _refused("cudnnSoftmaxBackward", status)
        return dx


class Cudnn:
    """NVIDIA's cuDNN, accurate mode: the softmax of the library that torch ships with and does not call."""

    name = "cudnn"
    advice = "where a program is on cuDNN's C interface already; measure it against torch first"

    def available(self) -> str | None:
        if not torch.cuda.is_available():
            return "no CUDA GPU here"
        if torch.version.hip:
            return "cuDNN is NVIDIA's; this torch is for ROCm"
        try:
            library()
        except Exception as error:
            return f"{one_line(str(error), 150)}; {PACKAGE}"
        return None

    def supports(self, case: Case) -> str | None:
        if case.M * case.N == 0:
            return "it takes no rows without elements"
        if case.M * case.N >= MOST_ELEMENTS:
            return f"a cuDNN tensor holds fewer than 2^31 elements; this one has {case.M * case.N}"
        return _refusal(case.dtype, case.direction)

    def prepare(self, case: Case) -> Call:
        softmax = _Softmax(case.M, case.N, case.dtype)
        forward = differentiable(softmax.forward, softmax.backward) if case.direction is Direction.BOTH else softmax.forward
        return by_direction(case, forward, softmax.backward)


@functools.cache
def _refusal(dtype: str, direction: Direction) -> str | None:
    """What this version of cuDNN says to the dtype, found by a row of eight; None when it takes it."""
    from softbench.ops.dtypes import DTYPES

    row = torch.zeros(1, 8, dtype=DTYPES[dtype], device="cuda")
    try:
        softmax = _Softmax(1, 8, dtype)
        if direction is not Direction.BACKWARD:
            softmax.forward(row)
        if direction is not Direction.FORWARD:
            softmax.backward(row, row)
    except CudnnError as error:
        return f"this cuDNN refuses {dtype}: {one_line(str(error), 150)}"
    return None


backend = Cudnn()
