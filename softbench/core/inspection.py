"""The result of `softbench inspect`: the code generated for a backend's call, and facts about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from softbench.core.json import JsonObject, to_json

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

    name: Annotated[str, Meta(pattern=r"^[^/]*[^/.][^/]*\Z")]
    """File name: it is in no other folder."""
    kind: Annotated[str, Meta(pattern=rf"^({'|'.join(KINDS)})\Z")]
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
        return to_json(self)
