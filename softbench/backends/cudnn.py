"""cuDNN's softmax and log-softmax, called through ctypes from the library that torch installs.

PyTorch does not call these functions, `cudnnSoftmaxForward` and `cudnnSoftmaxBackward`. An (M, N) tensor becomes M images of N
channels and one pixel. Mode INSTANCE reduces over all elements of an image. Source: the reference of the cudnn_ops library in NVIDIA's
cuDNN documentation.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path

import torch

from softbench.backends import nvidia
from softbench.backends.calls import EMPTY, by_direction, differentiable
from softbench.core.case import Case, Direction
from softbench.core.text import one_line
from softbench.plugins.backend import Call

ALGORITHMS = {"softmax": 1, "log_softmax": 2}  # CUDNN_SOFTMAX_ACCURATE, which subtracts the maximum, and CUDNN_SOFTMAX_LOG
INSTANCE, NCHW = 0, 0
TYPES = {"fp32": 0, "fp16": 2, "bf16": 9}  # cudnnDataType_t
MAX_ELEMENTS = 2**31  # elements of a tensor, exclusive: the limit in the documentation
SONAMES = ("libcudnn.so.9", "libcudnn.so.8", "libcudnn_ops.so.9", "libcudnn.so")
NEEDED = ("cudnnCreate", "cudnnSetStream", "cudnnSetTensor4dDescriptor", "cudnnSoftmaxForward", "cudnnSoftmaxBackward")
PACKAGE = "pip install nvidia-cudnn-cu13 (for CUDA 12: nvidia-cudnn-cu12); CUDA builds of torch on PyPI depend on it"

_streams: dict[int, int] = {}
"""The stream that the handle of each device uses, by device index."""


class CudnnError(RuntimeError):
    """cuDNN refused a call. The message names the call and cuDNN's reason."""


@functools.cache
def library() -> ctypes.CDLL:
    """The libcudnn that the process has loaded, else the library of pip's package.

    Raises:
        OSError: no library with a softmax was found.
    """
    folders = [Path(place) / "lib" for place in _package_folders()]
    places = [*SONAMES, *(str(folder / name) for folder in folders for name in SONAMES if (folder / name).is_file())]
    for place in places:  # a bare name finds the library that torch has loaded
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


def _checked(name: str, *arguments: object) -> None:
    if status := getattr(library(), name)(*arguments):
        raise _refused(name, status)


def _refused(name: str, status: int) -> CudnnError:
    explain = library().cudnnGetErrorString
    explain.restype = ctypes.c_char_p
    text: bytes = explain(status) or b""
    return CudnnError(f"{name}: {text.decode(errors='replace') or f'status {status}'}")


@functools.cache
def _handle(index: int) -> ctypes.c_void_p:
    """The handle of a device. It is created while that device is current, and lives as long as the process."""
    handle = ctypes.c_void_p()
    with torch.cuda.device(index):
        _checked("cudnnCreate", ctypes.byref(handle))
    return handle


@functools.cache
def _descriptor(M: int, N: int, dtype: str) -> ctypes.c_void_p:
    """The descriptor of contiguous rows. It is cached, as creating it costs more than a launch."""
    descriptor = ctypes.c_void_p()
    _checked("cudnnCreateTensorDescriptor", ctypes.byref(descriptor))
    _checked("cudnnSetTensor4dDescriptor", descriptor, NCHW, TYPES[dtype], M, N, 1, 1)
    return descriptor


class _Softmax:
    """Forward and backward of one operation and shape, on torch's current stream."""

    def __init__(self, operation: str, M: int, N: int, dtype: str) -> None:
        self.algorithm, self.index = ALGORITHMS[operation], torch.cuda.current_device()
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
        """y, the softmax or log-softmax of x."""
        y = torch.empty_like(x, requires_grad=False)
        self._on_current_stream()
        status = self.call_forward(
            *(self.handle, self.algorithm, INSTANCE, self.by_one, self.rows, x.data_ptr(), self.by_zero, self.rows, y.data_ptr())
        )
        if status:
            raise _refused("cudnnSoftmaxForward", status)
        return y

    def backward(self, dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """dx from dy and y. Autograd may pass an expanded dy; cuDNN needs contiguous rows."""
        dy = dy.contiguous()
        dx = torch.empty_like(y)
        self._on_current_stream()
        status = self.call_backward(
            *(self.handle, self.algorithm, INSTANCE, self.by_one, self.rows, y.data_ptr(), self.rows, dy.data_ptr()),
            *(self.by_zero, self.rows, dx.data_ptr()),
        )
        if status:
            raise _refused("cudnnSoftmaxBackward", status)
        return dx


class Cudnn:
    """NVIDIA's cuDNN in accurate mode. torch installs this library and does not call its softmax."""

    name = "cudnn"
    operations = tuple(ALGORITHMS)
    advice = "if a program already uses cuDNN's C interface; compare it with torch first"

    def available(self) -> str | None:
        if reason := nvidia.missing():
            return reason
        try:
            library()
        except Exception as error:
            return f"{one_line(str(error), 150)}; {PACKAGE}"
        return None

    def supports(self, case: Case) -> str | None:
        if case.M * case.N == 0:
            return EMPTY
        if case.M * case.N >= MAX_ELEMENTS:
            return f"a cuDNN tensor holds fewer than 2^31 elements; this one has {case.M * case.N}"
        return _refusal(case.operation, case.dtype, case.direction)

    def prepare(self, case: Case) -> Call:
        softmax = _Softmax(case.operation, case.M, case.N, case.dtype)
        forward = differentiable(softmax.forward, softmax.backward) if case.direction is Direction.BOTH else softmax.forward
        return by_direction(case, forward, softmax.backward)


@functools.cache
def _refusal(operation: str, dtype: str, direction: Direction) -> str | None:
    """Why this version of cuDNN refuses the dtype, found by running a row of eight; None if it accepts."""
    from softbench.ops.dtypes import DTYPES

    row = torch.zeros(1, 8, dtype=DTYPES[dtype], device="cuda")
    try:
        softmax = _Softmax(operation, 1, 8, dtype)
        if direction is not Direction.BACKWARD:
            softmax.forward(row)
        if direction is not Direction.FORWARD:
            softmax.backward(row, row)
    except CudnnError as error:
        return f"this cuDNN refuses {dtype}: {one_line(str(error), 150)}"
    return None


backend = Cudnn()
