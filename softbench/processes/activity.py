"""What the parent waits for, and how long it waited for each request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Work:
    """What the parent waits for now."""

    op: str
    """The request's name, or `start` for a process."""
    labels: tuple[str, ...]
    """Backends, or plugin sources that are not loaded yet."""
    since: float
    """Time of the clock at its begin."""


@dataclass(slots=True)
class Activity:
    """The waits of one command. Several pools may share it, and another thread may read it."""

    clock: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of waiting by request: where a run's time went."""
    now: Work | None = None
    before: float = 0.0
    """Seconds of waiting before the command's own work began."""

    def continue_after(self, earlier: Activity) -> None:
        """Count what was waited for before, too."""
        for op, spent in earlier.seconds.items():
            self.seconds[op] = self.seconds.get(op, 0.0) + spent
            self.before += spent

    @contextmanager
    def waiting(self, op: str, labels: Sequence[str]) -> Iterator[None]:
        """Count the time in the context as that of `op`."""
        begin = self.clock()
        self.now = Work(op, tuple(labels), begin)
        try:
            yield
        finally:
            self.seconds[op] = self.seconds.get(op, 0.0) + self.clock() - begin
            self.now = None
