"""Slowdowns planted on purpose, for `softbench gate --self-test`: a backend beside itself, once as it is and then with real extra work.

The twin (a slowdown of 0) is the same callable in another process: whatever the gate says of it is a false alarm. The others wait, on
the device they run on, for a share of their own time: on the CPU by spinning after each call, on a GPU by a sleeping kernel after each
launch, whose cycles are calibrated with the timer that measures. A launch of its own costs about 2 us, so small shares can only be
planted in calls of some 100 us. What was planted is not believed: the self-test reports what it measured.

A calibration takes a good half second of the GPU, so it is done once a case and remembered in a file for the processes that follow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from softbench.core.case import Case
from softbench.core.errors import UsageError
from softbench.core.files import replace_file
from softbench.plugins.load import load
from softbench.plugins.source import origins

ALONE_FROM = 4
"""The call that calibrates. The first three build and check, beside other backends; from then on a worker is timed alone."""
STEPS = 4  # of the calibration: the sleeping kernel's own launch is learnt in the first, the rest refine
TAKES = 5  # of a step, alone and slowed in turns: drift hits both alike


def plant(
    base: str, slowdowns: Sequence[float], plugins: Sequence[str] = (), *, cases: Sequence[str] | None = None, memory: str = ""
) -> list[InjectedSlowdown]:
    """`base` once for each slowdown (a fraction), called `base+0.05`. `plugins` are searched before the entry points.

    `cases` are the keys of those in which slowdowns are planted (None: all), the others are not supported by them; `memory` is the file
    in which calibrations are kept.

    Raises:
        UsageError: no backend of that name.
    """
    doors = origins([Path(plugin) for plugin in plugins])
    for door in sorted(doors, key=lambda door: (door.kind != "file", door.label != base)):
        if door.kind == "file" or door.label == base:
            for backend in load(door):
                if backend.name == base:
                    return [InjectedSlowdown(backend, slowdown, cases, Memory(memory)) for slowdown in slowdowns]
    raise UsageError(f"no backend '{base}' to plant slowdowns in")


class InjectedSlowdown:
    """Another backend with real extra work after each call."""

    def __init__(self, base: Any, slowdown: float, cases: Sequence[str] | None, memory: Memory) -> None:
        self.base, self.slowdown, self.cases, self.memory = base, slowdown, cases, memory
        self.name = f"{base.name}+{slowdown:g}"

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.__dict__["base"], attribute)

    def available(self) -> str | None:
        """As the backend itself says."""
        reason: str | None = self.base.available()
        return reason

    def supports(self, case: Case) -> str | None:
        """As the backend itself says, where something is planted."""
        if self.slowdown and self.cases is not None and case.key not in self.cases:
            return "no slowdown is planted in this case"
        reason: str | None = self.base.supports(case)
        return reason

    def prepare(self, case: Case) -> Callable[..., Any]:
        """The backend's own callable, with the extra work after it."""
        call: Callable[..., Any] = self.base.prepare(case)
        if not self.slowdown:
            return call
        if case.device != "cuda":
            return _spinning(call, self.slowdown)
        return _Sleeping(call, self.slowdown, self.memory, f"{self.name} {case.key}")


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


class Memory:
    """Calibrated cycles by name of what they slow, in a file; one that is not there, or damaged, is calibrated anew."""

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
        """Workers are timed one at a time, so no other writes at the same moment."""
        if self.file is not None:
            replace_file(self.file, json.dumps({**self.read(), key: cycles}, indent=1) + "\n")


class _Sleeping:
    """A call followed by a kernel that waits for so many cycles."""

    def __init__(self, call: Callable[..., Any], slowdown: float, memory: Memory, key: str) -> None:
        self.call, self.slowdown, self.memory = call, slowdown, memory
        self.key = f"{torch.cuda.get_device_name()}: {key}"
        self.calls, self.cycles = 0, memory.read().get(self.key, 0)

    def __call__(self, *given: torch.Tensor) -> Any:
        self.calls += 1
        if self.calls == ALONE_FROM and not self.cycles:
            self.cycles = self.memory.read().get(self.key, 0) or self._calibrated(given)
            self.memory.write(self.key, self.cycles)
        out = self.call(*given)
        if self.cycles:
            torch.cuda._sleep(self.cycles)
        return out

    def _calibrated(self, given: tuple[torch.Tensor, ...]) -> int:
        """The cycles with which call and sleep together take 1 + slowdown times the call alone."""
        from triton.testing import do_bench

        def seconds(cycles: int) -> float:
            def both() -> None:
                self.call(*given)
                if cycles:
                    torch.cuda._sleep(cycles)

            found: float = do_bench(both, warmup=1, rep=8, return_mode="median")
            return found / 1e3

        hertz = 1.5e9  # a first guess; every step corrects by what was measured
        cycles = max(1.0, seconds(0) * self.slowdown * hertz)
        for _ in range(STEPS):
            pairs = [(seconds(0), seconds(int(cycles))) for _ in range(TAKES)]
            short = median(alone * (1 + self.slowdown) - slowed for alone, slowed in pairs)
            cycles = max(1.0, cycles + short * hertz)
        return int(cycles)
