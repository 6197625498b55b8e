"""A killed compiler leaves nothing that later runs take for a library. Builds with fresh caches are cold."""

import os
from pathlib import Path

import msgspec
import pytest

from softbench.core.toolchain import FRESH_CACHES
from softbench.worker import compiler_cache
from softbench.worker.compile_stats import CompilerCounts

LIBRARY = Path(msgspec._core.__file__)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler_cache, "SETTLED_SECONDS", 0.01)
    (tmp_path / "ab").mkdir()
    return tmp_path / "ab"


def test_torn_libraries_are_removed_and_whole_ones_stay(folder):
    whole = LIBRARY.read_bytes()
    torn = {"empty": b"", "short": whole[:40], "half": whole[: len(whole) // 2], "zeros": bytes(len(whole)), "last": whole[:-1]}
    for name, content in {"whole": whole, **torn}.items():
        (folder / f"{name}.so").write_bytes(content)
    compiler_cache.remove_libraries()
    assert [path.name for path in folder.iterdir()] == ["whole.so"]


def test_a_lock_that_nobody_can_hold_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "link"))
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("left", "held", "of_a_container"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
        os.utime(tmp_path / name / "lock", (0, 0))
    with (tmp_path / "held" / "lock").open():
        os.utime(tmp_path / "of_a_container" / "lock")
        monkeypatch.setattr(compiler_cache, "LOCAL", "/proc")  # the folder is on another file system than that
        compiler_cache.remove_locks()
        assert sorted(path.parent.name for path in tmp_path.glob("*/lock")) == ["held", "of_a_container"]
        monkeypatch.setattr(compiler_cache, "LOCAL", tmp_path)
        compiler_cache.remove_locks()
        assert [path.parent.name for path in tmp_path.glob("*/lock")] == ["held"]


def test_a_torn_precompiled_header_is_removed_and_its_compilation_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler_cache.tempfile, "gettempdir", lambda: str(tmp_path))
    header = compiler_cache._folder() / "precompiled_headers" / "x.h.gch"
    header.parent.mkdir(parents=True)
    header.write_bytes(b"gpch")
    assert not compiler_cache.removed_headers(RuntimeError("mine.cpp:3:5: error: expected ';'"))
    assert header.exists()
    assert compiler_cache.removed_headers(RuntimeError(f"fatal error: cannot read {header}: No such file or directory"))
    assert not header.exists()


def test_a_build_that_leaves_a_file_in_fresh_caches_is_cold(tmp_path, monkeypatch):
    monkeypatch.setenv(FRESH_CACHES, str(tmp_path))
    before = CompilerCounts()
    assert before.state() == "cached"
    (tmp_path / "CUDA_TILE_CACHE_DIR").mkdir()
    (tmp_path / "CUDA_TILE_CACHE_DIR" / "row.cubin").touch()
    assert before.state() == "cold"
    assert CompilerCounts().state() == "cached"
