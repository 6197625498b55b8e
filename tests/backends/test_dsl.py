"""Our kernels in other languages, cuDNN and FlagGems: without a GPU, by their own simulators where they have one, else by stand-ins."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
import torch

from softbench.backends import cudnn, dsl as dsls
from softbench.backends.third_party import flaggems
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.softmax import inputs, tolerance as correctness
from softbench.plugins.load import load
from softbench.plugins.source import origins

LANGUAGES = [dsls.helion, dsls.cupy, dsls.numba]
languages = pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)


def install(monkeypatch, name, **contents):
    """A module of that name, and empty packages above it."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:i]))
        module.__spec__ = ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(sys.modules[name]).update(contents)


def case(N=32, dtype="fp32", direction=Direction.FORWARD, M=4):
    return Case(M, N, dtype, direction, "cpu")


def python(code, **env):
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(backend, wanted):
    given = inputs.make(wanted, 0, torch.device("cpu"))
    out = backend.prepare(wanted)(*given)
    accuracy = correctness.check(wanted, given, out if wanted.direction is Direction.BOTH else (out,))
    assert accuracy.grade is Grade.PASS, accuracy.detail


def test_they_come_through_entry_points():
    doors = {door.label: door for door in origins([])}
    for backend in (*LANGUAGES, cudnn.backend, flaggems):
        assert load(doors[backend.name]) == (backend,)


@pytest.mark.parametrize("backend", [*LANGUAGES, flaggems], ids=lambda backend: backend.name)
def test_a_missing_package_is_named_with_the_fix(backend, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = backend.available()
    assert reason == f"{backend.package} is not installed; where there is a CUDA GPU: {backend.install}"
    assert "pip install" in reason


@languages
def test_rows_without_elements_are_skipped_with_a_reason(language):
    for empty in (case(0), case(8, M=0)):
        assert language.supports(empty) == "it takes no rows without elements"
    assert language.supports(case()) is None


def test_numba_takes_fp32_only():
    assert "written for fp32" in dsls.numba.supports(case(dtype="bf16"))


def test_a_numba_cuda_made_for_an_older_numpy_is_unavailable_with_its_own_words(monkeypatch):
    def load(name):
        assert name == "numba.cuda.cudaimpl"
        raise trouble

    trouble = AttributeError("module 'numpy' has no attribute 'row_stack'")
    monkeypatch.setattr(dsls.Peer, "available", lambda self: None)
    monkeypatch.setattr(dsls.importlib, "import_module", load)
    assert dsls.numba.available() == (
        "numba-cuda does not load (AttributeError: module 'numpy' has no attribute 'row_stack'): install one that fits the other packages: "
        "pip install 'numba-cuda[cu13]' (for CUDA 12: 'numba-cuda[cu12]')"
    )
    trouble = ModuleNotFoundError("No module named 'llvmlite'", name="llvmlite")
    assert "does not load (ModuleNotFoundError: No module named 'llvmlite')" in dsls.numba.available()
    trouble = ModuleNotFoundError("No module named 'numba.cuda.cudaimpl'", name="numba.cuda.cudaimpl")
    assert dsls.numba.available() is None


HELION = """
import torch
from softbench.backends import helion_softmax as h
for N in (1, 7, 1000):
    for dtype in (torch.float32, torch.bfloat16):
        forward, backward = h.kernels(N)
        x, dy = torch.randn(2, 5, N).to(dtype).unbind()
        y = forward(x)
        torch.testing.assert_close(y, torch.softmax(x.float(), -1).to(dtype))
        dx = torch.ops.aten._softmax_backward_data(dy.float(), y.float(), -1, torch.float32)
        torch.testing.assert_close(backward(dy, y), dx.to(dtype))
"""
HELION_CODE = """
import torch
from softbench.backends import helion_softmax as h
for N, warps, looped in ((1, 1, False), (2, 1, False), (1000, 2, False), (16384, 32, False), (50257, 32, True)):
    config = h.config(N)
    for kernel, given in zip(h.kernels(N), ((torch.randn(4, N),), (torch.randn(4, N), torch.randn(4, N)))):
        code = kernel.bind(given).to_triton_code(config)
        assert f"num_warps={warps}" in code, (N, code)
        assert ("tl.range(0, 50257" in code) == looped, (N, code)
"""


@pytest.mark.skipif(importlib.util.find_spec("helion") is None, reason="helion is not installed: pip install helion")
def test_helions_kernels_are_right_under_its_interpreter_and_compile_with_the_fixed_configurations():
    python(HELION, HELION_INTERPRET="1")
    python(HELION_CODE)


NUMBA = """
import torch
from numba import cuda
from softbench.backends import numba_softmax as n
for N in (1, 7, 300):
    x, dy = torch.randn(2, 2, N).unbind()
    y, dx = torch.empty_like(x), torch.empty_like(x)
    cuda.jit(n._forward)[2, n.THREADS](x.numpy(), y.numpy())
    torch.testing.assert_close(y, torch.softmax(x, -1))
    cuda.jit(n._backward)[2, n.THREADS](dy.numpy(), y.numpy(), dx.numpy())
    torch.testing.assert_close(dx, torch.ops.aten._softmax_backward_data(dy, y, -1, torch.float32))
"""


def test_numbas_kernels_are_right_under_its_simulator():
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed: pip install 'numba-cuda[cu13]'")
    python(NUMBA, NUMBA_ENABLE_CUDASIM="1")


@pytest.fixture
def fake_cupy(monkeypatch):
    """CuPy's part: functions of a module that are launched with a grid, a block and pointers; here they note it and compute with torch."""
    launched = []

    class Stream:
        def __init__(self, number):
            self.number = number

        def __enter__(self):
            launched.append(self.number)

        def __exit__(self, *_):
            pass

    def run(name):
        def launch(grid, block, pointers):
            launched.append((name, grid, block))
            x, *rest = (at(pointer, grid[0], 32) for pointer in pointers)
            if name == "softmax_forward":
                rest[0].copy_(torch.softmax(x, -1))
            else:
                rest[1].copy_(torch.ops.aten._softmax_backward_data(x, rest[0], -1, torch.float32))

        return launch

    class RawModule:
        def __init__(self, code, options):
            launched.append(options)
            assert 'extern "C" __global__ void softmax_backward' in code

        def get_function(self, name):
            return run(name)

    install(monkeypatch, "cupy", RawModule=RawModule, cuda=SimpleNamespace(ExternalStream=Stream))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(cuda_stream=7))
    monkeypatch.delitem(sys.modules, "softbench.backends.cupy_softmax", raising=False)
    yield launched
    sys.modules.pop("softbench.backends.cupy_softmax", None)


