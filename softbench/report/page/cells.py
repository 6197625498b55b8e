"""The table of a page's cells, and its cells without a bandwidth, device time or full class by status and reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from softbench.core import text as units
from softbench.core.outcome import FAILURES, LIMITED, Grade, Status
from softbench.core.text import few
from softbench.report.cell_texts import CELL
from softbench.report.page.source import Source
from softbench.results.rows import Row, grouped

EXAMPLES = 4
NO_DEVICE_TIME = "no device time"
MEANING = {
    Status.WRONG: "the output is wrong, so no bandwidth is published",
    Status.FAILED: "an error ended the cell",
    Status.TIMEOUT: "a phase took longer than its deadline",
    Status.OOM: "the memory was too small",
    Status.UNVERIFIED: "the float64 reference could not be computed",
    Status.CHECKED: "correct and not timed: only an interpreter runs it here",
    Status.SKIPPED: "the backend does not support the case",
    Status.UNAVAILABLE: "the backend cannot run on this machine",
    Grade.LOW_PRECISION: "intermediates are rounded more than the dtype requires; the bandwidth is published with a mark",
    Grade.FINITE_ONLY: "NaN in rows that hold -inf, and right in all others",
    NO_DEVICE_TIME: "the median is known, and the profiler recorded nothing",
}
"""What each status, class or lack means."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of cells."""

    name: str
    sort: str
    """What it sorts by: a column of the CSV, the file, the pass, or the shape by M and N."""
    text: Callable[[Row], str]
    number: bool = False
    """True if it is right-aligned."""


COLUMNS = (
    Column("pass", "pass", lambda row: row.of_pass),
    Column("dtype", "dtype", lambda row: row.dtype),
    Column("shape", "shape", lambda row: row.case.size),
    Column("status", "status", lambda row: row.status),
    Column("class", "class", lambda row: row.grade),
    Column("median", "median_us", CELL["median"], number=True),
    Column("95 % interval", "low_us", lambda row: interval(row), number=True),
    Column("GB/s", "gbps", CELL["GB/s"], number=True),
    Column("of copy", "of_copy", CELL["of copy"], number=True),
    Column("of peak", "of_peak", CELL["of peak"], number=True),
    Column("speed-up", "speedup", lambda row: f"{units.ratio(row.speedup)}x" if row.speedup else "", number=True),
    Column("device time", "device_us", CELL["device"], number=True),
    Column("error / bound", "error_over_bound", CELL["error/bound"], number=True),
    Column("labels", "labels", lambda row: row.labels),
)
"""The columns beside the backend and the file."""


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
    files = len(sources) > 1
    return [
        Line(number, (row.backend, *([file] if files else []), *(column.text(row) for column in COLUMNS)), _kind(row))
        for number, (file, row) in enumerate(pairs)
    ]


def columns(sources: Sequence[Source]) -> list[Column]:
    """The columns of the table. Of several files, the file stands beside the backend."""
    names = ("backend", "file") if len(sources) > 1 else ("backend",)
    return [*(Column(name, name, str) for name in names), *COLUMNS]


def _kind(row: Row) -> str:
    if row.status in FAILURES:
        return "bad"
    if row.status != Status.OK:
        return "plain"
    return "warn" if row.doubtful or row.grade in LIMITED else ""


def interval(row: Row) -> str:
    """The 95 % interval of the median: `8.74 to 8.77 us`; empty if it is unknown."""
    if not (row.low_us and row.high_us):
        return ""
    (low, unit), (high, other) = (units.micros(us).split(" ") for us in (row.low_us, row.high_us))
    return f"{low} to {high} {unit}" if unit == other else f"{low} {unit} to {high} {other}"


@dataclass(frozen=True, slots=True)
class Reason:
    """Cells with one status and reason."""

    text: str
    backends: str
    cells: int
    examples: tuple[tuple[int, str], ...]
    """The first cells: their index in the page's data, and their name."""


@dataclass(frozen=True, slots=True)
class StatusGroup:
    """Cells with one status."""

    status: str
    meaning: str
    kind: str
    """`bad`, `warn` or `plain`: how it is shown."""
    cells: int
    reasons: tuple[Reason, ...]
    """The most cells first."""


def wrong_and_skipped(sources: Sequence[Source]) -> list[StatusGroup]:
    """The groups in the order of MEANING."""
    numbered = enumerate(row for source in sources for row in source.rows)
    found = grouped(numbered, lambda cell: _group(cell[1]))
    return [_made(name, found[name]) for name in MEANING if name in found]


def _group(row: Row) -> str:
    """The group of a cell; empty if there is nothing to say about it."""
    if row.status != Status.OK:
        return row.status
    return row.grade if row.grade in LIMITED else NO_DEVICE_TIME if row.reason.startswith(NO_DEVICE_TIME) else ""


def _made(name: str, cells: Sequence[tuple[int, Row]]) -> StatusGroup:
    kind = "bad" if name in FAILURES else "warn" if name in LIMITED or name == Status.UNVERIFIED else "plain"
    ordered = sorted(grouped(cells, lambda cell: cell[1].reason).items(), key=lambda item: -len(item[1]))
    return StatusGroup(name, MEANING[name], kind, len(cells), tuple(_reason(text, some) for text, some in ordered))


def _reason(text: str, some: Sequence[tuple[int, Row]]) -> Reason:
    examples = tuple((number, f"{row.backend} {row.case}") for number, row in some[:EXAMPLES])
    return Reason(text, few(list(dict.fromkeys(row.backend for _, row in some))), len(some), examples)
