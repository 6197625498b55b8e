"""What the GPU says of itself, with an NVML that only pretends."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from softbench.core.outcome import Batch, Telemetry
from softbench.results import labels, rows
from softbench.worker.timing import telemetry

MAX_MHZ = 1980
HOT = Telemetry(1400, 3201, 690.0, 88, 0x40, "hardware thermal slowdown")
COOL = Telemetry(1980, 3201, 500.0, 60, 0, "")


class Nvml:
    """A card: what it answers is set; the rest it does not support. Anything that would set something is an error."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 0, 2, 0

    def __init__(self, sm=1980, reasons=0, power=512_345, older=False, silent=()):
        self.answers = {
            "nvmlDeviceGetClockInfo": lambda handle, kind: sm if kind == self.NVML_CLOCK_SM else 3201,
            "nvmlDeviceGetMaxClockInfo": lambda handle, kind: MAX_MHZ,
            "nvmlDeviceGetPowerUsage": lambda handle: power,
            "nvmlDeviceGetTemperature": lambda handle, kind: 61,
            f"nvmlDeviceGetCurrentClocks{'Throttle' if older else 'Event'}Reasons": lambda handle: reasons,
        }
        for name in silent:
            self.answers[name] = lambda *_: (_ for _ in ()).throw(RuntimeError("NotSupported"))

    def __getattr__(self, name):
        assert "Set" not in name
        if name not in self.answers:
            raise AttributeError(name)
        return self.answers[name]


@pytest.mark.parametrize("older", [False, True])
def test_a_reading_has_clocks_power_temperature_and_reasons(older):
    assert telemetry.read(Nvml(older=older), 0, MAX_MHZ) == Telemetry(1980, 3201, 512.345, 61, 0, "")
    assert telemetry.read(Nvml(reasons=0x60, older=older), 0, MAX_MHZ).throttled == "software thermal slowdown, hardware thermal slowdown"


def test_reading_that_a_card_lacks_is_none_and_not_throttled():
    silent = ("nvmlDeviceGetClockInfo", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetCurrentClocksEventReasons")
    assert telemetry.read(Nvml(silent=silent), 0, MAX_MHZ) == Telemetry(None, None, None, 61, None, "")


def test_answers_that_are_no_numbers_are_none_and_raise_nothing():
    odd = Nvml(sm="fast", power=None)
    odd.answers["nvmlDeviceGetTemperature"] = lambda handle, kind: object()
    assert telemetry.read(odd, 0, MAX_MHZ) == Telemetry(None, 3201, None, None, 0, "")


def test_batches_of_a_moment_share_a_reading():
    seconds, readings = iter([0.0, 0.01, 0.03, 0.04]), iter([COOL, HOT])
    read = telemetry.lately(lambda: next(readings), lambda: next(seconds))
    assert [read(), read(), read()] == [COOL, COOL, HOT]


@pytest.mark.parametrize(
    ("reasons", "sm_mhz", "expected"),
    [
        (0, 1980, ""),
        (0, 1500, ""),
        (0, 1400, "SM clock 1400 of 1980 MHz"),
        (0x04, 1900, ""),  # a power cap that holds the clock just below the maximum
        (0x04, 1200, "SM clock 1200 of 1980 MHz"),
        (0x02, 1200, ""),  # a user set the clock
        (0x01, 345, ""),  # idle
        (0x42, 1980, "hardware thermal slowdown"),
        (0x88, 1980, "hardware slowdown, power brake"),
        (0, None, ""),
    ],
)
def test_throttled_is_a_slowdown_or_a_low_clock_under_load(reasons, sm_mhz, expected):
    assert telemetry.throttled(reasons, sm_mhz, MAX_MHZ) == expected


def test_without_a_gpu_or_nvml_there_is_no_reading(monkeypatch):
    assert telemetry.reader("cpu")() is None
    module = ModuleType("pynvml")
    module.nvmlInit = lambda: (_ for _ in ()).throw(RuntimeError("no driver"))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert telemetry.reader("cuda")() is None


def test_a_worker_reads_its_own_gpu(monkeypatch):
    asked = []
    nvml = Nvml()
    nvml.answers |= {"nvmlInit": lambda: None, "nvmlDeviceGetHandleByUUID": asked.append}
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: SimpleNamespace(uuid=f"of-{index}"))
    assert telemetry.reader("cuda")().sm_clock_mhz == 1980
    assert asked == ["GPU-of-0"]


def batch(turn, us, reading):
    return Batch(0, turn, 0, (us * 0.99, us, us * 1.01), reading)


def with_batches(record, *batches):
    return replace(record, outcome=replace(record.outcome, timing=replace(record.outcome.timing, batches=batches)))


def test_throttled_samples_count_only_where_there_are_no_others(make_record):
    record = with_batches(make_record("ours", [1]), batch(0, 40, HOT), batch(0, 20, COOL), batch(1, 22, COOL))
    row = rows.row(record, None, None, device="H200", run="r")
    assert (row.median_us, row.rounds, row.n, row.throttled_batches, row.labels) == (21, 2, 6, 1, "")
    assert (row.sm_clock_mhz, row.memory_clock_mhz, row.power_w, row.temperature_c) == (1980, 3201, 500, 60)
    always = with_batches(record, batch(0, 40, HOT), batch(1, 42, HOT))
    row = rows.row(always, None, None, device="H200", run="r")
    assert (row.median_us, row.throttled_batches, row.labels) == (41, 2, "throttled")
    assert labels.throttled(always.outcome.timing.batches)


def waited(tasks, **threads_ms):
    for thread, ms in threads_ms.items():
        (tasks / thread).mkdir(parents=True, exist_ok=True)
        (tasks / thread / "schedstat").write_text(f"123456 {ms * 1_000_000} 9\n")


def test_a_thread_that_waits_for_a_processor_marks_the_batch(tmp_path):
    clock = iter([10.0, 10.2])
    waited(tmp_path, main=500, pool=500)
    waiting = telemetry.Waiting(tmp_path, lambda: next(clock))
    waited(tmp_path, main=501, pool=600, new=3)
    assert waiting.telemetry() == Telemetry(throttled="a thread waited for a processor 50% of the time")


def test_short_waits_and_unknown_ones_mark_nothing(tmp_path):
    for tasks, expected in ((tmp_path, Telemetry()), (tmp_path / "missing", None)):
        clock = iter([10.0, 10.2])
        waited(tmp_path, main=500, ended=0)
        waiting = telemetry.Waiting(tasks, lambda clock=clock: next(clock))
        waited(tmp_path, main=510)
        (tmp_path / "ended" / "schedstat").unlink()
        assert waiting.telemetry() == expected


def test_the_kernel_counts_waits_of_real_threads():
    """More busy processes than processors: this one must wait."""
    code = "while True: pass"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        waiting, end = telemetry.Waiting(), time.monotonic() + 20
        while not waiting.telemetry().throttled:
            assert time.monotonic() < end
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_a_busy_cpu_is_a_label_of_cpu_cells(make_record):
    cell = make_record("ours", [1])
    cell = replace(cell, case=replace(cell.case, device="cpu"))
    label = rows.row(with_batches(cell, batch(0, 40, HOT)), None, None, device="a CPU", run="r").labels
    assert label == "busy"
