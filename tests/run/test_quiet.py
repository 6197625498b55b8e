"""A device that other programs use: the wait before a run, and the verdict after it."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from softbench.core.errors import NotMeasurableError
from softbench.core.machine import Gpu
from softbench.core.outcome import Grade
from softbench.processes.activity import Activity
from softbench.results import rows as results
from softbench.run import quiet

GPU = Gpu("H200", "GPU-1", 2**37, 2**37, "default", {})


def waited(monkeypatch, loads, seconds):
    """The seconds that a wait took, and its notes, where each look finds the next of these utilizations."""
    looks, notes, now = iter(loads), [], [0.0]
    monkeypatch.setattr(quiet, "_gpu_load", lambda gpu: next(looks))

    def pause(passed):
        now[0] += passed

    quiet.wait(GPU, seconds, Activity(), notes.append, pause, lambda: now[0])
    return now[0], notes


@pytest.mark.parametrize(("loads", "seconds", "took"), [([], 0, 0), ([""] * 3, 60, 3), (["busy", "", "busy", "", "", ""], 60, 6)])
def test_a_run_waits_until_the_device_is_quiet(monkeypatch, loads, seconds, took):
    found, notes = waited(monkeypatch, loads, seconds)
    assert found == took
    assert notes == ["busy; waiting until that ends, at most 1 min 0 s; Ctrl-C gives up"] * ("busy" in loads)


def test_a_wait_ends_with_an_error_of_its_own_and_is_skipped_where_nothing_is_known(monkeypatch):
    with pytest.raises(NotMeasurableError, match=r"after 30 s H200 is busy; wait longer .*nvidia-smi") as found:
        waited(monkeypatch, ["H200 is busy"] * 30, 30)
    assert found.value.exit_code == 5
    assert waited(monkeypatch, [None], 30)[1] == ["--wait: this machine does not tell how busy the device is, so the run begins"]


@pytest.mark.parametrize(
    ("copy_us", "others", "labels", "why"),
    [
        (10, (10, 20), ("", "", ""), ""),
        (31, (20, 21), ("", "", ""), ""),
        (31, (10, 20), ("", "", ""), "copy was slower than what it judges in 2 of 2 cases"),
        (31, (10, 30), ("", "", ""), ""),  # one backend may leave out work
        (31, (10,), ("", ""), "copy was slower than what it judges in 2 of 2 cases"),
        (10, (10, 20), ("busy", "noisy throttled", "busy"), "all 6 cells were disturbed in every round"),
        (10, (10, 20), ("busy", "busy", ""), ""),
    ],
)
def test_a_run_says_that_nothing_was_measurable(make_record, copy_us, others, labels, why):
    def case(N):
        copy = make_record("copy", [copy_us] * 6, N=N, grade=Grade.YARDSTICK)
        records = [copy, *(make_record(f"b{us}", [us] * 6, N=N) for us in others)]
        rows = [results.row(record, copy, None, device="H200", run="r") for record in records]
        return [replace(row, labels=text) for row, text in zip(rows, labels, strict=True)]

    rows = case(256) + case(512)
    assert quiet.not_measurable(rows).startswith(f"not measurable now: {why}: another program" if why else "")
    assert bool(quiet.not_measurable(rows)) == bool(why)


def test_nvml_says_how_busy_a_gpu_is(monkeypatch):
    found = SimpleNamespace(nvmlInit=int, nvmlShutdown=int, nvmlDeviceGetHandleByUUID=str, used=0)
    found.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=found.used if handle == GPU.uuid else None)
    monkeypatch.setitem(sys.modules, "pynvml", found)
    assert quiet._gpu_load(GPU) == ""
    found.used = 94
    assert quiet._gpu_load(GPU) == "another program keeps H200 busy for 94 % of the time"
    assert quiet._gpu_load(replace(GPU, uuid="MIG-1")) is None
