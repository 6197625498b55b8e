"""What a measurement from Python shows: a bar on a terminal, a line in a notebook, and the notes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from softbench.api.options import as_arguments
from softbench.core.errors import UsageError
from softbench.plugins.load import importing

if TYPE_CHECKING:
    from softbench.core.case import Case
    from softbench.plan.plan import Plan
    from softbench.results.writer import Run
    from softbench.run.pace import Pacing
    from softbench.run.run import Observer

_MEASURING = threading.RLock()
"""Two measurements of one process would disturb each other, so the second waits."""


def _forked() -> None:
    """A process that was forked during a measurement has no thread that would release the lock."""
    global _MEASURING
    _MEASURING = threading.RLock()


os.register_at_fork(after_in_child=_forked)


class Watched:
    """A `softbench.run.run.Observer` that keeps the notes, and passes everything on."""

    def __init__(self, inner: Observer | None) -> None:
        self.inner = inner
        self.notes: list[str] = []

    def follow(self, run: Run) -> None:
        """The run has its files: the progress shows who leads so far."""
        if leader := getattr(self.inner, "leader", None):
            leader.rows = run.rows

    def watch(self, doing: Callable[[], str]) -> None:
        if self.inner:
            self.inner.watch(doing)

    def begin(self, plan: Plan, pace: Pacing, name: str) -> None:
        if self.inner:
            self.inner.begin(plan, pace, name)

    def advance(self, case: Case) -> None:
        if self.inner:
            self.inner.advance(case)

    def note(self, text: str, *, error: bool = False) -> None:
        self.notes.append(text)
        if self.inner:
            self.inner.note(text, error=error)


@contextmanager
def watched(progress: bool | None, config: object = None, given: Collection[str] = ()) -> Iterator[Watched]:
    """The observer of one measurement of this process; another thread waits for its end. Errors name arguments, not flags.

    Args:
        progress: None shows it on a terminal and in a notebook, True also in a log.
        config, given: the configuration and the names of the arguments, for errors.

    Raises:
        UsageError: a worker imports the file that calls this.
    """
    if importing():
        raise UsageError("called while a worker imports this file; put the call under: if __name__ == '__main__':")
    with _MEASURING, as_arguments(config, given):
        if progress is False:
            yield Watched(None)
            return
        if in_notebook():
            from softbench.api.notebook import NotebookProgress

            with NotebookProgress() as line:
                yield Watched(line)
            return
        from rich.console import Console

        from softbench.report.progress import Progress

        console = Console(stderr=True)
        if progress is None and not console.is_terminal:
            yield Watched(None)
            return
        with Progress(console) as bar:
            yield Watched(bar)


def in_notebook() -> bool:
    """True in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
