"""Where the programs of a CUDA toolkit are found, and where built libraries are cached."""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from softbench.kernels.common import cuda_toolkit


@pytest.fixture
def program(tmp_path):
    """Makes an empty program under tmp_path."""

    def make(*parts):
        path = tmp_path.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def no_toolkit(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("CUDA_PATH", raising=False)


@pytest.mark.usefixtures("no_toolkit")
def test_nvcc_is_found_in_pip_packages_without_a_toolkit(tmp_path, monkeypatch, program):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    older, newer = program("nvidia", "cu12", "bin", "nvcc"), program("nvidia", "cu13", "bin", "nvcc")
    assert cuda_toolkit.nvcc() is not None
    if list(find_spec("nvidia").submodule_search_locations) == [str(tmp_path / "nvidia")]:  # otherwise NVIDIA's packages are installed too
        assert cuda_toolkit.nvcc() == str(newer)
        newer.unlink()
        assert cuda_toolkit.nvcc() == str(older)
        assert cuda_toolkit.cuda_home() in (None, Path("/usr/local/cuda"))


@pytest.mark.usefixtures("no_toolkit")
def test_path_comes_before_cuda_home_before_cuda_path(monkeypatch, program):
    cuda_path = program("a toolkit", "bin", "nvcc")
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setenv("CUDA_PATH", str(cuda_path.parents[1]))
    assert cuda_toolkit.nvcc() == str(cuda_path)
    cuda_home = program("another", "bin", "nvcc")
    monkeypatch.setenv("CUDA_HOME", str(cuda_home.parents[1]))
    assert cuda_toolkit.nvcc() == str(cuda_home)
    on_path = program("on path", "nvcc")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert cuda_toolkit.nvcc() == str(on_path)


@pytest.mark.usefixtures("no_toolkit")
def test_cuda_home_is_recognized_by_its_headers(tmp_path, monkeypatch, program):
    program("kit", "bin", "nvcc")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "kit"))
    assert cuda_toolkit.cuda_home() in (None, Path("/usr/local/cuda"))
    program("kit", "include", "cuda_runtime.h")
    assert cuda_toolkit.cuda_home() == tmp_path / "kit"


@pytest.mark.usefixtures("no_toolkit")
def test_cuobjdump_is_found_beside_nvcc(monkeypatch, program):
    compiler = program("kit", "anywhere", "nvcc")
    monkeypatch.setenv("PATH", str(compiler.parent))
    disassembler = program("kit", "anywhere", "cuobjdump")
    monkeypatch.setattr(cuda_toolkit, "nvcc", lambda: str(compiler))
    monkeypatch.setenv("PATH", "/nowhere")
    assert cuda_toolkit.cuobjdump() == str(disassembler)


def test_the_cache_is_softbench_cache_or_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("SOFTBENCH_CACHE", raising=False)
    assert cuda_toolkit.cache_folder() == tmp_path / ".cache" / "softbench"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cuda_toolkit.cache_folder() == tmp_path / "xdg" / "softbench"
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path / "chosen"))
    assert cuda_toolkit.cache_folder() == tmp_path / "chosen"


def test_a_user_without_a_home_gets_a_temporary_cache(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("SOFTBENCH_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert cuda_toolkit.cache_folder().parent == Path(tempfile.gettempdir())
