"""`softbench.build`: compiling, caching, errors, and the arguments of calls."""

import os
import time
from pathlib import Path

import pytest
import torch
from simulated import needs_nvcc
from softbench.kernels.common.cuda_library import BuildError, _argument

import softbench

KERNEL = """
#include "scale.cuh"
__global__ void twice(float* x) { x[threadIdx.x] *= SCALE; }
extern "C" void launch(float* x, cudaStream_t stream) { twice<<<1, 32, 0, stream>>>(x); }
"""


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path / "cache"))


@needs_nvcc
def test_a_change_of_a_header_builds_anew_and_an_error_names_the_line(own_cache, tmp_path, capfd):
    source, header = tmp_path / "twice.cu", tmp_path / "scale.cuh"
    source.write_text(KERNEL)
    header.write_text("#define SCALE 2\n")
    first = softbench.build(source).compile("sm_90a")
    assert "building twice.cu for sm_90a" in capfd.readouterr().err
    assert softbench.build(source).compile("sm_90a") == first
    assert capfd.readouterr().err == ""
    header.write_text("#define SCALE nothing\n")
    with pytest.raises(BuildError, match=r"nvcc failed: .*twice.cu\(3\): error: identifier .nothing. is undefined \(log: .*build.log\)"):
        softbench.build(source).compile("sm_90a")


def test_a_compiler_that_hangs_is_ended_with_its_children(own_cache, tmp_path, monkeypatch):
    (tmp_path / "nvcc").write_text(f"#!/bin/sh\n[ $1 = --version ] && exit\nsleep 77 & echo $! >{tmp_path}/child; wait\n")
    (tmp_path / "nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(BuildError, match=r"nvcc failed: error: took more than 1 s"):
        softbench.build("// a text\n", seconds=1).compile("sm_90a")
    child = Path("/proc") / (tmp_path / "child").read_text().strip()
    end = time.monotonic() + 5
    while child.exists() and "Z" not in (child / "stat").read_text().rpartition(")")[2].split()[:1]:
        assert time.monotonic() < end, "the compiler's child still runs"
        time.sleep(0.01)


def test_a_path_that_is_no_file_is_refused_at_once():
    with pytest.raises(FileNotFoundError, match=r"softbench.build: no file .*kernels/common/absent.cu; a source is"):
        softbench.build("absent.cu")


def test_arguments_become_pointers_and_numbers():
    x = torch.ones(2)
    assert [_argument(value).value for value in (x, 2**40, True, 0.5, None)] == [x.data_ptr(), 2**40, True, 0.5, None]
    with pytest.raises(TypeError, match="no argument of a CUDA function: list"):
        _argument([1])


def test_without_a_gpu_a_file_that_builds_is_unavailable(cli):
    (cli.folder / "mine.py").write_text(
        'import softbench\nlibrary = softbench.build("""\n// CUDA\n""")\ndef softmax(x):\n    library.launch(x)\n'
    )
    listed = cli("list", "mine", "--plugin", "mine.py", "--load", "--device", "cpu")
    assert "mine" in listed.stdout and ("no CUDA GPU here" in listed.stdout or torch.cuda.is_available())
