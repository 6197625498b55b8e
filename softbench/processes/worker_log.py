"""Why a worker is dead or late: the line of its log that says where it was, and the name of its signal."""

from __future__ import annotations

import re
import signal
import sysconfig
from contextlib import suppress
from pathlib import Path

import softbench

FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<name>\S+)')

CURRENT = "Current thread"
"""Where a dump has the thread that crashed."""
STANDARD = sysconfig.get_path("stdlib")
OWN = Path(softbench.__file__).parent


def useful_line(log: Path) -> str:
    """The most useful line of a dead worker's log: the top Python frame of a crash, else the last line."""
    with suppress(OSError):
        text = log.read_bytes()[-(1 << 16) :].decode(errors="replace")
        if "Fatal Python error" in text:
            return top_frame(text[text.rindex("Fatal Python error") :])
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else ""
    return ""


def top_frame(text: str) -> str:
    """`in name, file.py:12` of the innermost frame of a plugin in a fault handler's dump, or of the innermost one; without its folder."""
    current = text[max(0, text.find(CURRENT)) :].partition("\n\n")[0]  # other threads may come first
    frames = [*FRAME.finditer(current)] or [*FRAME.finditer(text)]
    for frame in [frame for frame in frames if not _of_library(frame["file"])] or frames:
        return f"in {frame['name']}, {Path(frame['file']).name}:{frame['line']}"
    return ""


def _of_library(file: str) -> bool:
    return file.startswith("<") or "/site-packages/" in file or Path(file).is_relative_to(STANDARD) or Path(file).is_relative_to(OWN)


def signal_name(number: int) -> str:
    """The name of a signal, or its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
