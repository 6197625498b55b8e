"""The cuDNN backend with a simulated library."""

import ctypes
from types import SimpleNamespace

import pytest
import torch
from compiling import assert_passes, case, rows_at

from softbench.backends import cudnn
from softbench.backends.calls import EMPTY
from softbench.ops.registry import operation

OPERATIONS = {1: "softmax", 2: "log_softmax"}
"""By the number in cudnnSoftmaxAlgorithm_t: CUDNN_SOFTMAX_ACCURATE and CUDNN_SOFTMAX_LOG."""


class FakeCudnn:
    """A simulated cuDNN: it checks the arguments' order against cuDNN's reference, and computes with torch."""

    def __init__(self):
        self.descriptors, self.streams, self.refuse = [], [], False
        for name in ("cudnnCreate", "cudnnCreateTensorDescriptor"):
            setattr(self, name, self._create)
        self.cudnnSoftmaxForward, self.cudnnSoftmaxBackward = Function(self._forward), Function(self._backward)
        self.cudnnGetErrorString = Function(lambda status: b"CUDNN_STATUS_NOT_SUPPORTED")

    def _create(self, reference):
        reference._obj.value = 1000 + len(self.descriptors)
        return 0

    def cudnnSetTensor4dDescriptor(self, descriptor, layout, kind, *sizes):  # noqa: N802
        self.descriptors.append((layout, kind, sizes))
        return 0

    def cudnnSetStream(self, handle, stream):  # noqa: N802
        self.streams.append(stream.value)
        return 0

    def _forward(self, handle, algorithm, mode, alpha, x_rows, x, beta, y_rows, y):
        if self.refuse:
            return 3000
        assert (mode, alpha._obj.value, beta._obj.value) == (0, 1.0, 0.0)
        shape = self.descriptors[-1][2][:2]
        rows_at(y, *shape).copy_(getattr(torch, OPERATIONS[algorithm])(rows_at(x, *shape), -1))
        return 0

    def _backward(self, handle, algorithm, mode, alpha, y_rows, y, dy_rows, dy, beta, dx_rows, dx):
        assert (mode, alpha._obj.value, beta._obj.value) == (0, 1.0, 0.0)
        shape = self.descriptors[-1][2][:2]
        gradient = getattr(torch.ops.aten, f"_{OPERATIONS[algorithm]}_backward_data")
        rows_at(dx, *shape).copy_(gradient(rows_at(dy, *shape), rows_at(y, *shape), -1, torch.float32))
        return 0


class Function:
    """A function whose argument types can be set, as ctypes' functions."""

    def __init__(self, call):
        self.call = call

    def __call__(self, *given):
        return self.call(*given)


@pytest.fixture
def fake_cudnn(monkeypatch):
    fake = FakeCudnn()
    monkeypatch.setattr(cudnn, "library", lambda: fake)
    monkeypatch.setattr(cudnn, "_refusal", lambda operation, dtype, direction: None)
    monkeypatch.setattr(cudnn, "_streams", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda index: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(cuda_stream=5))
    yield fake
    cudnn._handle.cache_clear()
    cudnn._descriptor.cache_clear()


@pytest.mark.parametrize("op", cudnn.backend.operations)
@pytest.mark.parametrize("direction", operation("softmax").directions)
def test_cudnn_gets_ordered_arguments_and_torchs_stream(fake_cudnn, direction, op):
    assert_passes(cudnn.backend, case(direction=direction, op=op))
    assert_passes(cudnn.backend, case(direction=direction, op=op))
    assert fake_cudnn.descriptors == [(0, 0, (8, 32, 1, 1))]  # cached
    assert fake_cudnn.streams == [5]


def test_a_refused_call_raises_with_cudnns_reason(fake_cudnn):
    fake_cudnn.refuse = True
    with pytest.raises(cudnn.CudnnError, match="cudnnSoftmaxForward: CUDNN_STATUS_NOT_SUPPORTED"):
        cudnn.backend.prepare(case())(torch.zeros(8, 32))


def test_large_and_empty_tensors_are_refused(fake_cudnn):
    assert cudnn.backend.supports(case(2**20, M=2047)) is None
    assert "fewer than 2^31 elements" in cudnn.backend.supports(case(2**20, M=2048))
    assert cudnn.backend.supports(case(0)) == EMPTY


def test_missing_cudnn_names_the_package(monkeypatch):
    def missing():
        raise OSError("no libcudnn with a softmax is loaded")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cudnn, "library", missing)
    assert cudnn.backend.available().startswith("no libcudnn with a softmax is loaded; pip install nvidia-cudnn-cu13")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cudnn.backend.available() == "no CUDA GPU here"


def test_only_a_library_with_softmax_is_loaded(monkeypatch):
    tried = []

    def load(place):
        tried.append(place)
        if place == "libcudnn.so.9":
            return SimpleNamespace(cudnnCreate=1)  # a shim without the legacy functions
        if place == "libcudnn_ops.so.9":
            return SimpleNamespace(**dict.fromkeys(cudnn.NEEDED, 1))
        raise OSError(place)

    cudnn.library.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert cudnn.library().cudnnSoftmaxForward == 1
    assert tried == ["libcudnn.so.9", "libcudnn.so.8", "libcudnn_ops.so.9"]
    cudnn.library.cache_clear()
