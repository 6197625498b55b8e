"""Reads the raw samples of a results file from the JSON beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from softbench.core.errors import ResultsError
from softbench.core.text import one_line
from softbench.gate.run_files import load
from softbench.report.page.source import Source
from softbench.results.records import record_from_json
from softbench.results.rows import Row


def source(path: Path, rows: Sequence[Row]) -> Source:
    """A results file with the JSON of its name. A JSON that is missing, damaged or of another run gives no samples, and a reason."""
    document_path = path.with_suffix(".json")
    name = one_line(path.name, 120)
    if not document_path.is_file():
        return Source(name, rows, missing=f"{one_line(document_path.name, 120)} is not beside {name}, and that file has the samples")
    try:
        document = load(document_path)
        if document.get("run") != rows[0].run:
            raise ResultsError(f"{document_path.name}: is of {one_line(str(document.get('run')), 60)}, and {name} is of {rows[0].run}")
        records = [record_from_json(cell) for cell in document.pop("cells")]
    except ResultsError as error:
        return Source(name, rows, missing=one_line(str(error).replace(str(document_path), document_path.name)))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        return Source(name, rows, missing=one_line(f"{document_path.name}: a cell is damaged: {type(error).__name__}: {error}"))
    return Source(name, rows, document, {(record.backend, record.case.identity): record for record in records})
