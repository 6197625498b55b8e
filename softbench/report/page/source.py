"""What a page shows of one results file: its rows, and the raw samples of the JSON beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from softbench.core.case import CaseKey
from softbench.core.errors import ResultsError
from softbench.core.json import JsonObject
from softbench.core.outcome import Record
from softbench.core.text import one_line
from softbench.results.columns import Row
from softbench.results.document import beside, stream, units_of
from softbench.results.records import record_from_json

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
    def started(self) -> str:
        """When the run began, in ISO 8601; empty if it is unknown."""
        return one_line(str(self.header.get("started") or ""), 40)


def names(files: Sequence[Path]) -> list[str]:
    """The names of the files, with as many of their folders as part them. A file that is given twice has a number."""
    parts = [file.absolute().parts for file in files]
    depth = next(n for n in range(1, 1 + max(map(len, parts))) if len({one[-n:] for one in parts}) == len(set(parts)))
    found = ["/".join(one[-depth:]) for one in parts]
    return [name if found.count(name) == 1 else f"{name} ({1 + found[:i].count(name)})" for i, name in enumerate(found)]


def read_source(path: Path, rows: Sequence[Row], name: str = "") -> Source:
    """A results file with the JSON of its name. A JSON that is missing, damaged or of another run gives no samples, and a reason.

    `rows` are those of the file, or one of its parts (`softbench.results.select.apart`). `name` is what the page calls the file, by default
    the name of the path.
    """
    document_path = beside(path)
    name = one_line(name or path.name, 120)
    if not document_path.is_file():
        return Source(name, rows, missing=f"{one_line(document_path.name, 120)} is not beside {name}, and that file has the samples")
    try:
        document = stream(document_path)
        if document.get("run") != rows[0].run:
            raise ResultsError(f"{document_path.name}: is of {one_line(str(document.get('run')), 60)}, and {name} is of {rows[0].run}")
        records = [record_from_json(cell) for cell in document.pop("cells")]
        units_of(document)
    except ResultsError as error:
        return Source(name, rows, missing=one_line(str(error).replace(str(document_path), document_path.name)))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        return Source(name, rows, missing=one_line(f"{document_path.name}: a cell is damaged: {type(error).__name__}: {error}"))
    units = list(dict.fromkeys(row.unit for row in rows))
    if len(units) == 1 and (facts := units_of(document).get(units[0])):
        document = {**document, "environment": facts, "device_name": rows[0].device}
    return Source(name, rows, document, {(record.backend, record.case.identity): record for record in records if record.unit in units})
