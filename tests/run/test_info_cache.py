"""The cache of infos: it gives back what was kept, and nothing once the environment has changed."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from softbench.core.errors import UsageError
from softbench.core.machine import Gpu, Machine
from softbench.plugins.info import BackendInfo
from softbench.plugins.source import PluginSource
from softbench.run import info_cache, run
from softbench.run.request import RunRequest

MACHINE = Machine("2.13", "no GPU", (Gpu("H200", "uuid", 2, 1, "default", {"gpu": "H200"}),), "a CPU", 9, {"python": "3.11"})
TORCH, COMPILE = (PluginSource("entry point", name, f"softbench.backends.{name}:backend", "softbench") for name in ("torch", "compile"))
OTHER = PluginSource("entry point", "other", "other:backend", "other 1.0")
INFOS = [
    BackendInfo("torch", TORCH, summary="eager"),
    BackendInfo("compile", COMPILE, unavailable="no gcc"),
    BackendInfo("compile:x", COMPILE),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path))
    return tmp_path / "infos"


def keep(infos=INFOS, sources=(TORCH, COMPILE)):
    info_cache.write("auto", MACHINE, sources, infos)


def test_kept_infos_come_back_for_the_same_device():
    assert info_cache.read("auto", [TORCH, COMPILE]) is None
    keep()
    assert info_cache.read("auto", [TORCH, COMPILE]) == info_cache.Known(MACHINE, tuple(INFOS))
    assert info_cache.read("cuda:1", [TORCH, COMPILE]) is None


def test_plugins_are_neither_kept_nor_looked_up():
    keep([*INFOS, BackendInfo("other", OTHER)], (TORCH, COMPILE, OTHER))
    assert info_cache.read("auto", [TORCH, COMPILE, OTHER]).infos == tuple(INFOS)


def test_a_gpu_that_cannot_be_used_is_asked_again(monkeypatch, folder):
    monkeypatch.setattr(info_cache.Path, "glob", lambda self, pattern: iter([self / "nvidia0"]))
    info_cache.write("auto", replace(MACHINE, gpus=()), (TORCH, COMPILE), INFOS)
    assert not folder.exists()


def test_incomplete_and_broken_infos_are_not_kept(folder):
    keep(INFOS[:1])
    keep([replace(INFOS[0], broken="import: error"), *INFOS[1:]])
    assert not folder.exists()


def test_a_changed_environment_is_asked_again(monkeypatch, tmp_path):
    keep()
    (tmp_path / "nvcc").write_text("")
    (tmp_path / "nvcc").chmod(0o755)
    for name, value in (("PATH", f"{tmp_path}:{os.environ['PATH']}"), ("CUDA_VISIBLE_DEVICES", "3"), ("TRITON_INTERPRET", "7")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert info_cache.read("auto", [TORCH, COMPILE]) is None
    with monkeypatch.context() as changed:
        changed.syspath_prepend(str(tmp_path))
        assert info_cache.read("auto", [TORCH, COMPILE]) is None
    assert info_cache.read("auto", [TORCH, COMPILE]) is not None
    assert info_cache.read("auto", [TORCH, COMPILE, replace(OTHER, label="new", target="softbench.new:backend")]) is None


def test_old_and_damaged_entries_are_ignored_and_old_ones_removed(folder):
    keep()
    (entry,) = folder.iterdir()
    text = entry.read_text()
    for damaged in ("", "[]", "{", text.replace('"torch"', "3"), "[" * 100000):
        entry.write_text(damaged)
        assert info_cache.read("auto", [TORCH, COMPILE]) is None
    entry.write_text(text)
    past = time.time() - info_cache.SECONDS - 9
    os.utime(entry, (past, past))
    assert info_cache.read("auto", [TORCH, COMPILE]) is None
    old = folder / "old.json"
    entry.rename(old)
    keep()
    assert not old.exists()


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch):
    monkeypatch.setenv("SOFTBENCH_CACHE", "/proc/nowhere")
    keep()
    assert info_cache.read("auto", [TORCH, COMPILE]) is None


@pytest.fixture
def known(monkeypatch):
    """An entry with these backends, and no way to ask a worker."""

    def no_session(*_, **__):
        raise AssertionError("a session was opened")

    monkeypatch.setattr(run, "Session", no_session)
    monkeypatch.setattr(run, "origins", lambda plugins: (TORCH, COMPILE))
    keep()
    return monkeypatch


def request(flags):
    return RunRequest({}, flags, False, Path("results"), False, "softbench run", "0")


def test_an_unknown_backend_is_named_without_a_worker(known):
    with pytest.raises(UsageError, match=r"unknown backend 'tirch'; did you mean 'torch'\?"):
        run.open_session(request({"backends": ("tirch", "torch")}).settings())
    with pytest.raises(AssertionError, match="a session was opened"):
        run.open_session(request({"backends": ("torch", "compile*", "all")}).settings())


def test_infos_need_no_worker_unless_plugins_are_loaded(known):
    settings = request({}).settings()
    assert run.infos(settings, load=False) == run.infos(settings, load=True) == INFOS
    known.setattr(run, "origins", lambda plugins: (TORCH, COMPILE, OTHER))
    with pytest.raises(AssertionError, match="a session was opened"):
        run.infos(settings, load=True)


def test_a_dry_run_needs_no_worker_on_the_cpu(known):
    asked = request({"N": (64,), "M": (8,), "backends": ("torch",)})
    with pytest.raises(AssertionError, match="a session was opened"):
        run.dry_run(asked)  # the GPU's free memory must be asked for
    info_cache.write("auto", replace(MACHINE, gpus=()), (TORCH, COMPILE), INFOS)
    plan = run.dry_run(asked)
    assert [(case.M, case.N, case.device) for case in plan.cases] == [(8, 64, "cpu")]
    assert [info.name for info in plan.infos] == ["torch"]
    assert plan.device_name == "a CPU"
