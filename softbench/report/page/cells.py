"""The lines of a page's tables: cells, cells without a result by reason, heat maps, and facts of the environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softbench.core import text as units
from softbench.core.outcome import FAILURES, LIMITED, Status
from softbench.report import matrix
from softbench.report.page.source import Source
from softbench.results.rows import Row

NUMBERS = frozenset({"median", "95 % interval", "GB/s", "of copy", "speed-up", "device time", "error / bound"})
"""The right-aligned columns."""
COLUMNS = {
    **{"pass": "pass", "dtype": "dtype", "shape": "shape", "status": "status", "class": "class"},
    **{"median": "median_us", "95 % interval": "low_us", "GB/s": "gbps", "of copy": "of_copy", "speed-up": "speedup"},
    **{"device time": "device_us", "error / bound": "error_over_bound", "labels": "labels"},
}
"""The columns beside the backend and the file, and what each sorts by: a column of the CSV, the pass, or the shape by M and N."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table of cells."""

    number: int
    """The index of the cell in the page's data."""
    texts: tuple[str, ...]
    kind: str
    """`bad`, `warn`, `plain` or empty: how it is shown."""


def lines(sources: Sequence[Source]) -> list[Line]:
    """A line per cell, in the order of the page's data."""
    pairs = [(source.name, row) for source in sources for row in source.rows]
    several = len(sources) > 1
    return [Line(number, (row.backend, *([file] if several else []), *_texts(row)), _kind(row)) for number, (file, row) in enumerate(pairs)]


def columns(sources: Sequence[Source]) -> dict[str, str]:
    """The columns of the table, and what each sorts by. Of several files, the file stands beside the backend."""
    return {"backend": "backend", **({"file": "file"} if len(sources) > 1 else {}), **COLUMNS}


def _kind(row: Row) -> str:
    if row.status in FAILURES:
        return "bad"
    if row.status != Status.OK:
        return "plain"
    return "warn" if matrix.doubtful(row) or row.grade in LIMITED else ""


def _texts(row: Row) -> tuple[str, ...]:
    """The texts of COLUMNS."""
    return (
        *(row.of_pass, row.dtype, row.case.size, row.status, row.grade),
        units.micros(row.median_us) if row.median_us else "",
        interval(row),
        units.three_digits(row.gbps) if row.gbps else "",
        units.percent(row.of_copy) if row.of_copy else "",
        f"{units.ratio(row.speedup)}x" if row.speedup else "",
        units.micros(row.device_us) if row.device_us else "",
        f"{row.error_over_bound:.3g}" if row.error_over_bound is not None else "",
        row.labels,
    )


def interval(row: Row) -> str:
    """The 95 % interval of the median of all samples: `8.74 to 8.77 us`; empty if it is unknown."""
    if not (row.low_us and row.high_us):
        return ""
    (low, unit), (high, other) = (units.micros(us).split(" ") for us in (row.low_us, row.high_us))
    return f"{low} to {high} {unit}" if unit == other else f"{low} {unit} to {high} {other}"
