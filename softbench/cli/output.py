"""The terminal: consoles, signals, and the one place where the command line's words go out. Used by `cli` alone."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table

from softbench.core.errors import Interrupted

LOG_WIDTH = 400  # where nobody's terminal sets a width, tables keep their own
LEAST_FOLDED = 30  # characters of a column that may be wrapped: fewer are a ladder of syllables


def command_line(arguments: list[str]) -> str:
    """The command as a results file keeps it, which is for others to read: of an absolute path only the last part."""

    def without_folders(argument: str) -> str:
        option, equals, value = argument.rpartition("=")
        return f"{option}{equals}{Path(value).name}" if value.startswith("/") else argument

    return shlex.join(["softbench", *map(without_folders, arguments)])


def console(*, stderr: bool = False) -> Console:
    """A console that keeps a terminal's width, and in a log lets tables be as wide as they are. NO_COLOR is rich's own affair."""

    stream = sys.stderr if stderr else sys.stdout
    return _Console(stderr=stderr) if stream.isatty() else _Console(stderr=stderr, width=LOG_WIDTH)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end with code 1; `cli.main` knows what a closed pipe means."""
        raise BrokenPipeError


def show(what: RenderableType, on: Console) -> None:
    """Print a renderable as it is: no markup, no highlighting; nothing is cut off, the terminal breaks what is too long."""
    on.width = max(on.width, _least_width(what, on))
    on.print(what, markup=False, highlight=False)


def _least_width(what: RenderableType, on: Console) -> int:
    """Of a table, with its columns that are not to be wrapped whole; rich would cut them, until nobody can read a wide one."""
    if isinstance(what, Group):
        return max((_least_width(part, on) for part in what.renderables), default=0)
    if not isinstance(what, Table):
        return 0
    unlimited = on.options.update(width=LOG_WIDTH)
    for column in what.columns:
        width = max((Measurement.get(on, unlimited, cell).maximum for cell in (column.header, *column.cells)), default=0)
        column.min_width = width if column.no_wrap else min(width, LEAST_FOLDED)
    return Measurement.get(on, unlimited, what).minimum


def counter(what: str) -> Callable[[int, int], None]:
    """`advance(done, total)`: a count on stderr, kept up to date on a terminal and silent in a log."""

    def advance(done: int, total: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done} of {total} {what}" if done < total else "\r\x1b[K")
            sys.stderr.flush()

    return advance


@contextmanager
def ending() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP unwind as Interrupted, so that workers are ended; a second one ends this process at once."""

    def first(signum: int, frame: FrameType | None) -> NoReturn:
        for other in before:
            signal.signal(other, lambda number, _: os._exit(128 + number))  # workers are killed with their nursery
        raise Interrupted(signum)

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # What is ignored stays ignored: nohup means it.
    before = {signum: signal.signal(signum, first) for signum in wanted if signal.getsignal(signum) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
