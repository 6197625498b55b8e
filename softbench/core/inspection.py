"""What `softbench inspect` finds: the code that was generated for a backend's call, and its facts. Plain records, for the pipe too."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from softbench.core.text import one_line, printable

KINDS = ("source", "wrapper", "ttir", "ttgir", "llir", "ptx", "sass", "report")
"""Of code, from what a compiler was given or wrote to what the device runs; `wrapper` is Inductor's
Python around its kernels, `report` what the assembler says."""
NAME_CHARACTERS = 1000
"""At most so many of a kernel's name are kept: C++ templates make long ones."""
LANGUAGES = {"ttir": "llvm", "ttgir": "llvm", "llir": "llvm", "ptx": "gas", "sass": "gas", "report": "text"}
"""What a highlighter takes each kind for; `source` says its own."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A piece of generated code."""

    name: str
    """A file's name."""
    kind: str
    """One of KINDS."""
    language: str
    """For a highlighter: `python`, `cpp`, `llvm`, ..."""
    text: str


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel that a call runs. What is not known is None."""

    name: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int | None = None
    """Of a thread."""
    spilled_bytes: int | None = None
    """Of a thread, to local memory."""
    shared_bytes: int | None = None
    """Of a block."""
    moved_bytes: int | None = None
    """What it reads and writes, by its compiler's count or, where it is a call's only kernel, the algorithmic bytes."""
    counted_by: str = ""
    """Who says how much it moves."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """All of it."""

    facts: tuple[tuple[str, str], ...]
    launches: tuple[Launch, ...]
    artifacts: tuple[Artifact, ...]

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def from_json(data: dict[str, Any]) -> Inspection:
    """The inverse of `Inspection.document`.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    facts = tuple((one_line(str(name)), one_line(str(value), NAME_CHARACTERS)) for name, value in data["facts"])
    launches = tuple(_launch(launch) for launch in data["launches"])
    artifacts = tuple(
        Artifact(one_line(piece["name"]), str(piece["kind"]), one_line(piece["language"]), printable(piece["text"]))
        for piece in data["artifacts"]
    )
    if not all(artifact.kind in KINDS and "/" not in artifact.name and artifact.name.strip(".") for artifact in artifacts):
        raise ValueError("a piece of code without a kind or a name")
    return Inspection(facts, launches, artifacts)


def _launch(data: dict[str, Any]) -> Launch:
    grid, block = (tuple(int(extent) for extent in data[key]) for key in ("grid", "block"))
    counts = ("registers", "spilled_bytes", "shared_bytes", "moved_bytes")
    registers, spilled, shared, moved = (None if data[key] is None else int(data[key]) for key in counts)
    return Launch(one_line(data["name"], NAME_CHARACTERS), grid, block, registers, spilled, shared, moved, one_line(data["counted_by"]))
