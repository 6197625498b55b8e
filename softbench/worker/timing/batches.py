"""A case's batches: the inputs renewed, the calls timed, and what they returned verified, each when it is asked for.

Only the timing needs the device for itself. So a run renews and verifies in all workers at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from softbench.core.outcome import Accuracy
from softbench.worker.guarding.async_work import late_work
from softbench.worker.timing.rotating_inputs import Judge, RotatingInputs, TimedCalls
from softbench.worker.timing.timers import Samples, Timer, synchronize

if TYPE_CHECKING:
    from softbench.worker.guarding.tamper_guard import TamperGuard


LATE = 3
"""The least number of batches with late outputs that make a cell wrong."""


@dataclass(slots=True)
class Batches:
    """The batches of one case in one worker."""

    rotation: RotatingInputs
    device: str
    guard: TamperGuard | None
    body: Callable[[], Any] | None = None
    """What the next batch calls."""
    broken: str = ""
    """How calls of the last batch were not timed, in words."""
    tampered: str = ""
    """What was replaced or left active at any time since the build."""
    timed: int = 0
    """Batches so far, on a CPU."""
    late: int = 0
    """Those whose outputs took long to read. A busy machine delays a few, so more than half count, of three or more."""

    def renew(self) -> None:
        """Other values into the inputs of the batch that follows."""
        self.broken = self._replaced()
        self.body = self.rotation.renew()
        if self.guard and self.guard.persisting_l2:
            self.guard.persisting_l2.reset()

    def time(self, timer: Timer, warmup_ms: float, batch_ms: float, block: int) -> Samples:
        """As `softbench.worker.timing.timers.Timer`; what is to be verified is copied at once.

        Raises:
            RuntimeError: the inputs were not renewed.
        """
        body, self.body = self.body, None
        if body is None:
            raise RuntimeError("asked to time calls whose inputs were not renewed")
        self.rotation.stir()
        self._replaced()
        found = timer(body, warmup_ms, batch_ms, block)
        self.rotation.collect()
        synchronize(self.device)  # before another worker is timed
        self.broken = self._replaced()
        if isinstance(body, TimedCalls):
            reason = body.probes.late(body.spent_ns / max(1, body.turn))
            self.timed, self.late = self.timed + 1, self.late + bool(reason)
            if self.late >= LATE and 2 * self.late > self.timed:
                self.broken = self.broken or reason
            us = body.samples_us(len(found.us), found.calls) if body.readings_ns else found.us
            return replace(found, us=us, made=body.turn, spent_us=body.spent_ns / 1e3)
        probes = self.rotation.probes
        return replace(found, us=probes.without(found.us, found.calls, self.rotation.calls())) if probes else found

    def check_late_work(self, samples: list[float]) -> None:
        """Whether the GPU works on after the caller's stream has finished. Nothing else may run on it."""
        if not self.broken:
            self.broken = late_work(self.rotation.unwatched(), statistics.median(samples))

    def verify(self, judge: Judge) -> Accuracy | None:
        """Of calls that were timed: whether they were done when they returned, and two of their outputs; None where none was made."""
        broken = self.broken or self._replaced()  # who waited for the batch's end to exchange the judge
        return Accuracy.wrong(broken) if broken else self.rotation.verify(judge)

    def _replaced(self) -> str:
        self.tampered = self.tampered or (self.guard.replaced() if self.guard else "")
        return self.tampered
