"""The results CSV: writing and reading it. `rows.Row` declares the columns."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import MISSING, fields
from pathlib import Path

from softbench.core.case import DTYPES, MAX_CELLS, NAME, Direction, parse_op, valid_shape
from softbench.core.errors import ResultsError
from softbench.core.json import JsonObject
from softbench.core.outcome import Grade, Status
from softbench.core.text import one_line, size
from softbench.results.document import GZIP
from softbench.results.records import unit_text
from softbench.results.rows import IMPLAUSIBLE, Row

FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are full-width signs
"""A text with such a first character is a formula for a spreadsheet: writing adds an apostrophe, reading removes it."""
MAX_BYTES = 2**30
"""A larger file is not read. A cell takes 270 bytes."""
COLUMNS = tuple("class" if field.name == "grade" else field.name for field in fields(Row))
REQUIRED = tuple("class" if field.name == "grade" else field.name for field in fields(Row) if field.default is MISSING)
"""Columns that a file must have. A column with a default may be younger than the file."""
TYPES = {field.name: field.type for field in fields(Row)}
ONE_OF = {
    "dtype": set(DTYPES),
    "grade": {grade.value for grade in Grade} | {""},
    "status": {status.value for status in Status},
    "direction": {direction.value for direction in Direction},
}


def to_csv(rows: Iterable[Row], *, header: bool = True) -> str:
    """The whole file as text, or lines to append to it. Numbers have six significant digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(COLUMNS)
    for item in rows:
        writer.writerow([_cell(getattr(item, name)) for name in TYPES])
    return out.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        text = one_line(value)
        return f"'{text}" if text.startswith(FORMULA) else text
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_csv(path: Path) -> tuple[list[Row], list[str]]:
    """Rows of a results file, and warnings. A torn last line is dropped with a warning.

    Raises:
        ResultsError: the file is missing, not text or not a results file, or has a damaged line; with file, line and reason.
    """
    if path.exists() and not path.is_file():
        raise ResultsError(f"{path}: is not a file")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ResultsError(f"{path}: is larger than {size(MAX_BYTES)}, so it is no results file")
        content = path.read_bytes()
        if content.lstrip().startswith((b"{", GZIP)):
            raise ResultsError(f"{path}: is JSON; give the .csv beside it")
        text = content.decode("utf-8-sig")
    except OSError as error:
        hint = "; softbench run writes it" if path.name == "latest.csv" and isinstance(error, FileNotFoundError) else ""
        raise ResultsError(f"{path}: {error.strerror}{hint}") from None
    except UnicodeDecodeError:
        raise ResultsError(f"{path}: is not text; give the .csv that softbench run wrote") from None
    if (lines := text.count("\n")) > MAX_CELLS + 1:
        raise ResultsError(f"{path}: has {lines} lines, and softbench reads at most {MAX_CELLS} cells; split the file")
    if not text.strip():
        raise ResultsError(f"{path}: is empty; give the .csv that softbench run wrote")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[Row] = []
    try:
        header = next(reader, [])
        missing = [column for column in REQUIRED if column not in header]
        if missing:
            raise ResultsError(f"{path}: line 1: not a softbench results file: column {', '.join(missing[:3])} is missing")
        seen = set()
        for values in reader:
            row = _row_of(dict(zip(header, values, strict=True)))
            if (row.unit, row.backend, row.case) in seen:
                raise ValueError(f"{row.backend} has this case twice")
            seen.add((row.unit, row.backend, row.case))
            rows.append(row)
    except (ValueError, csv.Error) as error:
        if not text.endswith("\n") and reader.line_num >= len(text.splitlines()):
            return rows, [f"{path}: the last line is torn and was dropped; the run that wrote it may have been interrupted"]
        reason = "has another number of values than the header" if "zip()" in str(error) else str(error)
        raise ResultsError(f"{path}: line {reader.line_num}: {reason}") from None
    if not rows:
        raise ResultsError(f"{path}: holds no cells")
    return rows, []


def _row_of(values: dict[str, str]) -> Row:
    found: JsonObject = {}
    for name, kind in TYPES.items():
        column = "class" if name == "grade" else name
        if (text := values.get(column)) is None:
            continue
        if name in ONE_OF and text not in ONE_OF[name]:
            raise ValueError(f"{column}: unknown '{text[:40]}'")
        try:
            found[name] = _value(text, str(kind))
        except ValueError:
            raise ValueError(f"{column}: '{text[:40]}' is not a number") from None
    row = Row(**found)
    if not NAME.fullmatch(row.backend):
        raise ValueError(f"backend: '{row.backend[:40]}' is no name of one")
    try:
        parse_op(row.op)
    except ValueError as error:
        raise ValueError(f"op: {error}") from None
    if not (0 < row.M < 2**63 and 0 < row.N < 2**63):
        raise ValueError("M and N must be positive")
    if not valid_shape(row.shape, row.M, row.N):
        raise ValueError(f"shape: '{row.shape[:40]}' is no shape of {row.M} rows and {row.N} columns")
    try:
        unit_text(row.unit)
    except ValueError as error:
        raise ValueError(f"unit: {error}") from None
    times = (row.median_us, row.p20_us, row.p80_us, *(() if row.timer == "host" or IMPLAUSIBLE in row.labels else (row.gbps,)))
    if row.status == Status.OK and (row.grade in (Grade.WRONG, Grade.UNVERIFIED) or not all(f and 0 < f < math.inf for f in times)):
        raise ValueError("status is ok, but there is no bandwidth, or a class that has none")
    for name in ("low_us", "high_us", "device_us", "host_us", "do_bench_us"):
        if not (getattr(row, name) is None or 0 <= getattr(row, name) < math.inf):
            raise ValueError(f"{name}: {getattr(row, name):g} is no time")
    if not all(ratio is None or 0 < ratio < math.inf for ratio in (row.of_copy, row.speedup, row.of_peak)):
        raise ValueError("of_copy, speedup and of_peak must be positive numbers")
    if row.gbps and row.of_peak and not 0 < row.gbps / row.of_peak < math.inf:
        raise ValueError(f"of_peak: {row.of_peak:g} is no fraction of a datasheet bandwidth")
    return row


def _value(text: str, kind: str) -> str | int | float | None:
    if kind == "str":
        unquoted = text[1:] if text.startswith("'") and text[1:].startswith(FORMULA) else text
        return one_line(unquoted)  # a foreign file may hold escape sequences
    if not text and "None" in kind:
        return None
    return int(text) if kind.startswith("int") else float(text)
