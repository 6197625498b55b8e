"""Decides which backend is fastest in each case, and whether the intervals of the medians part it from the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softbench.core.case import CaseKey
from softbench.core.outcome import Grade, Status
from softbench.report import matrix
from softbench.results.rows import IMPLAUSIBLE, Row


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest cell of a case, and the cells that may be as fast."""

    best: Row
    """The cell of the smallest median."""
    rivals: tuple[Row, ...]
    """The cells of other backends whose intervals are not parted from that of the best, fastest first."""

    @property
    def clear(self) -> bool:
        """True if the interval of each other backend is parted from that of the best."""
        return not self.rivals

    @property
    def doubtful(self) -> bool:
        """True if a label casts doubt on the best cell."""
        return matrix.doubtful(self.best)

    @property
    def names(self) -> tuple[str, ...]:
        """The backends that may be fastest, the smallest median first."""
        return (self.best.backend, *(row.backend for row in self.rivals))


def parted(a: Row, b: Row) -> bool:
    """True if the 95 % intervals of both medians are known and do not overlap."""
    if a.low_us is None or a.high_us is None or b.low_us is None or b.high_us is None:
        return False
    return a.high_us < b.low_us or b.high_us < a.low_us


def competes(row: Row) -> bool:
    """True if the cell can be the fastest: it has a plausible time, and its backend is not the yardstick."""
    return row.status == Status.OK and bool(row.median_us) and IMPLAUSIBLE not in row.labels.split() and row.grade != Grade.YARDSTICK


def winners(rows: Sequence[Row]) -> dict[CaseKey, Winner]:
    """The winner of each case that has a result, in the order of the rows."""
    cases: dict[CaseKey, list[Row]] = {}
    for row in rows:
        if competes(row):
            cases.setdefault(row.case, []).append(row)
    found = {}
    for case, some in cases.items():
        best, *others = sorted(some, key=lambda row: row.median_us or 0)
        found[case] = Winner(best, tuple(row for row in others if not parted(best, row)))
    return found


def crossover(a: Winner, b: Winner) -> bool:
    """True if the fastest backend changes between two cases, and in both cases the intervals part the two backends."""
    return a.best.backend != b.best.backend and b.best.backend not in a.names and a.best.backend not in b.names
