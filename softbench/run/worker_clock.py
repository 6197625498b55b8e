"""Compares the clocks of workers on a CPU with this process's clock, which no plugin can reach."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from softbench.core.outcome import Failed, Status
from softbench.core.text import micros

CLOCK = time.perf_counter
FACTOR = 2.0
"""The time of a batch is at most so many times that of its calls, beside what follows."""
GAP_US = 25.0
"""Microseconds between two calls."""
BATCH_US = 40_000.0
"""Microseconds of a batch that are spent before and after its calls."""


PROCESSOR_TIME = 2
"""Of the clocks of another process: its threads' time on processors."""


class Watch:
    """The time since it was made, and the processor time of a worker since then."""

    def __init__(self, pid: int) -> None:
        self.pid, self.began, self.before_us = pid, CLOCK(), _processor_us(pid)

    def us(self) -> float:
        """Microseconds, of the shorter time. Other programs make the first longer, and waiting threads the second."""
        return min((CLOCK() - self.began) * 1e6, _processor_us(self.pid) - self.before_us)


def _processor_us(pid: int) -> float:
    """Processor time of a worker; infinite where the system does not tell, and if it has ended."""
    with suppress(OSError, AttributeError):
        return time.clock_gettime_ns(~pid << 3 | PROCESSOR_TIME) / 1e3
    return math.inf


class Span(NamedTuple):
    """The times of a batch."""

    took_us: float
    """From the request to the reply, by this process's `Watch`."""
    spent_us: float
    """Of all its calls, those of the warm-up too, by the worker's clock."""
    calls: int
    """The number of these calls; 0 if nobody counted."""
    whole_us: float = 0.0
    """Of the whole batch, by the worker's clock; 0 if it does not tell."""

    @property
    def too_long(self) -> bool:
        """True if the calls cannot have been as short as the worker says, or its clock goes slowly."""
        most = FACTOR * self.spent_us + GAP_US * self.calls
        if self.whole_us:
            most = min(most, FACTOR * self.whole_us)
        return self.calls > 0 and self.took_us > most + BATCH_US


def disputed(spans: Sequence[Span]) -> Failed | None:
    """The failure of a cell if more than half of its batches took too long; None otherwise. A busy machine delays a few."""
    if 2 * sum(span.too_long for span in spans) <= len(spans):
        return None
    took, spent = (statistics.median(getattr(span, name) for span in spans) for name in ("took_us", "spent_us"))
    reason = f"disputed: the calls of a batch took {micros(spent)} by its worker's clock, and the batch {micros(took)} by softbench's"
    return Failed(Status.UNVERIFIED, "time", reason)
