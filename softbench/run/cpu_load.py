"""Tells the user that other processes use the CPU: before a run from /proc/stat, and during it from its first disturbed cell."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from softbench.core.case import Case
from softbench.core.outcome import Measured, Record
from softbench.results import labels

STAT = Path("/proc/stat")
LOOK_SECONDS = 0.25
"""Length of the look before a run. Linux counts in hundredths of a second."""
IDLE_FIELDS = (3, 4)
"""The columns `idle` and `iowait` of a processor's line."""
LOADED = 0.3
"""Processors in use from which the user is told; below it are a desktop and daemons."""


class CpuLoad:
    """The notes on one run's CPU. Each comes once."""

    def __init__(self, note: Callable[[str], object], pause: Callable[[float], object] = time.sleep) -> None:
        self.note, self.pause = note, pause
        self.told = False

    def look(self) -> None:
        """Look at the processors while the workers wait for their first request."""
        if found := busy(self.pause):
            self.note(f"{found}; results may be disturbed: end them, leave them processors with --threads, or --wait 10m")

    def measured(self, case: Case, records: Sequence[Record]) -> None:
        """Tell of the first case with a cell that other processes disturbed in every round."""
        outcomes = [record.outcome for record in records if case.device == "cpu"]
        if not self.told and any(isinstance(found, Measured) and labels.throttled(found.timing.batches) for found in outcomes):
            self.told = True
            self.note(f"{case.key}: threads waited for a processor in every round; other processes use the CPU, or it has a quota")


def busy(pause: Callable[[float], object]) -> str | None:
    """How many of the processors other processes use, as text; empty if hardly any, None if Linux does not tell."""
    before = _times()
    pause(LOOK_SECONDS)
    after = _times()
    used = sum(_share(before[name], times) for name, times in after.items() if name in before)
    return f"other processes use {used:.1f} of {len(after)} processors" if used >= LOADED else "" if after else None


def _times() -> dict[str, list[int]]:
    """The counters of each processor that this process may use; none where /proc/stat does not list them."""
    with suppress(OSError, ValueError):
        lines = [line.split() for line in STAT.read_text().splitlines() if line.startswith("cpu")]
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        return {name: [int(count) for count in counts] for name, *counts in lines if name in mine}
    return {}


def _share(before: Sequence[int], after: Sequence[int]) -> float:
    """The part of the time in between in which a processor was in use."""
    passed = [later - earlier for earlier, later in zip(before, after, strict=True)]
    idle = sum(passed[field] for field in IDLE_FIELDS)
    return 1 - idle / sum(passed) if sum(passed) > 0 else 0.0
