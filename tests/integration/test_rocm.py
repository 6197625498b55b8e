"""On a torch for ROCm, which is pretended, the harness starts, lists what it can, times with HIP events, and says what is missing."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

FAKE = Path(__file__).parents[1] / "support" / "fake_rocm"


@pytest.fixture
def softbench(tmp_path):
    def run(*words):
        path = os.pathsep.join([str(FAKE), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "SOFTBENCH_CACHE": str(tmp_path), "COLUMNS": "300", "HIP_VISIBLE_DEVICES": "3,5"}
        done = subprocess.run(
            [sys.executable, "-m", "softbench", *words], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def rocm(monkeypatch):
    """This process's torch and Triton, as on ROCm."""
    from triton.runtime import driver

    monkeypatch.syspath_prepend(FAKE)
    import pretended_rocm

    pretended_rocm.pretend(torch, monkeypatch.setattr)
    monkeypatch.setattr(driver, "_active", pretended_rocm.Driver(torch))
    return pretended_rocm


@pytest.mark.slow
def test_doctor_says_in_a_line_each_what_is_missing(softbench):
    lines = {line.partition("  ")[0].strip(): line for line in softbench("doctor").splitlines()}
    assert "ROCm 6.4.43482" in lines["torch"]
    assert all("AMD Instinct MI300X" in lines[f"cuda:{index}"] for index in range(2))
    assert all(" absent " in lines[name] for name in ("CUDA kernels", "CUPTI", "ncu", "NVML"))
    assert "HIP events" in lines["CUPTI"]
    assert "nvcc" not in lines


@pytest.mark.slow
def test_list_has_what_runs_there(softbench):
    """A backend that cannot run has a line with the reason."""
    told = softbench("list", "--long")
    names_and_texts = [part for part in re.split(r"^(\S+)$", told, flags=re.MULTILINE) if part.strip()]
    parts = dict(zip(names_and_texts[::2], names_and_texts[1::2], strict=True))
    unavailable = {name for name, text in parts.items() if "unavailable" in text}
    assert {"cuda", "cuda-op", "cudnn", "quack"} <= unavailable
    assert all("ROCm" in parts[name] for name in ("cuda", "cuda-op", "cudnn", "quack"))
    assert not unavailable & {"torch", "naive", "copy", "compile", "triton", "triton-op"}


@pytest.mark.parametrize("l2", ["cold", "warm"])
def test_calls_are_timed_by_hip_events(rocm, l2):
    from softbench.worker.timing.timers import bind

    before = rocm.Event.recorded
    found = bind("cuda").by_name["queued", l2](lambda: time.sleep(2e-4), 1, 20, 0)
    assert (found.calls, found.timer) == (1, "do_bench")  # no kernel holds a stream of HIP back
    assert rocm.Event.recorded - before >= 2 * len(found.us) >= 4
    assert min(found.us) >= 200


def test_a_profile_without_roctracer_says_so(rocm, monkeypatch):
    from softbench.worker.timing import device_timer
    from softbench.worker.timing.trace import UntracedError

    class Profiler:
        kineto_results = type("Results", (), {"events": staticmethod(list)})

        def __enter__(self):
            """Nothing to start."""

        def __exit__(self, *_):
            """Nothing to stop."""

    session = device_timer._Kineto(Profiler(), torch.cuda.synchronize)
    monkeypatch.setattr(device_timer, "wait_until_gone", lambda *_: None)
    session.start()
    with pytest.raises(UntracedError, match="roctracer"):
        session.stop()


def test_each_worker_sees_its_gpu_by_hips_number(rocm, monkeypatch):
    from softbench.processes.session import environment
    from softbench.worker.machine_probe import probe
    from softbench.worker.timing import persisting_l2, telemetry

    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "3, 5")
    machine = probe()
    assert [environment(gpu, machine) for gpu in machine.gpus] == [{"HIP_VISIBLE_DEVICES": "3"}, {"HIP_VISIBLE_DEVICES": "5"}]
    assert len({gpu.uuid for gpu in machine.gpus}) == 2
    assert machine.gpus[0].facts["gpu_compute_capability"].startswith("gfx942")
    assert machine.software["rocm"] == rocm.HIP
    monkeypatch.delenv("HIP_VISIBLE_DEVICES")
    assert [gpu.hip_device for gpu in probe().gpus] == ["0", "1"]
    assert environment(None, machine)["HIP_VISIBLE_DEVICES"] == "-1"
    assert persisting_l2.bind() is None
    assert telemetry.reader("cuda")() is None


def test_the_rule_of_the_library_takes_triton_there(rocm):
    from softbench.kernels.automatic import choice

    assert choice.without_cuda(torch.device("cuda"), "softmax") == "the CUDA kernels need an NVIDIA GPU"
    with pytest.raises(RuntimeError, match="nothing to build"):
        choice.build()
