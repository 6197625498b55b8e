"""Which backend is fastest in each case. Two tie if the 95 % interval of the ratio of their medians contains 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softbench.core.case import CaseKey
from softbench.core.outcome import FAILURES, Grade, Status
from softbench.results.columns import IMPLAUSIBLE, Row, grouped


@dataclass(frozen=True, slots=True)
class Standing:
    """The backends of one case, as far as the intervals of their ratios part them."""

    rows: tuple[Row, ...]
    """Those with a result, fastest first. The yardstick and implausible results do not count."""
    failed: int
    """Number of backends that are wrong, failed, timed out or ran out of memory."""
    skipped: int
    """Number of other available backends without a result."""
    status: str
    """The status of a case without a result."""

    @property
    def lead(self) -> float | None:
        """The time of the second over that of the fastest, less 1; None if there is no second."""
        times = [row.median_us for row in self.rows[:2] if row.median_us]
        return times[1] / times[0] - 1 if len(times) == 2 else None

    @property
    def tied(self) -> tuple[Row, ...]:
        """The fastest, and each backend that ties with it. Alone, the fastest is ahead of all, or nobody knows."""
        first, *others = self.rows
        return (first, *(row for row in others if first.ends and not _parted(first, row)))

    @property
    def unknown(self) -> bool:
        """True if the lead over the second may be noise, because the file has no interval of the fastest."""
        return len(self.rows) > 1 and self.rows[0].ends is None

    @property
    def parted(self) -> bool:
        """True if the fastest is ahead of all others beyond noise."""
        return len(self.rows) > 1 and all(_parted(self.rows[0], row) for row in self.rows[1:])

    def beats(self, backend: str) -> bool:
        """True if the fastest is ahead of this backend beyond noise."""
        return any(row.backend == backend and _parted(self.rows[0], row) for row in self.rows[1:])


def _parted(first: Row, other: Row) -> bool:
    """True if the interval of the ratio of both times is known, and does not contain 1."""
    own, its = first.ends, other.ends
    if own and its:
        if own[1] < its[0]:
            return True  # as the ratio would say, without its logarithms
        found = first.times_as_fast(other)
        return found is not None and found.parted
    # A slow backend may have too few samples for an interval: then their 20th percentile begins it.
    return its is None and own is not None and own[1] < min(other.p20_us or 0.0, other.median_us or 0.0)


def standing(rows: Sequence[Row]) -> Standing:
    """Who is fastest in one case. The order is that of the medians; equal ones keep the order of the rows."""
    timed, lost = list[Row](), list[Row]()
    for row in rows:
        if row.grade != Grade.YARDSTICK:
            (timed if row.timed else lost).append(row)
    lost = [row for row in lost if row.status != Status.UNAVAILABLE]
    failed = sum(row.status in FAILURES for row in lost)
    worst = sorted(lost, key=lambda row: row.status not in FAILURES)
    status = worst[0].status if worst and worst[0].status != Status.OK else IMPLAUSIBLE if worst else Status.UNAVAILABLE
    return Standing(tuple(sorted(timed, key=lambda row: row.median_us or 0)), failed, len(lost) - failed, str(status))


def standings(rows: Sequence[Row]) -> dict[CaseKey, Standing]:
    """The standing of each case that has a result, in the order of the rows."""
    return {case: found for case, some in grouped(rows, lambda row: row.case).items() if (found := standing(some)).rows}


def names(found: Standing) -> tuple[str, ...]:
    """The backends that may be the fastest, in alphabetical order: one if it is ahead of all others, or intervals are unknown."""
    return tuple(sorted(row.backend for row in found.tied))


def crossover(a: Standing | None, b: Standing | None) -> bool:
    """True if the fastest backend differs between two cases, and these two backends tie in neither."""
    if not (a and b and a.rows and b.rows):
        return False
    return a.beats(b.rows[0].backend) and b.beats(a.rows[0].backend)
