"""The helpers in conftest."""

import importlib.util
from pathlib import Path

spec = importlib.util.spec_from_file_location("softbench_conftest", Path(__file__).with_name("conftest.py"))
conftest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conftest)


def test_each_process_of_xdist_sees_one_gpu():
    assert [conftest.gpu_of(f"gw{i}", ["2", "GPU-3"]) for i in range(4)] == ["2", "GPU-3", "2", "GPU-3"]


def test_gpus_are_counted_without_cuda(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert conftest.gpus() == []
    listing = "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)"
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{listing}\\n'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert conftest.gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-3")
    assert conftest.gpus() == ["1", "GPU-3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert conftest.gpus() == []


def test_slow_files_exist_and_come_first():
    slow = [conftest.TESTS / name for name in conftest.SLOW_FILES]
    assert [file for file in slow if not file.is_file()] == []
    others = [conftest.TESTS / "b.py", conftest.TESTS / "a.py"]
    assert conftest.by_cost([*others, *reversed(slow)]) == [*slow, *others]
