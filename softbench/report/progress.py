"""Shows the progress of a run on stderr: a bar on a terminal, a line every ten seconds in a log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TaskID, TextColumn
from rich.table import Column

from softbench.core.case import Case
from softbench.core.errors import SoftbenchError
from softbench.core.text import count, duration
from softbench.plan.plan import Plan
from softbench.report.answer import leader
from softbench.report.standings import standings
from softbench.results.columns import Row
from softbench.run.pace import Pacing

LOG_SECONDS = 10.0
BAR_SECONDS = 0.5
BAR_WIDTH = 12
LEADER_SHARE = 20  # the leader takes at most a twentieth of the time


class Leader:
    """Who leads so far, of a run whose rows are read between two cases."""

    def __init__(self) -> None:
        self.text = ""
        """As `answer.leader`."""
        self.rows: Callable[[], Sequence[Row]] = list
        """The cells so far."""
        self._due = 0.0

    def update(self) -> None:
        """Read the rows, unless the last time is too short ago. Errors are the run's, which tells them."""
        begin = time.monotonic()
        if begin < self._due:
            return
        with suppress(SoftbenchError, OSError):
            self.text = leader(standings(self.rows()))
        self._due = time.monotonic() + LEADER_SHARE * (time.monotonic() - begin)


class Progress:
    """A `softbench.run.run.Observer` on a console. A thread shows the progress, as one request may take minutes."""

    def __init__(self, console: Console, *, quiet: bool = False, verbose: bool = False) -> None:
        """`quiet` prints nothing; `verbose` prints a line for every case."""
        self.console, self.quiet, self.verbose = console, quiet, verbose
        self._working: Callable[[], str] = str
        self._pace: Pacing | None = None
        self.leader = Leader()
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Progress:
        if self.quiet:
            return self
        if self.console.is_terminal:
            rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # a narrow terminal cuts this one
            text = TextColumn("cells{task.description}", markup=False, table_column=rest)
            columns = (BarColumn(bar_width=BAR_WIDTH), MofNCompleteColumn(), text)
            self._bar = Bar(*columns, console=self.console, transient=True, auto_refresh=False, expand=True)
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._bar is not None:
            self._bar.stop()

    def watch(self, working: Callable[[], str]) -> None:
        self._working = working

    def begin(self, plan: Plan, pace: Pacing, name: str) -> None:
        available = [info.name for info in plan.infos if info.able]
        cases, left = count(len(plan.cases), "case"), duration(pace.seconds_left())
        self.note(f"{name}: {', '.join(available)} over {cases} on {plan.device_name}; {count(pace.cells, 'cell')}, about {left}")
        self._pace = pace

    def advance(self, case: Case) -> None:
        if not self.quiet:
            self.leader.update()
        if self.verbose and (pace := self._pace):
            self.note(f"{case.key}: {pace.done} of {pace.cells} cells, about {duration(pace.seconds_left())} left")

    def note(self, text: str, *, error: bool = False) -> None:
        if self.quiet and not error:
            return
        with suppress(OSError):  # a closed stderr does not end the measurement
            self.console.print(f"softbench: {text}", markup=False, highlight=False, soft_wrap=True)

    def _show(self) -> None:
        while not self._over.wait(BAR_SECONDS if self._bar else LOG_SECONDS):
            self.show()

    def show(self) -> None:
        """Show the progress now."""
        pace = self._pace
        doing = pace.doing() if pace else self._working()
        left = f"about {duration(pace.seconds_left())} left" if pace else ""
        if self._bar is not None:
            done, cells = (pace.done, pace.cells) if pace else (0, None)
            text = "".join(f"{mark} {text}" for mark, text in ((",", left), (";", self.leader.text), (";", doing)) if text)
            self._bar.update(self._task, completed=done, total=cells, description=text, refresh=True)
        elif doing or left:
            self.note("; ".join(filter(None, (f"{pace.done} of {pace.cells} cells, {left}" if pace else "", self.leader.text, doing))))
