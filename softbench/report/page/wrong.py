"""The cells of a page without a bandwidth, device time or full class, by status and reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softbench.core.outcome import FAILURES, LIMITED, Grade, Status
from softbench.core.text import few
from softbench.report.page.source import Source
from softbench.results.columns import Row, grouped

EXAMPLES = 4
REASONS = 30
"""The most reasons of a status that the page names. The others are in its cells."""
NO_DEVICE_TIME = "no device time"
MEANING = {
    Status.WRONG: "the output is wrong, so no bandwidth is published",
    Status.FAILED: "an error ended the cell",
    Status.TIMEOUT: "a phase took longer than its deadline",
    Status.OOM: "the memory was too small",
    Status.UNVERIFIED: "nothing shows that the output or the time is right, so no bandwidth is published",
    Status.CHECKED: "correct and not timed: only an interpreter runs it here",
    Status.SKIPPED: "the backend does not support the case",
    Status.UNAVAILABLE: "the backend cannot run on this machine",
    Grade.LOW_PRECISION: "intermediates are rounded more than the dtype requires; the bandwidth is published with a mark",
    Grade.TOLERANCE: "beyond the sampled bound, and within the problem's own tolerance; the bandwidth is published with a mark",
    Grade.FINITE_ONLY: "NaN in rows that hold -inf, and right in all others",
    NO_DEVICE_TIME: "the median is known, and the profiler recorded nothing",
}
"""What each status, class or lack means."""


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
    """The most cells first; at most REASONS."""
    others: int
    """The number of the other reasons."""


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
    reasons = tuple(_reason(text, some) for text, some in ordered[:REASONS])
    return StatusGroup(name, MEANING[name], kind, len(cells), reasons, len(ordered) - len(reasons))


def _reason(text: str, some: Sequence[tuple[int, Row]]) -> Reason:
    examples = tuple((number, f"{row.backend} {row.case}") for number, row in some[:EXAMPLES])
    return Reason(text, few(list(dict.fromkeys(row.backend for _, row in some))), len(some), examples)
