"""Why a worker is dead or late: the line of its log that says where it was, its signal, and what Linux says of it."""

from __future__ import annotations

import os
import re
import signal
import sysconfig
from contextlib import suppress
from pathlib import Path

import softbench
from softbench.core.text import in_words

FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<name>\S+)')

SOURCE_BYTES = 1 << 20
"""The largest source file that is read for a message."""
HEAP = re.compile(r"double free|(free|malloc|realloc|munmap_chunk|malloc_consolidate|calloc)\(\): |corrupted |break adjusted")
"""How glibc begins its line on a damaged heap. It sees the damage at a later call, so no frame tells the place."""
CURRENT = "Current thread"
"""Where a dump has the thread that crashed."""
STANDARD = sysconfig.get_path("stdlib")
OWN = Path(softbench.__file__).parent


def useful_line(log: Path) -> str:
    """The most useful line of a dead worker's log: the top Python frame of a crash, glibc's word on the heap, else the last line."""
    with suppress(OSError):
        text = tail(log, 1 << 16)
        before, error, after = text.rpartition("Fatal Python error")
        said = ([""] + [line.strip() for line in (before or text).splitlines() if line.strip()])[-1]
        if error and HEAP.match(said):
            return f"the heap is damaged, as by a write outside a tensor ({said})"
        return top_frame(after) if error else said
    return ""


def tail(log: Path, most: int, begin: int = 0) -> str:
    """The text after the byte `begin`, of which the last `most` bytes. Raises OSError if there is no such file."""
    with log.open("rb") as file:
        file.seek(max(begin, os.fstat(file.fileno()).st_size - most))
        return file.read(most).decode(errors="replace")


def top_frame(text: str) -> str:
    """`in name, file.py:12: code` of the innermost frame of a plugin in a fault handler's dump, or of the innermost one."""
    current = text[max(0, text.find(CURRENT)) :].partition("\n\n")[0]  # other threads may come first
    frames = [*FRAME.finditer(current)] or [*FRAME.finditer(text)]
    for frame in [frame for frame in frames if not _of_library(frame["file"])] or frames:
        return in_words(frame["name"], Path(frame["file"]), int(frame["line"]), _source_line(Path(frame["file"]), int(frame["line"])))
    return ""


def _source_line(file: Path, number: int) -> str:
    """A line of a source file; empty if it cannot be read. The worker named the file, so it may be anything."""
    with suppress(OSError, IndexError, ValueError):
        if file.suffix == ".py" and file.is_file() and file.stat().st_size <= SOURCE_BYTES:
            return file.read_text(errors="replace").splitlines()[number - 1]
    return ""


def _of_library(file: str) -> bool:
    return file.startswith("<") or "/site-packages/" in file or Path(file).is_relative_to(STANDARD) or Path(file).is_relative_to(OWN)


def signal_name(number: int) -> str:
    """The name of a signal, or its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def state(pid: int) -> str:
    """The letter of a process's state in proc(5); empty if the process does not exist."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def oom_kills(file: Path = Path("/proc/vmstat")) -> int:
    """How many processes Linux has killed for lack of memory since it started; 0 if it does not say."""
    with suppress(OSError, StopIteration):
        return int(next(line for line in file.read_text().splitlines() if line.startswith("oom_kill ")).split()[1])
    return 0
