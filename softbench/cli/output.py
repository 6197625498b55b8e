"""The terminal: consoles, printing of renderables, and signals."""

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

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from softbench.cli import verbosity
from softbench.core.errors import Interrupted

LOG_WIDTH = 400  # columns of a log, in which tables keep their natural width
MIN_FOLDED = 30  # minimum width of a column that may be wrapped


def command_line(arguments: list[str]) -> str:
    """The command for a results file. An absolute path becomes its last part, as results may be published."""

    def without_folders(argument: str) -> str:
        option, equals, value = argument.rpartition("=")
        return f"{option}{equals}{Path(value).name}" if value.startswith("/") else argument

    return shlex.join(["softbench", *map(without_folders, arguments)])


def console(*, stderr: bool = False) -> Console:
    """A console of the terminal's width, or wide enough for every table in a log. rich reads NO_COLOR."""
    stream = sys.stderr if stderr else sys.stdout
    return _Console(stderr=stderr) if stream.isatty() else _Console(stderr=stderr, width=LOG_WIDTH)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise, because rich would exit with code 1; `main` handles a closed pipe."""
        raise BrokenPipeError


def show(renderable: RenderableType, target: Console) -> None:
    """Print a renderable without markup and highlighting. No column is cut; the terminal breaks long lines."""
    target.size = ConsoleDimensions(
        max(target.width, _min_width(renderable, target)), target.height
    )  # rich ignores a width alone if TERM=dumb
    target.print(renderable, markup=False, highlight=False)


def _min_width(renderable: RenderableType, target: Console) -> int:
    """The minimum width of a table whose unwrapped columns are not cut."""
    if isinstance(renderable, Group):
        return max((_min_width(part, target) for part in renderable.renderables), default=0)
    if not isinstance(renderable, Table):
        return 0
    unlimited = target.options.update(width=LOG_WIDTH)
    for column in renderable.columns:
        cells = (column.header, *column.cells)
        if column.no_wrap and all(isinstance(cell, str | Text) for cell in cells):
            column.width = max(map(_width, cells))  # with a given width rich does not measure each cell twice more
            continue
        width = max((Measurement.get(target, unlimited, cell).maximum for cell in cells), default=0)
        column.min_width = width if column.no_wrap else min(width, MIN_FOLDED)
    return Measurement.get(target, unlimited, renderable).minimum


def _width(cell: RenderableType) -> int:
    return cell.cell_len if isinstance(cell, Text) else cell_len(str(cell))


def counter(unit: str) -> Callable[[int, int], None]:
    """A function `advance(done, total)` that updates a count on stderr. In a log it prints nothing."""

    def advance(done: int, total: int) -> None:
        if sys.stderr.isatty() and not verbosity.quiet():
            sys.stderr.write(f"\r{done} of {total} {unit}" if done < total else "\r\x1b[K")
            sys.stderr.flush()

    return advance


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise Interrupted, so that workers end; a second signal ends this process at once."""

    def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
        for other in handlers:
            signal.signal(other, lambda number, _: os._exit(128 + number))  # the workers end with their forkserver
        raise Interrupted(signum)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # An ignored signal stays ignored, as nohup requires.
    handlers = {signum: signal.signal(signum, interrupt) for signum in signals if signal.getsignal(signum) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
