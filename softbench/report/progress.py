"""Shows the progress of a run on stderr: a bar on a terminal, a line every 30 seconds in a log."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TaskID, TextColumn, TimeRemainingColumn

from softbench.core.case import Case
from softbench.core.text import count, duration
from softbench.plan.plan import Plan

LOG_SECONDS = 30.0


class Progress:
    """A `softbench.run.run.Observer` on a console."""

    def __init__(self, console: Console, *, quiet: bool = False, verbose: bool = False) -> None:
        """`quiet` prints nothing; `verbose` prints a line for every case."""
        self.console, self.quiet, self.verbose = console, quiet, verbose
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._cells = self._done = self._measured = 0
        self._start = self._last = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, plan: Plan, cells: int, name: str) -> None:
        available = [info.name for info in plan.infos if not (info.broken or info.unavailable)]
        self.note(f"{name}: {', '.join(available)} over {count(len(plan.cases), 'case')} on {plan.device_name}")
        self._cells, self._start = cells, time.monotonic()
        if self.console.is_terminal and not self.quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("cells,"), TimeRemainingColumn())
            self._bar = Bar(*columns, TextColumn("left"), console=self.console, transient=True)
            self._task = self._bar.add_task("measuring", total=cells)
            self._bar.start()

    def advance(self, case: Case, cells: int, *, stored: bool = False) -> None:
        self._done += cells
        self._measured += 0 if stored else cells
        if self._bar is not None and self._task is not None:
            if stored:  # so that stored cells do not change the estimated speed
                self._bar.reset(self._task, total=self._cells, completed=self._done)
            else:
                self._bar.update(self._task, advance=cells, description=case.key)
        if self._measured and not stored and (self.verbose or self._bar is None):
            self._line(case)

    def _line(self, case: Case) -> None:
        now = time.monotonic()
        if self.verbose or now - self._last > LOG_SECONDS:
            self._last = now
            left = (now - self._start) / self._measured * (self._cells - self._done)
            done = f"{case.key}: " if self.verbose else ""
            self.note(f"{done}{self._done} of {self._cells} cells, about {duration(left)} left")

    def note(self, text: str) -> None:
        if self.quiet:
            return
        with suppress(OSError):  # a closed stderr does not end the measurement
            self.console.print(f"softbench: {text}", markup=False, highlight=False, soft_wrap=True)
