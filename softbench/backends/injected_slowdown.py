"""Injected slowdowns for `softbench gate --self-test`: copies of a backend with real extra work after each call.

The A/A copy (a slowdown of 0) is the same callable in another process, so every alarm about it is false. The other copies wait for a
fraction of their own time. On the CPU they spin after each call. On a GPU a sleeping kernel follows each launch; its cycles are
calibrated with the timer of the run. That kernel's launch costs about 2 us, so a small fraction needs calls of 100 us and more. The
self-test reports the measured slowdown, not the requested one.

Calibrating takes more than half a second of GPU time. So one process calibrates a case and a file stores the cycles for later processes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

from softbench.core.case import Case
from softbench.core.errors import UsageError
from softbench.core.files import replace_file
from softbench.plugins.backend import Backend, Call
from softbench.plugins.load import load
from softbench.plugins.source import origins

CALIBRATING_CALL = 4
"""The call that calibrates. The first three calls build and check while other workers run; later calls are timed alone."""
STEPS = 4
"""Calibration steps: the first finds the cost of the sleeping kernel's launch, the others refine it."""
REPEATS = 5
"""Measurements of a step, alternately with and without the sleep, so that drift affects both."""


def inject(
    base: str, slowdowns: Sequence[float], plugins: Sequence[str] = (), *, cases: Sequence[str] | None = None, memory: str = ""
) -> list[InjectedSlowdown]:
    """A copy of the backend `base` for each slowdown (a fraction), named `base+0.05`.

    `plugins` are searched before the entry points. `cases` are the keys of the cases that get a slowdown (None: all); a copy with a
    slowdown does not support other cases. `memory` is the file that stores calibrations.

    Raises:
        UsageError: no backend has that name.
    """
    sources = origins([Path(plugin) for plugin in plugins])
    for source in sorted(sources, key=lambda source: (not source.given, source.label != base)):
        if source.given or source.label == base:
            for backend in load(source):
                if backend.name == base:
                    return [InjectedSlowdown(backend, slowdown, cases, CalibrationFile(memory)) for slowdown in slowdowns]
    raise UsageError(f"no backend '{base}' to inject slowdowns into")


class InjectedSlowdown:
    """Another backend with real extra work after each call."""

    def __init__(self, base: Backend, slowdown: float, cases: Sequence[str] | None, memory: CalibrationFile) -> None:
        self.base, self.slowdown, self.cases, self.memory = base, slowdown, cases, memory
        self.name = f"{base.name}+{slowdown:g}"

    def __getattr__(self, attribute: str) -> object:
        return getattr(self.__dict__["base"], attribute)

    def available(self) -> str | None:
        """The answer of the backend itself."""
        return self.base.available()

    def supports(self, case: Case) -> str | None:
        """The answer of the backend itself; refuses cases without an injected slowdown."""
        if self.slowdown and self.cases is not None and case.key not in self.cases:
            return "no slowdown is injected in this case"
        if self.slowdown and case.shape:
            return "no slowdown is injected in an N-D case"
        return self.base.supports(case)

    def prepare(self, case: Case) -> Call:
        """The backend's own callable, followed by the extra work."""
        call = self.base.prepare(case)
        if not self.slowdown:
            return call
        if case.device != "cuda":
            return _spinning(call, self.slowdown)
        return _Sleeping(call, self.slowdown, self.memory, f"{self.name} {case.key}")


def _spinning(call: Call, slowdown: float) -> Call:
    clock = time.perf_counter

    def slowed(*given: torch.Tensor) -> object:
        start = clock()
        out = call(*given)
        now = clock()
        end = now + (now - start) * slowdown
        while clock() < end:
            pass
        return out

    return slowed


class CalibrationFile:
    """Calibrated cycles by backend, case and GPU. A missing or damaged file counts as empty."""

    def __init__(self, file: str) -> None:
        self.file = Path(file) if file else None

    def read(self) -> dict[str, int]:
        if self.file is None:
            return {}
        try:
            found = json.loads(self.file.read_text(encoding="utf-8"))
            return {str(key): int(cycles) for key, cycles in found.items() if 0 < int(cycles) < 2**40}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def write(self, key: str, cycles: int) -> None:
        """Store the cycles. Workers are timed one at a time, so no other worker writes at that moment."""
        if self.file is not None:
            replace_file(self.file, json.dumps({**self.read(), key: cycles}, indent=1) + "\n")


class _Sleeping:
    """A call followed by a kernel that sleeps for a number of cycles."""

    def __init__(self, call: Call, slowdown: float, memory: CalibrationFile, key: str) -> None:
        self.call, self.slowdown, self.memory = call, slowdown, memory
        self.key = f"{torch.cuda.get_device_name()}: {key}"
        self.calls, self.cycles = 0, memory.read().get(self.key, 0)

    def __call__(self, *given: torch.Tensor) -> object:
        self.calls += 1
        if self.calls == CALIBRATING_CALL and not self.cycles:
            self.cycles = self.memory.read().get(self.key, 0) or self._calibrated(given)
            self.memory.write(self.key, self.cycles)
        out = self.call(*given)
        if self.cycles:
            torch.cuda._sleep(self.cycles)
        return out

    def _calibrated(self, given: tuple[torch.Tensor, ...]) -> int:
        """The cycles for which call and sleep together take 1 + slowdown times as long as the call alone."""
        from triton.testing import do_bench

        def seconds(cycles: int) -> float:
            def both() -> None:
                self.call(*given)
                if cycles:
                    torch.cuda._sleep(cycles)

            found: float = do_bench(both, warmup=1, rep=8, return_mode="median")
            return found / 1e3

        hertz = 1.5e9  # an estimate of the clock; every step corrects the cycles
        cycles = max(1.0, seconds(0) * self.slowdown * hertz)
        for _ in range(STEPS):
            pairs = [(seconds(0), seconds(int(cycles))) for _ in range(REPEATS)]
            short = median(alone * (1 + self.slowdown) - slowed for alone, slowed in pairs)
            cycles = max(1.0, cycles + short * hertz)
        return int(cycles)
