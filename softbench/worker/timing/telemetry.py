"""Reads the GPU's telemetry after each batch: clocks, power, temperature and throttling. It changes no setting.

On the CPU it reads how long the worker's threads waited for a processor, from Linux' scheduler (/proc/PID/task/TID/schedstat).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from softbench.core.outcome import Telemetry
from softbench.worker.machine_probe import gpu_uuid

Number = TypeVar("Number", int, float)

SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""NVML's clocks-event reasons that slow all work."""
SETTINGS = 0x001 | 0x002 | 0x100
"""Reasons that are no slowdown: idle, application clocks and display clocks. A user set such a clock."""
FRESH_SECONDS = 0.02
"""A younger reading is used again. Batches of a run are further apart, so each has its own reading."""
CLOCK_SHARE = 0.75
"""An SM clock below this share of the maximum counts as throttled, as in nvbench. A power cap alone does not count, as many power caps
hold the clock just below the maximum."""

BUSY_SHARE = 0.1
"""Share of a batch's time that a thread waits for a processor, from which the CPU is busy."""


def throttled(reasons: int, sm_clock_mhz: float | None, sm_clock_max_mhz: float | None) -> str:
    """Why the GPU was throttled, for example `power brake`; an empty text if it was not."""
    found = [name for bit, name in SLOWDOWNS.items() if reasons & bit]
    if not found and sm_clock_mhz and sm_clock_max_mhz and not reasons & SETTINGS and sm_clock_mhz < CLOCK_SHARE * sm_clock_max_mhz:
        found = [f"SM clock {sm_clock_mhz:.0f} of {sm_clock_max_mhz:.0f} MHz"]
    return ", ".join(found)


def reader(device: str) -> Callable[[], Telemetry | None]:
    """A function that reads the worker's GPU. On the CPU (see `Waiting`) and without NVML it returns None."""
    if device == "cuda":
        with suppress(Exception):  # without the driver library, and on a MIG slice, there is no telemetry
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid(0))  # a worker sees its GPU as the first
            return lately(partial(read, pynvml, handle, most_mhz(pynvml, handle)))
    return lambda: None


def lately(reading: Callable[[], Telemetry], clock: Callable[[], float] = time.monotonic) -> Callable[[], Telemetry]:
    """A reader that reuses a reading younger than FRESH_SECONDS. A reading may take as long as a short batch."""
    last: list[tuple[float, Telemetry]] = []

    def read_or_recall() -> Telemetry:
        if not last or clock() - last[0][0] >= FRESH_SECONDS:
            found = reading()
            last[:] = [(clock(), found)]
        return last[0][1]

    return read_or_recall


def most_mhz(nvml: ModuleType, handle: object) -> float | None:
    """The maximum SM clock, which is constant; None if the card does not report it."""
    with suppress(Exception):  # without a maximum the clock cannot be judged
        return float(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
    return None


def read(nvml: ModuleType, handle: object, max_mhz: float | None) -> Telemetry:
    """One reading. A value that the card does not support, or that is no number, is None. Read it right after a batch."""

    def ask(query: Callable[[], Number]) -> Number | None:
        with suppress(Exception):  # NVML raises NotSupported for single fields
            return query()
        return None

    def reasons_now() -> int:
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")  # the second is the older name
        return int(next(getattr(nvml, name) for name in names if hasattr(nvml, name))(handle))

    reasons = ask(reasons_now)
    sm_clock = ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)))
    return Telemetry(
        sm_clock_mhz=sm_clock,
        memory_clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
        power_w=ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        temperature_c=ask(lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        reasons=reasons,
        throttled=throttled(reasons or 0, sm_clock, max_mhz),
    )


class Waiting:
    """How long each thread of this process waits for a processor, from the object's creation on."""

    def __init__(self, tasks: Path = Path("/proc/self/task"), clock: Callable[[], float] = time.perf_counter) -> None:
        self.tasks, self.clock = tasks, clock
        self.before, self.begin = self._waited_ns(), clock()

    def telemetry(self) -> Telemetry | None:
        """A reading, which is throttled if a thread waited for more than BUSY_SHARE of the time; None if the kernel does not tell."""
        wall_ns, waited_ns = (self.clock() - self.begin) * 1e9, self._waited_ns()
        if not waited_ns or wall_ns <= 0:
            return None
        share = max(now - self.before.get(thread, 0) for thread, now in waited_ns.items()) / wall_ns
        return Telemetry(throttled=f"a thread waited for a processor {share:.0%} of the time" if share > BUSY_SHARE else "")

    def _waited_ns(self) -> dict[str, int]:
        found = {}
        with suppress(OSError):
            for thread in self.tasks.iterdir():
                with suppress(OSError, ValueError, IndexError):  # the thread has ended
                    found[thread.name] = int((thread / "schedstat").read_text().split()[1])
        return found
