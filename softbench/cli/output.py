"""The terminal: consoles, printing of renderables, and signals."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import NoReturn

from rich.console import Console, RenderableType

from softbench.cli import verbosity
from softbench.core.errors import Interrupted
from softbench.report.rich_tables import LOG_WIDTH, TABLE_WIDTH as TABLE_WIDTH, widen
from softbench.run.request import command_line as command_line

LOG_SECONDS = 30.0
"""The time between two lines of a counter in a log."""
AGAIN_SECONDS = 0.3
"""Signals that arrive within this time are one interruption."""


def console(*, stderr: bool = False, log_width: int = LOG_WIDTH) -> Console:
    """A console of the terminal's width, or of this width in a log. rich reads NO_COLOR."""
    stream = sys.stderr if stderr else sys.stdout
    return _Console(stderr=stderr) if stream.isatty() else _Console(stderr=stderr, width=log_width)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise, because rich would exit with code 1; `main` handles a closed pipe."""
        raise BrokenPipeError


def show(renderable: RenderableType, target: Console) -> None:
    """Print a renderable without markup and highlighting. No column is cut; the terminal breaks long lines. A log gets no padding."""
    widen(target, renderable)
    with nullcontext() if target.is_terminal else target.capture() as captured:
        target.print(renderable, markup=False, highlight=False, crop=False)
    if captured:
        target.file.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))
        target.file.flush()


@contextmanager
def counter(unit: str) -> Iterator[Callable[[int, int, str], None]]:
    """A function `advance(done, total, now)` that shows a count and what runs now on stderr. A log gets a line each LOG_SECONDS.

    The signal of a timer writes the line, so that one long case does not silence the log.
    """
    terminal, line = sys.stderr.isatty() and not verbosity.quiet(), ""

    def advance(done: int, total: int, now: str) -> None:
        nonlocal line
        line = f"{done} of {total} {unit}; now {now}"
        if terminal:
            sys.stderr.write(f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K")
            sys.stderr.flush()

    def tell(signum: int, frame: FrameType | None) -> None:
        with suppress(OSError, RuntimeError):  # the signal may come while stderr is written
            sys.stderr.write(f"softbench: {line}\n" if line else "")

    before = signal.signal(signal.SIGALRM, tell)
    signal.setitimer(signal.ITIMER_REAL, *(0, 0) if terminal or verbosity.quiet() else (LOG_SECONDS, LOG_SECONDS))
    try:
        yield advance
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        with suppress(OSError):  # the terminal is gone; an interruption must not become another error
            if terminal:
                sys.stderr.write("\r\x1b[K")


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT, SIGTERM, SIGHUP and SIGUSR1 raise Interrupted, so that workers end; a later signal ends this process, also after the block.

    SIGUSR1 is what users of Slurm let it send before a time limit.

    A terminal and a program that passes signals on send two, so one within AGAIN_SECONDS is the same interruption.
    """
    interrupted: list[int] = []

    def ignore() -> None:
        for signum in handlers:  # Python ends with the default handlers, which would replace the exit code
            signal.signal(signum, signal.SIG_IGN)

    def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
        first = time.monotonic()
        interrupted.append(signum)
        atexit.register(ignore)

        def again(number: int, frame: FrameType | None) -> None:
            if time.monotonic() - first > AGAIN_SECONDS:
                os._exit(128 + number)  # the workers end with their forkserver

        for other in handlers:
            signal.signal(other, again)
        raise Interrupted(signum)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    # An ignored signal stays ignored, as nohup requires.
    handlers = {signum: signal.signal(signum, interrupt) for signum in signals if signal.getsignal(signum) is not signal.SIG_IGN}
    try:
        yield
    finally:
        if not interrupted:  # else the command reports what it has, and ends
            for signum, handler in handlers.items():
                signal.signal(signum, handler)
