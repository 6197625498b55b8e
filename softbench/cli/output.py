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

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table

from softbench.core.errors import Interrupted

LOG_WIDTH = 400  # without a terminal, tables keep their natural width
MIN_FOLDED = 30  # least characters of a column that may be wrapped


def command_line(arguments: list[str]) -> str:
    """The command for a results file, which others read: an absolute path becomes its last part."""

    def without_folders(argument: str) -> str:
        option, equals, value = argument.rpartition("=")
        return f"{option}{equals}{Path(value).name}" if value.startswith("/") else argument

    return shlex.join(["softbench", *map(without_folders, arguments)])


def console(*, stderr: bool = False) -> Console:
    """A console with the terminal's width; in a log, tables keep their natural width. rich reads NO_COLOR."""
    stream = sys.stderr if stderr else sys.stdout
    return _Console(stderr=stderr) if stream.isatty() else _Console(stderr=stderr, width=LOG_WIDTH)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise, as rich would exit with code 1; `main` handles a closed pipe."""
        raise BrokenPipeError


def show(what: RenderableType, on: Console) -> None:
    """Print a renderable without markup and highlighting. Nothing is cut off; the terminal breaks long lines."""
    on.width = max(on.width, _least_width(what, on))
    on.print(what, markup=False, highlight=False)


def _least_width(what: RenderableType, on: Console) -> int:
    """The least width of a table whose unwrapped columns stay whole; rich would cut them."""
    if isinstance(what, Group):
        return max((_least_width(part, on) for part in what.renderables), default=0)
    if not isinstance(what, Table):
        return 0
    unlimited = on.options.update(width=LOG_WIDTH)
    for column in what.columns:
        width = max((Measurement.get(on, unlimited, cell).maximum for cell in (column.header, *column.cells)), default=0)
        column.min_width = width if column.no_wrap else min(width, MIN_FOLDED)
    return Measurement.get(on, unlimited, what).minimum


def counter(what: str) -> Callable[[int, int], None]:
    """`advance(done, total)` keeps a count on stderr up to date on a terminal, and prints nothing in a log."""

    def advance(done: int, total: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done} of {total} {what}" if done < total else "\r\x1b[K")
            sys.stderr.flush()

    return advance


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise Interrupted, so that workers end; a second signal ends this process at once."""

    def first(signum: int, frame: FrameType | None) -> NoReturn:
        for other in before:
            signal.signal(other, lambda number, _: os._exit(128 + number))  # the workers end with their forkserver
        raise Interrupted(signum)

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # An ignored signal stays ignored, as nohup requires.
    before = {signum: signal.signal(signum, first) for signum in wanted if signal.getsignal(signum) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
