"""The results CSV: writing and reading it. `columns.Row` declares the columns."""

from __future__ import annotations

import csv
import hashlib
import io
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import MISSING
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from softbench.core.case import MAX_CELLS
from softbench.core.errors import ResultsError
from softbench.core.files import reject_folder
from softbench.core.text import count, one_line, size
from softbench.results.columns import FIELDS, FORMULA, Row
from softbench.results.document import CSV, GZIP, SUFFIXES, digests, interrupted, load_header, new_digest

if TYPE_CHECKING:
    from softbench.results.column_store import ColumnStore

MAX_BYTES = MAX_CELLS * 2**15
"""A larger file is not read. A cell takes 270 bytes, and at most 32 KiB: its texts have 300 characters at most."""
COLUMNS = tuple(FIELDS)
REQUIRED = tuple(name for name, field in FIELDS.items() if field.default is MISSING)
"""Columns that a file must have. A column with a default may be younger than the file."""
FOLDER, LATEST = Path("results"), "latest.csv"
ATTEMPTS, RETRY_SECONDS = 3, 0.1  # a run may have replaced one of the two files of `latest`, and not yet the other
LINES = 4096
"""Lines that are read together."""


def to_csv(rows: Iterable[Row], *, header: bool = True) -> str:
    """The whole file as text, or lines to append to it. Numbers have six significant digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(COLUMNS)
    for item in rows:
        writer.writerow([_cell(getattr(item, field.name)) for field in FIELDS.values()])
    return out.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _text(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@lru_cache(maxsize=1024)  # most texts of a file are few words
def _text(value: str) -> str:
    text = one_line(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def read_csv(path: Path, keep: Collection[str] | None = None, *, stored: bool = True) -> tuple[ColumnStore, list[str]]:
    """Rows of a results file, and warnings. A torn last line is dropped with a warning. `keep`: the fields that rows have; None for all.

    A `stored` file is compared with the digest in the JSON beside it. Without that digest there is a warning, as of an interrupted run.

    Raises:
        ResultsError: the file is missing, not text or not a results file, or has a damaged line; with file, line and reason. Or the JSON
            beside it has the digest of another content.
    """
    reject_folder(path)
    try:
        with path.open("rb") as file:
            if (length := path.stat().st_size) > MAX_BYTES:
                raise ResultsError(f"{path}: is larger than {size(MAX_BYTES)}, so it is no results file")
            if file.read(2**10).lstrip().startswith((b"{", GZIP)):
                raise ResultsError(f"{path}: is JSON; give the .csv beside it")
            file.seek(max(0, length - 1))
            torn = file.read() != b"\n"
        with path.open(encoding="utf-8-sig", newline="") as text:
            rows, warnings = _read(path, text, keep, torn=torn)
        return rows, [*warnings, *(unvouched(path) if stored else ())]
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}{f'; {_hint(path)}' if isinstance(error, FileNotFoundError) else ''}") from None
    except UnicodeDecodeError:
        raise ResultsError(f"{path}: is not text; give the .csv that softbench run wrote") from None


def _hint(missing: Path) -> str:
    """What to do where a results file is missing: `softbench runs` prints names without their folder."""
    stored = FOLDER / missing.with_suffix(".csv").name
    if missing.parent in (Path(), FOLDER) and stored.is_file():
        return f"did you mean {stored}?"
    return "softbench run writes it" if missing.name == LATEST else f"softbench runs {missing.parent} lists what is there"


def digest_of(content: bytes) -> str:
    """The digest of a CSV, which its JSON has."""
    return str(new_digest(content).hexdigest())


def unvouched(path: Path) -> list[str]:
    """Warnings if the JSON beside a CSV cannot tell whether it is as its run wrote it, or tells that its run was interrupted.

    Raises:
        ResultsError: it tells that the CSV was changed.
    """
    documents = [file for suffix in SUFFIXES if (file := path.with_suffix(suffix)).exists()]
    if not documents:
        unfinished = path.with_suffix(".jsonl").exists()
        return [] if unfinished else [f"{path}: the JSON of its run is not beside it, so a changed number is not noticed"]
    for attempt in range(ATTEMPTS if path.name == LATEST else 1):
        time.sleep(RETRY_SECONDS * attempt)
        try:
            stored = digests(documents[0]).get(CSV)
            told = interrupted(load_header(documents[0])) if stored else ""  # all is read of JSON in other lines
        except ResultsError as error:
            return [f"{error}; so a changed number in {path.name} is not noticed"]
        if stored is None:
            return [f"{path}: {documents[0].name} has no digest of it, so a changed number is not noticed"]
        with path.open("rb") as content:
            if hashlib.file_digest(content, new_digest).hexdigest() == stored:
                return [f"{path}: {told}"] if told else []
    raise ResultsError(
        f"{path}: is not the table that {documents[0].name} belongs to: it was changed, or is of another run; copy both files again; "
        "to read a table that you edited or filtered, give it a name of its own"
    )


def _read(path: Path, text: TextIO, keep: Collection[str] | None, *, torn: bool) -> tuple[ColumnStore, list[str]]:
    """`torn`: the last line has no end, so it may be a part of one."""
    from softbench.results.column_store import ColumnStore  # not to write a file

    reader = csv.reader(text, strict=True)
    rows = None
    try:
        header = next(reader, [])
        if not "".join(header).strip():
            raise ResultsError(f"{path}: is empty; give the .csv that softbench run wrote")
        if missing := [column for column in REQUIRED if column not in header]:
            raise ResultsError(f"{path}: line 1: not a softbench results file: column {', '.join(missing[:3])} is missing")
        rows = ColumnStore(header, keep)
        for lines in _chunks(reader):
            _add(rows, lines)
            if len(rows) > MAX_CELLS:
                raise ResultsError(f"{path}: has more than {count(MAX_CELLS, 'cell')}, and softbench reads no more; split the file")
    except (ValueError, csv.Error) as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        line = reader.line_num if rows is None or isinstance(error, csv.Error) else len(rows) + 2
        if not (torn and rows is not None and line >= reader.line_num and next(reader, None) is None):
            raise ResultsError(f"{path}: line {line}: {error}; copy the file again, or measure again") from None
        return rows.close(), [f"{path}: the last line is torn and was dropped; the run that wrote it may have been interrupted"]
    if not rows:
        raise ResultsError(f"{path}: holds no cells; give a file of a run that measured some: softbench runs lists them")
    return rows.close(), []


def _chunks(reader: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    """The lines in lists; those before an invalid line before its error."""
    while True:
        lines: list[list[str]] = []
        try:
            lines.extend(islice(reader, LINES))  # keeps what came before an error
        except csv.Error:
            yield lines
            raise
        if not lines:
            return
        yield lines


def _add(rows: ColumnStore, lines: list[list[str]]) -> None:
    """Add lines to the rows. Raises the ValueError of the first invalid line, when those before it are added."""
    try:
        rows.add(lines)
    except ValueError:
        for line in lines:
            rows.add([line])
