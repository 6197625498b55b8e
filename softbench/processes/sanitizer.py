"""Runs the workers under compute-sanitizer's memcheck, and reads what it reports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Each tensor is an allocation of its own, so that an access beyond it is not inside another one."""
ERROR = re.compile(
    r"^=+ (?P<what>(?:Invalid|Misaligned)[^\n]*)\n"
    r"(?:=+ +at (?P<kernel>[^\n]+?)(?:\+0x[0-9a-f]+)?(?: in (?P<place>[^\n]+))?\n)?"
    r"(?:=+ +by thread [^\n]*\n)?"
    r"(?:=+ +(?:Access|Address) [^\n]*\n)?"
    r"(?:=+ +and is (?P<distance>[^\n]*?) (?P<side>after|before|inside) [^\n]*?of size (?P<size>[^\n]*)\n)?",
    re.MULTILINE,
)


@dataclass(slots=True)
class Sanitizer:
    """compute-sanitizer, and the part of its logs that is read."""

    program: str
    folder: Path | None = None
    """Where it writes a log for each process; set by the pool."""
    _read: dict[Path, int] = field(default_factory=dict)

    def command(self, folder: Path, target: Sequence[str]) -> list[str]:
        """The command line that runs `target` and its child processes under memcheck."""
        self.folder = folder
        options = ["--tool", "memcheck", "--target-processes", "all", "--report-api-errors", "no", "--print-limit", "1"]
        return [self.program, *options, "--log-file", str(folder / "sanitizer-%p.log"), *target]

    def found(self) -> str:
        """The first error that it reported since the last call, in the user's words; empty without one."""
        told: list[re.Match[str]] = []
        for log in sorted(self.folder.glob("sanitizer-*.log")) if self.folder else ():
            text = log.read_text(errors="replace")
            told += ERROR.finditer(text, self._read.get(log, 0))
            self._read[log] = len(text)
        return _in_words(told[0]) if told else ""


def _in_words(error: re.Match[str]) -> str:
    what = error["what"].strip()
    if access := re.match(r"Invalid __(\w+)__ (read|write|atomic)\w* of size (\d+)", what):
        space, kind, size = access.groups()
        what = f"{ {'read': 'reads', 'write': 'writes'}.get(kind, 'changes') } {size} bytes of {space} memory out of bounds"
    near = (
        f", {re.sub(r'^1 bytes', '1 byte', error['distance'])} {error['side']} an allocation of {error['size']}"
        if error["distance"]
        else ""
    )
    kernel = re.sub(r"\(.*", "", error["kernel"] or "").removeprefix("void ")
    place = f" at {Path(error['place']).name}" if error["place"] else ""
    return f"{what}{near}" + (f", in kernel {kernel}{place}" if kernel else "") + "; compute-sanitizer found it"
