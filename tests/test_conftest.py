"""What the tests themselves rely on."""

import conftest


def test_each_process_of_xdist_sees_one_gpu():
    assert [conftest.gpu_of(f"gw{i}", 2) for i in range(4)] == ["0", "1", "0", "1"]


def test_gpus_are_counted_without_cuda(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert conftest.gpus() == 0
    listing = "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)"
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{listing}\\n'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert conftest.gpus() == 2
