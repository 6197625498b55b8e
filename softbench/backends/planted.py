"""Slowdowns planted on purpose, for `softbench gate --self-test`: a backend beside itself, once as it is and then with real extra work.

The twin (a slowdown of 0) is the same callable in another process: whatever the gate says of it is a false alarm. The others wait, on
the device they run on, for a share of their own time: on the CPU by spinning after each call, on a GPU by a sleeping kernel after each
launch, whose cycles are calibrated with the timer that measures. A launch of its own costs about 2 us, so small shares can only be
planted in calls of some 100 us. What was planted is not believed: the self-test reports what it measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from softbench import registry
from softbench.errors import UsageError
from softbench.model import Case

ALONE_FROM = 4
"""The call that calibrates. The first three build and check, beside other backends; from then on a worker is timed alone."""
STEPS = 4  # of the calibration: the sleeping kernel's own launch is learnt in the first, the rest refine


def plant(base: str, slowdowns: Sequence[float], plugins: Sequence[str] = ()) -> list[Planted]:
    """`base` once for each slowdown (a fraction), called `base+0.05`. `plugins` are searched before the entry points.

    Raises:
        UsageError: no backend of that name.
    """
    doors = registry.origins([Path(plugin) for plugin in plugins])
    for door in sorted(doors, key=lambda door: (door.kind != "file", door.label != base)):
        if door.kind == "file" or door.label == base:
            for backend in registry.load(door):
                if backend.name == base:
                    return [Planted(backend, slowdown) for slowdown in slowdowns]
    raise UsageError(f"no backend '{base}' to plant slowdowns in")


class Planted:
    """Another backend with real extra work after each call."""

    def __init__(self, base: Any, slowdown: float) -> None:
        self.base, self.slowdown = base, slowdown
        self.name = f"{base.name}+{slowdown:g}"

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.__dict__["base"], attribute)

    def available(self) -> str | None:
        """As the backend itself says."""
        reason: str | None = self.base.available()
        return reason

    def supports(self, case: Case) -> str | None:
        """As the backend itself says."""
        reason: str | None = self.base.supports(case)
        return reason

    def prepare(self, case: Case) -> Callable[..., Any]:
        """The backend's own callable, with the extra work after it."""
        call: Callable[..., Any] = self.base.prepare(case)
        if not self.slowdown:
            return call
        return _Sleeping(call, self.slowdown) if case.device == "cuda" else _spinning(call, self.slowdown)


def _spinning(call: Callable[..., Any], slowdown: float) -> Callable[..., Any]:
    clock = time.perf_counter

    def slowed(*given: torch.Tensor) -> Any:
        start = clock()
        out = call(*given)
        now = clock()
        end = now + (now - start) * slowdown
        while clock() < end:
            pass
        return out

    return slowed


class _Sleeping:
    """A call followed by a kernel that waits for so many cycles."""

    def __init__(self, call: Callable[..., Any], slowdown: float) -> None:
        self.call, self.slowdown = call, slowdown
        self.calls = self.cycles = 0

    def __call__(self, *given: torch.Tensor) -> Any:
        self.calls += 1
        if self.calls == ALONE_FROM:
            self._calibrate(given)
        out = self.call(*given)
        if self.cycles:
            torch.cuda._sleep(self.cycles)
        return out

    def _calibrate(self, given: tuple[torch.Tensor, ...]) -> None:
        """Find the cycles with which call and sleep together take 1 + slowdown times the call alone."""
        from triton.testing import do_bench

        def seconds(cycles: int) -> float:
            def both() -> None:
                self.call(*given)
                if cycles:
                    torch.cuda._sleep(cycles)

            found: float = do_bench(both, warmup=5, rep=30, return_mode="median")
            return found / 1e3

        hertz = 1.5e9  # a first guess; every step corrects by what was measured
        alone = seconds(0)
        wanted, cycles = alone * self.slowdown, max(1.0, alone * self.slowdown * hertz)
        for _ in range(STEPS):
            short = wanted - (seconds(int(cycles)) - alone)
            cycles = max(1.0, cycles + short * hertz)
        self.cycles = int(cycles)
