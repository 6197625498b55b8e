"""The backends in other GPU languages: availability, limits, and their kernels where the package is installed."""

import importlib.util
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from compiling import assert_passes, case, install, python, rows_at

from softbench.backends import cudnn, dsl
from softbench.backends.calls import EMPTY
from softbench.backends.flaggems import backend as flaggems
from softbench.backends.liger import backend as liger
from softbench.backends.quack import backend as quack
from softbench.ops.registry import operation
from softbench.plugins.load import load
from softbench.plugins.source import origins

LANGUAGES = [dsl.helion, dsl.cupy, dsl.numba]
languages = pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)


def test_entry_points_load_the_backends():
    sources = {source.label: source for source in origins([])}
    for backend in (*LANGUAGES, cudnn.backend, flaggems, quack, liger):
        assert load(sources[backend.name]) == (backend,)


@pytest.mark.parametrize("backend", [*LANGUAGES, flaggems, quack, liger], ids=lambda backend: backend.name)
@pytest.mark.parametrize("card", [True, False])
def test_a_missing_package_is_named_with_the_fix(backend, card, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: card)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = backend.available()
    assert reason == f"{backend.package} is not installed; where there is a CUDA GPU: {backend.install}"
    assert "pip install" in reason


@languages
def test_empty_tensors_are_refused(language):
    for empty in (case(0), case(8, M=0)):
        assert language.supports(empty) == EMPTY
    assert language.supports(case()) is None


def test_numba_refuses_other_dtypes_than_fp32():
    assert "written for fp32" in dsl.numba.supports(case(dtype="bf16"))


def test_numba_cuda_for_an_older_numpy_is_unavailable(monkeypatch):
    def load(name):
        assert name == "numba.cuda.cudaimpl"
        raise trouble

    trouble = AttributeError("module 'numpy' has no attribute 'row_stack'")
    monkeypatch.setattr(dsl.ThirdParty, "available", lambda self: None)
    monkeypatch.setattr(dsl.importlib, "import_module", load)
    assert dsl.numba.available() == (
        "numba-cuda does not load (AttributeError: module 'numpy' has no attribute 'row_stack'): "
        "install a version that fits the other packages: pip install 'numba-cuda[cu13]' (for CUDA 12: 'numba-cuda[cu12]')"
    )
    trouble = ModuleNotFoundError("No module named 'llvmlite'", name="llvmlite")
    assert "does not load (ModuleNotFoundError: No module named 'llvmlite')" in dsl.numba.available()
    trouble = ModuleNotFoundError("No module named 'numba.cuda.cudaimpl'", name="numba.cuda.cudaimpl")
    assert dsl.numba.available() is None


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
def test_kernels_pass_in_the_interpreter_and_compile_as_configured():
    python(HELION, HELION_INTERPRET="1")
    python(HELION_CODE)


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
            x, *rest = (rows_at(pointer, grid[0], 32) for pointer in pointers)
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


@pytest.mark.parametrize("direction", operation("softmax").directions)
def test_each_row_gets_a_block_on_torchs_stream(fake_cupy, direction):
    assert_passes(dsl.cupy, case(direction=direction))
    assert fake_cupy[0] == ("-std=c++17", "-DKIND=0", "-DCOLUMNS=32", "-DTHREADS=512")
    assert fake_cupy[1] == 7
    assert fake_cupy[2][1:] == ((8,), (512,))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_source_compiles_for_every_dtype(fake_cupy, tmp_path):
    from softbench.backends import cupy_softmax

    (tmp_path / "softmax.cu").write_text(cupy_softmax.SOURCE)
    for dtype in cupy_softmax.KINDS:
        options = cupy_softmax.options(1000, dtype)
        command = ["nvcc", "--ptx", "-arch=sm_90", *options, "-o", tmp_path / "softmax.ptx", tmp_path / "softmax.cu"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "softmax_forward" in (tmp_path / "softmax.ptx").read_text()


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


def test_kernels_pass_in_the_simulator():
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed: pip install 'numba-cuda[cu13]'")
    python(NUMBA, NUMBA_ENABLE_CUDASIM="1")
