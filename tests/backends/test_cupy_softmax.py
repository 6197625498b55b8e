"""The CuPy kernels with a simulated CuPy, and compiled by nvcc."""

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from compiling import assert_passes, case, install, rows_at

from softbench.backends import dsl
from softbench.ops.registry import operation


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
