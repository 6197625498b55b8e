"""Reading machine code, PTX and resources of a built library."""

import shutil

import pytest
from nvcc import needs_nvcc
from softbench.kernels.cuda import build, disassemble

SOURCE = """
template <typename T> __global__ void doubled(T* x) { x[threadIdx.x] *= 2; }
template __global__ void doubled<float>(float*);
template __global__ void doubled<double>(double*);
"""
FLOAT, DOUBLE = "_Z7doubledIfEvPT_", "_Z7doubledIdEvPT_"

pytestmark = needs_nvcc


@pytest.fixture
def library(monkeypatch, tmp_path):
    if disassemble.cuobjdump() is None:
        pytest.skip("no cuobjdump on this machine")
    (tmp_path / "softmax.cu").write_text(SOURCE)
    monkeypatch.setattr(build, "SOURCE", tmp_path / "softmax.cu")
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path / "cache"))
    return build.build("sm_90a")


@pytest.mark.slow
def test_resources_are_listed_by_mangled_kernel_name(library):
    found = disassemble.resources(library)
    assert set(found) == {FLOAT, DOUBLE}
    assert 0 < found[FLOAT]["REG"] < 256
    assert found[FLOAT]["LOCAL"] == 0


def test_sass_and_ptx_hold_only_the_named_kernels(library):
    for text in (disassemble.sass(library, [FLOAT]), disassemble.ptx("sm_90a", [FLOAT])):
        assert FLOAT in text
        assert DOUBLE not in text
    assert disassemble.ptx("sm_90a", []) == ""


def test_a_missing_cuobjdump_error_says_what_to_install(library, monkeypatch):
    monkeypatch.setattr(disassemble, "cuobjdump", lambda: None)
    with pytest.raises(build.BuildError, match=r"no cuobjdump on PATH.*install the CUDA toolkit"):
        disassemble.resources(library)


def test_a_disassembler_is_found_beside_triton(monkeypatch):
    if disassemble.cuobjdump() is None:
        pytest.skip("Triton has no cuobjdump on this machine")
    monkeypatch.setenv("PATH", "/nonexistent")
    found = disassemble.cuobjdump()
    assert found is None or shutil.which(found)
