"""The build of the CUDA kernels: commands, cache, errors; and what the built library is read for."""

import ctypes
import shutil

import pytest
import torch
from simulated import needs_nvcc
from softbench.kernels.cuda import build, disassemble


@pytest.mark.slow
@needs_nvcc
def test_a_library_links_all_parts(tmp_path, monkeypatch):
    source = tmp_path / "softmax.cu"
    source.write_text(
        "#if SOFTBENCH_PART == 0\n"
        'int other(); extern "C" int softbench_both() { return other() + 1; }\n'
        "#elif SOFTBENCH_PART == 1\n__global__ void nothing() {}\nint other() { return 41; }\n#endif\n"
    )
    monkeypatch.setattr(build, "SOURCE", source)
    monkeypatch.setattr(build, "FEW_CORES", 0)
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path / "cache"))
    assert build.parts() == 2
    assert ctypes.CDLL(str(build.build("sm_90a"))).softbench_both() == 42
    source.write_text(source.read_text().replace("return 41", "return nothing_such"))
    with pytest.raises(build.BuildError, match=r"nvcc failed: .*nothing_such"):
        build.build("sm_90a")


@pytest.mark.parametrize("function", build.LOSSES)
def test_signatures_of_the_library_are_those_of_the_source(function):
    kinds = {"int64_t": ctypes.c_int64, "int": ctypes.c_int, "float": ctypes.c_float}
    text = build.source(function).read_text()
    for name, types in build._arguments(function).items():
        parameters = text.split(f"softbench_{name}(", 1)[1].split(")", 1)[0].split(",")
        declared = [ctypes.c_void_p if "*" in word or "cudaStream_t" in word else kinds[word.split()[0]] for word in parameters]
        assert declared == types, name


@needs_nvcc
def test_a_library_is_rebuilt_only_when_its_source_changes(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "softmax.cu"  # small, to compile quickly
    source.write_text('__global__ void nothing() {}\nextern "C" void softbench_nothing() { nothing<<<1, 1>>>(); }\n')
    monkeypatch.setattr(build, "SOURCE", source)
    library = build.build("sm_90a")
    assert "building softmax.cu (softmax) for sm_90a" in capfd.readouterr().err
    assert ctypes.CDLL(str(library)).softbench_nothing
    stamp = library.stat().st_mtime_ns
    assert build.build("sm_90a") == library
    assert library.stat().st_mtime_ns == stamp
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("SOFTBENCH_READ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path / "other"))
    assert build.built("sm_90a") == build.build("sm_90a") == library
    assert not (tmp_path / "other").exists()
    source.write_text("int main( {")
    with pytest.raises(build.BuildError, match=r"nvcc failed: .*error.*\(log: "):
        build.build("sm_90a")


def test_the_cache_key_covers_sources_function_torch_and_architecture(monkeypatch, tmp_path):
    for path in build.sources():
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(build, "SOURCE", tmp_path / "softmax.cu")
    assert len(build.sources()) > 5
    keys = [build._key("/bin/true", "sm_90a", function) for function in build.FUNCTIONS]
    with (tmp_path / "row_access.cuh").open("a") as header:
        header.write("// a change\n")
    keys.append(build._key("/bin/true", "sm_90a", "softmax"))
    monkeypatch.setattr(torch, "__version__", "0.0")
    keys += [build._key("/bin/true", "sm_90a", "softmax"), build._key("/bin/true", "sm_80", "softmax")]
    assert len(set(keys)) == 6


def test_a_missing_nvcc_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        build.BuildError, match="no nvcc on PATH, under CUDA_HOME or in pip's packages; install the CUDA toolkit or: pip install"
    ):
        build.build("sm_90a")


def test_hopper_and_later_get_architecture_specific_code():
    assert [build.architecture_of(c) for c in ((8, 0), (8, 9), (9, 0), (10, 0))] == ["sm_80", "sm_89", "sm_90a", "sm_100a"]


SOURCE = """
template <typename T> __global__ void doubled(T* x) { x[threadIdx.x] *= 2; }
template __global__ void doubled<float>(float*);
template __global__ void doubled<double>(double*);
"""
FLOAT, DOUBLE = "_Z7doubledIfEvPT_", "_Z7doubledIdEvPT_"


@pytest.fixture
def library(monkeypatch, tmp_path):
    if disassemble.cuobjdump() is None:
        pytest.skip("no cuobjdump on this machine")
    (tmp_path / "softmax.cu").write_text(SOURCE)
    monkeypatch.setattr(build, "SOURCE", tmp_path / "softmax.cu")
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path / "cache"))
    return build.build("sm_90a")


@needs_nvcc
@pytest.mark.slow
def test_resources_are_listed_by_mangled_kernel_name(library):
    found = disassemble.resources(library)
    assert set(found) == {FLOAT, DOUBLE}
    assert 0 < found[FLOAT]["REG"] < 256
    assert found[FLOAT]["LOCAL"] == 0


@needs_nvcc
def test_sass_and_ptx_hold_only_the_named_kernels(library):
    for text in (disassemble.sass(library, [FLOAT]), disassemble.ptx("sm_90a", [FLOAT])):
        assert FLOAT in text
        assert DOUBLE not in text
    assert disassemble.ptx("sm_90a", []) == ""


def test_a_missing_cuobjdump_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(disassemble, "cuobjdump", lambda: None)
    with pytest.raises(build.BuildError, match=r"no cuobjdump on PATH.*install the CUDA toolkit"):
        disassemble.resources(tmp_path / "library.so")


@needs_nvcc
def test_a_disassembler_is_found_beside_triton(monkeypatch):
    if disassemble.cuobjdump() is None:
        pytest.skip("Triton has no cuobjdump on this machine")
    monkeypatch.setenv("PATH", "/nonexistent")
    found = disassemble.cuobjdump()
    assert found is None or shutil.which(found)
