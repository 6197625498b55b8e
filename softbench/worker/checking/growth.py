"""What grows with each call of a backend: Python objects, memory of the host and the device, threads and files."""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

UNITS = {
    "Python objects": 0.9,
    "memory": 4.0,
    "address space": mmap.PAGESIZE / 2,
    "device memory": 256.0,
    "threads": 0.5,
    "open files": 0.5,
}
"""By what grows, the least growth of a call that is a leak. Memory is in bytes: a list grows by 8, a mapping by a page."""
LEAST = {"memory": 1024, "address space": 2**20}
"""Growth between two marks below which there is no leak: the allocator's own records vary."""
WINDOWS = 3
"""Windows in which it grows. Each has as many calls as all before it, so what is bounded has stopped to grow."""
SECONDS = 0.1
"""Threads of the last calls end meanwhile."""
MOST = {"memory": 2**28, "device memory": 2**28, "open files": 512}
"""Growth beyond which nobody calls again. Many open files take long to count, and a process may have a limit of them."""


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "mapped", "u", "f", "used", "free", "top")]


_mallinfo: Any = getattr(ctypes.CDLL(None), "mallinfo2", _Mallinfo)  # another C library than glibc counts nothing
_mallinfo.restype = _Mallinfo


class Growth:
    """Counts at marks, whose numbers of calls double."""

    def __init__(self, device: str, step: int) -> None:
        """`step`: calls from one count to the next."""
        self.on_gpu, self.step, self.calls, self.due = device == "cuda", step, 0, step
        self.marks = [(0, self._counts())]

    def called(self) -> bool:
        """Count the calls of a step. False if so much has grown that none should follow."""
        self.calls += self.step
        if self.calls >= self.due:
            self.marks.append((self.calls, self._counts()))
            self.due *= 2
        (_, first), (_, last) = self.marks[0], self.marks[-1]
        return all(last[name] - first[name] < most for name, most in MOST.items())

    @property
    def measured(self) -> bool:
        """Whether there were enough calls."""
        return len(self.marks) > WINDOWS

    def leak(self) -> str:
        """What every call keeps, in words; empty if nothing."""
        marks = self.marks[-WINDOWS - 1 :]
        windows = list(pairwise(marks))
        found = [
            name
            for name, unit in UNITS.items()
            if all(now[name] - old[name] >= max(unit * (calls - before), LEAST.get(name, 0)) for (before, old), (calls, now) in windows)
        ]
        if not found or not self.measured:
            return ""
        gc.collect()
        time.sleep(SECONDS)
        (before, old), now = marks[0], self._counts()
        kept = [name for name in found if now[name] - old[name] >= UNITS[name] / 2 * (self.calls - before)]
        return f"keeps {' and '.join(kept)} of every call" if kept else ""

    def _counts(self) -> dict[str, int]:
        info = _mallinfo()
        return {
            "Python objects": sys.getallocatedblocks(),
            "memory": info.used + info.mapped,
            "address space": mmap.PAGESIZE * _number("/proc/self/statm"),
            "device memory": torch.cuda.memory_allocated() if self.on_gpu else 0,
            "threads": _entries("/proc/self/task"),
            "open files": _entries("/proc/self/fd"),
        }


def _entries(folder: str) -> int:
    """How many files a folder has; 0 where there is none, as on systems without /proc."""
    with suppress(OSError):
        return sum(1 for _ in Path(folder).iterdir())
    return 0


def _number(file: str) -> int:
    """The first number of a file of /proc; 0 where there is none."""
    with suppress(OSError):
        return int(Path(file).read_text().split()[0])
    return 0
