"""Whether something else uses the device: before a run, which `--wait` puts off until it is quiet, and after it, from the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress

from softbench.core.errors import NotMeasurableError
from softbench.core.machine import Gpu
from softbench.core.outcome import Grade
from softbench.core.text import count, duration
from softbench.processes.activity import Activity
from softbench.results.columns import Row, grouped
from softbench.results.labels import DISTURBED, OVER_COPY
from softbench.run import cpu_load

LOOK_SECONDS = 1.0
"""Time between two looks. NVML's utilization is that of the last second, or of a sixth of it."""
LOOKS = 3
"""Quiet looks in a row. Between the kernels of a program a single look can find a GPU that does nothing."""
BUSY_PERCENT = 5
"""Utilization from which a GPU is in use. A desktop that redraws some windows stays below; a kernel that runs again and again does not."""


def wait(
    gpu: Gpu | None,
    seconds: float,
    activity: Activity,
    note: Callable[[str], object],
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until nothing else computes on the GPU, or (None) on the processors of this process, at most so many seconds.

    Raises:
        NotMeasurableError: something still does.
    """
    end, quiet, told = clock() + seconds, 0, False
    with activity.waiting("quiet", ["a quiet device"]) if seconds else nullcontext():
        while seconds and quiet < LOOKS:
            pause(LOOK_SECONDS)
            busy = _gpu_load(gpu) if gpu else cpu_load.busy(pause)
            if busy is None:
                note("--wait: this machine does not tell how busy the device is, so the run begins")
                return
            quiet = 0 if busy else quiet + 1
            if busy and clock() >= end:
                program = "the GPU (nvidia-smi shows it)" if gpu else "the processors (top shows it)"
                raise NotMeasurableError(
                    f"nothing was measured: after {duration(seconds)} {busy}; wait longer with --wait, or end what uses {program}"
                )
            if busy and not told:
                told = True
                note(f"{busy}; waiting until that ends, at most {duration(seconds)}; Ctrl-C gives up")


def _gpu_load(gpu: Gpu) -> str | None:
    """What uses the GPU, as text; empty if nothing does, None if NVML does not tell (a MIG slice, no driver library)."""
    with suppress(Exception):
        import pynvml as nvml

        nvml.nvmlInit()
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            percent = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        finally:
            nvml.nvmlShutdown()
        return f"another program keeps {gpu.name} busy for {percent} % of the time" if percent >= BUSY_PERCENT else ""
    return None


def not_measurable(rows: Sequence[Row]) -> str:
    """Why nothing could be measured at this time, and what to do; empty if something could.

    Either something slowed every cell in every round, or in most cases `copy` took more than 1.5 times as long as what it judges, although
    both move the same bytes. A single backend may leave out work, so of several the second fastest counts.
    """
    measured = [row for row in rows if row.median_us]
    found = ""
    if measured and all(not DISTURBED.isdisjoint(row.labels.split()) for row in measured):
        found = f"all {count(len(measured), 'cell')} were disturbed in every round"
    by_case = grouped(measured, lambda row: (row.run, row.unit, row.case)).values()
    slower = [_copy_is_slower(some) for some in by_case if {row.grade == Grade.YARDSTICK for row in some} == {True, False}]
    if sum(slower) > len(slower) / 2:
        found = f"copy was slower than what it judges in {sum(slower)} of {count(len(slower), 'case')}"
    advice = "another program uses the device; measure again when it has ended, or with --wait 10m"
    return f"not measurable now: {found}: {advice}" if found else ""


def _copy_is_slower(rows: Sequence[Row]) -> bool:
    """True if `copy` took more than 1.5 times as long as the second fastest backend of a case, or as the only one."""
    times = sorted(row.median_us or 0 for row in rows if row.grade != Grade.YARDSTICK)
    copies = [row.median_us or 0 for row in rows if row.grade == Grade.YARDSTICK]
    return min(copies) > OVER_COPY * times[min(1, len(times) - 1)]
