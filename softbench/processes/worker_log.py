"""Why a worker is dead or late: the line of its log that says where it was, and the name of its signal."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from pathlib import Path

FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<name>\S+)')


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
    """`in name, file.py:12` of the first frame in a fault handler's dump; the file without its folder."""
    if frame := FRAME.search(text):
        return f"in {frame['name']}, {Path(frame['file']).name}:{frame['line']}"
    return ""


def signal_name(number: int) -> str:
    """The name of a signal, or its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