def at(pointer, M, N):
    """The float32 rows at an address."""
    numbers = (ctypes.c_float * (M * N)).from_address(int(getattr(pointer, "value", pointer)))
    return torch.frombuffer(numbers, dtype=torch.float32).view(M, N)


@pytest.mark.parametrize("direction", list(Direction))
def test_cupys_kernel_is_launched_a_block_a_row_on_torchs_stream(fake_cupy, direction):
    check(dsls.cupy, case(direction=direction))
    assert fake_cupy[0] == ("-std=c++17", "-DKIND=0", "-DCOLUMNS=32", "-DTHREADS=512")
    assert fake_cupy[1] == 7
    assert fake_cupy[2][1:] == ((4,), (512,))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_cupys_kernel_compiles_for_every_dtype(fake_cupy, tmp_path):
    from softbench.backends import cupy_softmax

    (tmp_path / "softmax.cu").write_text(cupy_softmax.SOURCE)
    for dtype in cupy_softmax.KINDS:
        options = cupy_softmax.options(1000, dtype)
        command = ["nvcc", "--ptx", "-arch=sm_90", *options, "-o", tmp_path / "softmax.ptx", tmp_path / "softmax.cu"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "softmax_forward" in (tmp_path / "softmax.ptx").read_text()


class FakeCudnn:
    """cuDNN's part: it takes what the reference says in the order it says, and computes with torch."""

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
        assert (algorithm, mode, alpha._obj.value, beta._obj.value) == (1, 0, 1.0, 0.0)
        shape = self.descriptors[-1][2][:2]
        at(y, *shape).copy_(torch.softmax(at(x, *shape), -1))
        return 0

    def _backward(self, handle, algorithm, mode, alpha, y_rows, y, dy_rows, dy, beta, dx_rows, dx):
        assert (algorithm, mode, alpha._obj.value, beta._obj.value) == (1, 0, 1.0, 0.0)
        shape = self.descriptors[-1][2][:2]
        at(dx, *shape).copy_(torch.ops.aten._softmax_backward_data(at(dy, *shape), at(y, *shape), -1, torch.float32))
        return 0


class Function:
    """Like ctypes': its types may be set."""

    def __init__(self, call):
        self.call = call

    def __call__(self, *given):
        return self.call(*given)


@pytest.fixture
def fake_cudnn(monkeypatch):
    fake = FakeCudnn()
    monkeypatch.setattr(cudnn, "library", lambda: fake)
    monkeypatch.setattr(cudnn, "_refusal", lambda dtype, direction: None)
    monkeypatch.setattr(cudnn, "_streams", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda index: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(cuda_stream=5))
    yield fake
    cudnn._handle.cache_clear()
    cudnn._descriptor.cache_clear()


@pytest.mark.parametrize("direction", list(Direction))
def test_cudnn_gets_its_arguments_in_order_and_torchs_stream(fake_cudnn, direction):
    check(cudnn.backend, case(direction=direction))
    check(cudnn.backend, case(direction=direction))
    assert fake_cudnn.descriptors == [(0, 0, (4, 32, 1, 1))]  # kept
    assert fake_cudnn.streams == [5]


def test_cudnn_says_what_it_refuses(fake_cudnn):
    fake_cudnn.refuse = True
    with pytest.raises(cudnn.CudnnError, match="cudnnSoftmaxForward: CUDNN_STATUS_NOT_SUPPORTED"):
        cudnn.backend.prepare(case())(torch.zeros(4, 32))


def test_cudnn_states_its_limits(fake_cudnn):
    assert cudnn.backend.supports(case(2**20, M=2047)) is None
    assert "fewer than 2^31 elements" in cudnn.backend.supports(case(2**20, M=2048))
    assert cudnn.backend.supports(case(0)) == "it takes no rows without elements"


def test_without_cudnn_it_says_what_brings_it(monkeypatch):
    def missing():
        raise OSError("no libcudnn with a softmax is loaded")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cudnn, "library", missing)
    assert cudnn.backend.available().startswith("no libcudnn with a softmax is loaded; pip install nvidia-cudnn-cu13")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cudnn.backend.available() == "no CUDA GPU here"


def test_a_library_is_taken_only_when_it_has_a_softmax(monkeypatch):
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


@pytest.mark.parametrize("direction", list(Direction))
def test_flaggems_is_called_by_rows(monkeypatch, direction):
    install(
        monkeypatch,
        "flag_gems.ops.softmax",
        softmax=lambda x, dim: torch.softmax(x, dim),
        softmax_backward=lambda dy, y, dim, dtype: torch.ops.aten._softmax_backward_data(dy, y, dim, dtype),
    )
    check(flaggems, case(direction=direction))
