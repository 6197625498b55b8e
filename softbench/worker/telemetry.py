"""What the GPU says of itself after each batch: clocks, power, temperature, and whether it was throttled. It is read, never set."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from softbench.core.outcome import Telemetry
from softbench.worker.probe import gpu_uuid

SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""NVML's clocks-event reasons that slow whatever runs."""
SETTINGS = 0x001 | 0x002 | 0x100  # idle, application clocks, display clocks: somebody's choice, and the clock is where it was put
FRESH_SECONDS = 0.02  # below what a batch of a run takes with its warm-up and its neighbours: there every batch has a reading of its own
CLOCK_SHARE = 0.75  # of the maximum, as nvbench has it. A power cap alone is not counted: many hold the clock just below the maximum


def throttled(reasons: int, sm_clock_mhz: float | None, sm_clock_max_mhz: float | None) -> str:
    """How the GPU was slowed, in words; empty where it was not."""
    found = [name for bit, name in SLOWDOWNS.items() if reasons & bit]
    if not found and sm_clock_mhz and sm_clock_max_mhz and not reasons & SETTINGS and sm_clock_mhz < CLOCK_SHARE * sm_clock_max_mhz:
        found = [f"SM clock {sm_clock_mhz:.0f} of {sm_clock_max_mhz:.0f} MHz"]
    return ", ".join(found)


def reader(device: str) -> Callable[[], Telemetry | None]:
    """A call that reads the worker's GPU; one that gives None on the CPU and where there is no NVML."""
    if device == "cuda":
        with suppress(Exception):  # no driver library, or a MIG slice: no telemetry, and everything else as usual
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid(0))  # a worker sees its GPU as the first
            return lately(partial(read, pynvml, handle, most_mhz(pynvml, handle)))
    return lambda: None


def lately(reading: Callable[[], Telemetry], clock: Callable[[], float] = time.monotonic) -> Callable[[], Telemetry]:
    """A reading may cost some milliseconds, as long as a short batch: one of a moment ago is good enough."""
    last: list[tuple[float, Telemetry]] = []

    def read_or_recall() -> Telemetry:
        if not last or clock() - last[0][0] >= FRESH_SECONDS:
            found = reading()
            last[:] = [(clock(), found)]
        return last[0][1]

    return read_or_recall


def most_mhz(nvml: Any, handle: Any) -> float | None:
    """The SM clock's maximum, which stays; None where the card does not tell."""
    with suppress(Exception):  # a card that does not tell is one whose clock cannot be judged
        return float(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
    return None


def read(nvml: Any, handle: Any, max_mhz: float | None) -> Telemetry:
    """One reading; what the card does not support, or tells as no number, is None. Right after a batch it still tells of it."""

    def ask(query: Callable[[], Any]) -> Any:
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
