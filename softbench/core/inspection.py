"""The result of `softbench inspect`: the code generated for a backend's call, and facts about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from softbench.core.json_types import JsonObject
from softbench.core.text import one_line, printable

KINDS = ("source", "wrapper", "ttir", "ttgir", "llir", "ptx", "sass", "report")
"""Of code, from what a compiler was given or wrote to what the device runs; `wrapper` is Inductor's
Python around its kernels, `report` what the assembler says."""
NAME_CHARACTERS = 1000
"""Maximum length of a kernel's name; C++ templates make long names."""
LANGUAGES = {"ttir": "llvm", "ttgir": "llvm", "llir": "llvm", "ptx": "gas", "sass": "gas", "report": "text"}
"""The highlighter's language for each kind; a `source` names its own."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A piece of generated code."""

    name: str
    """File name."""
    kind: str
    """One of KINDS."""
    language: str
    """The highlighter's language: `python`, `cpp`, `llvm`, ..."""
    text: str


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel of a call. An unknown value is None."""

    name: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int | None = None
    """Registers per thread."""
    spilled_bytes: int | None = None
    """Bytes per thread spilled to local memory."""
    shared_bytes: int | None = None
    """Shared memory per block."""
    moved_bytes: int | None = None
    """Bytes read and written, by the compiler's count; for the only kernel of a call the algorithmic bytes."""
    counted_by: str = ""
    """The source of `moved_bytes`."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Facts, kernels and code of one case."""

    facts: tuple[tuple[str, str], ...]
    launches: tuple[Launch, ...]
    artifacts: tuple[Artifact, ...]

    def document(self) -> JsonObject:
        """The inspection as JSON."""
        return asdict(self)


def from_json(data: JsonObject) -> Inspection:
    """The inverse of `Inspection.document`.

    Raises:
        KeyError, TypeError, ValueError: it is invalid.
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


def _launch(data: JsonObject) -> Launch:
    grid, block = (tuple(int(extent) for extent in data[key]) for key in ("grid", "block"))
    counts = ("registers", "spilled_bytes", "shared_bytes", "moved_bytes")
    registers, spilled, shared, moved = (None if data[key] is None else int(data[key]) for key in counts)
    return Launch(one_line(data["name"], NAME_CHARACTERS), grid, block, registers, spilled, shared, moved, one_line(data["counted_by"]))
