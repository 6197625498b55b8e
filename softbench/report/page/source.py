"""What a page shows of one results file: its rows, and the raw samples of the JSON beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from softbench.core.case import CaseKey
from softbench.core.json_types import JsonObject
from softbench.core.outcome import Record
from softbench.core.text import one_line
from softbench.results.rows import Row

Key = tuple[str, CaseKey]
"""A cell: the name of its backend, and its case."""


@dataclass(frozen=True, slots=True)
class Source:
    """One results file of a page."""

    name: str
    """The name of the file."""
    rows: Sequence[Row]
    """The rows of the CSV."""
    header: JsonObject = field(default_factory=dict)
    """The run document without its cells; empty if there is none."""
    records: Mapping[Key, Record] = field(default_factory=dict)
    """The records with raw samples; empty without a run document."""
    missing: str = ""
    """Why there are no samples; empty if there are."""

    @property
    def device(self) -> str:
        """The devices of the file."""
        return " and ".join(dict.fromkeys(row.device for row in self.rows))

    @property
    def run(self) -> str:
        """The name of the run."""
        return self.rows[0].run

    @property
    def commit(self) -> str:
        """The commit of softbench, or the name of the run if the commit is unknown."""
        return one_line(str(self.header.get("git_commit") or self.run), 60)

    @property
    def started(self) -> str:
        """When the run began, in ISO 8601; empty if it is unknown."""
        return one_line(str(self.header.get("started") or ""), 40)
