"""One measurement at a time on a device: two at once would measure each other, so the second waits for the first.

The queue is a locked file in the user's cache folder, one for each device of this boot of the machine. The kernel ends the lock with its
process. Runs of other users and containers have other folders; the label `busy` and the note on other processes of a GPU remain for them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import IO

from softbench.core.machine import Gpu, boot_id
from softbench.core.text import one_line
from softbench.kernels.common.cuda_toolkit import cache_folder
from softbench.processes.activity import Activity

SWITCH = "SOFTBENCH_QUEUE"
"""An environment variable; `off` measures at once."""


class Place:
    """A run's place in the queue of a device."""

    def __init__(self, gpu: Gpu | None) -> None:
        """`gpu` is None for the CPU: the processors of this process, as runs on others do not disturb."""
        self.device = "GPU" if gpu else "CPU"
        self._file = _file(gpu.uuid if gpu else f"cpu {sorted(os.sched_getaffinity(0))}")

    def take(self) -> bool:
        """True if no other run measures on the device; none will until `leave`."""
        if self._file is None:
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        self.tell("a run")
        return True

    def wait(self, activity: Activity, note: Callable[[str], object]) -> None:
        """Wait until it is this run's turn. `note` gets a text for the user."""
        if self._file is None:
            return
        other = self._holder()
        note(f"waiting for {other} to finish: two measurements on one {self.device} disturb each other; Ctrl-C gives up")
        with activity.waiting("queue", [other]):
            fcntl.flock(self._file, fcntl.LOCK_EX)  # a signal ends it with an exception
        self.tell("a run")

    def tell(self, name: str) -> None:
        """Write down what measures now, for runs that wait."""
        if self._file is not None:
            with suppress(OSError):
                self._file.seek(0)
                self._file.truncate()
                json.dump({"run": name, "pid": os.getpid(), "since": f"{datetime.now(UTC):%H:%M:%S} UTC"}, self._file)
                self._file.flush()

    def leave(self) -> None:
        """Let the next run measure."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _holder(self) -> str:
        assert self._file is not None
        with suppress(OSError, ValueError, KeyError, TypeError):
            self._file.seek(0)
            found = json.load(self._file)
            return one_line(f"{found['run']} (process {int(found['pid'])}, since {found['since']})", 120)
        return "another run"


def _file(what: str) -> IO[str] | None:
    """The open file of a queue in this boot of the machine; None without a queue."""
    if os.environ.get(SWITCH) == "off":
        return None
    name = hashlib.sha256(f"{boot_id()} {what}".encode()).hexdigest()[:16]
    with suppress(OSError):  # without a folder there is no queue
        folder = cache_folder() / "queue"
        folder.mkdir(parents=True, exist_ok=True)
        return os.fdopen(os.open(folder / f"{name}.json", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+", encoding="utf-8")
    return None


@contextmanager
def several(note: Callable[[str], object]) -> Iterator[None]:
    """In the context this command alone takes the places of several devices.

    Of two commands that took them at once, each could hold a device for which the other waits, without end.
    """
    with _file("several devices") or nullcontext() as file:
        if file is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                note("waiting until another command with several cards has opened them; Ctrl-C gives up")
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:  # a file system without locks
                pass
        yield


@contextmanager
def place(gpu: Gpu | None) -> Iterator[Place]:
    """A place that is left at the end."""
    found = Place(gpu)
    try:
        yield found
    finally:
        found.leave()
