"""The quantities that lines and rows of points show: bandwidth, fraction of copy, speed-up over a backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from softbench.core.errors import UsageError
from softbench.core.outcome import Grade, Status
from softbench.core.text import bandwidth_unit, percent, ratio, unknown
from softbench.results.rows import IMPLAUSIBLE, Row

Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of a row, and how it is drawn."""

    label: str
    """The text of the axis."""
    value: Callable[[Row], float | None]
    """The number; None if the row has none."""
    ends: Callable[[Row], Ends | None] = lambda _: None
    """The ends of its spread or interval, lower first."""
    spread: str = ""
    """What the ends are; empty if there are none."""
    over: str = ""
    """The backend that a speed-up is over. Its axis is logarithmic around 1."""


def bandwidth(rows: Sequence[Row]) -> Quantity:
    """The bandwidth in the unit that fits the rows, with the 20th and 80th percentile of its samples."""
    unit, factor = bandwidth_unit([row.gbps for row in rows if row.gbps])

    def ends(row: Row) -> Ends | None:
        if not (row.gbps and row.median_us):
            return None
        low, high = (factor * row.gbps * row.median_us / (us or row.median_us) for us in (row.p80_us, row.p20_us))
        return low, high

    return Quantity(f"bandwidth ({unit}), median", lambda row: factor * row.gbps if row.gbps else None, ends, "p20 to p80")


FRACTION = Quantity("fraction of the yardstick", lambda row: row.of_copy if row.gbps and row.grade != Grade.YARDSTICK else None)


def speedup(rows: Sequence[Row], over: str = "") -> Quantity:
    """The speed-up over a backend, by default the reference backend of the rows.

    Over the reference backend it is that of the results, whose rounds are paired. Over another it is the ratio of the medians. Its ends
    are the ratios of those ends of both 95 % intervals that are furthest apart. They cover at least 95 %, and do not pair rounds.

    Raises:
        UsageError: no row has the backend, or none is given and the rows have no reference backend.
    """
    timed = [row for row in rows if row.status == Status.OK and row.median_us and IMPLAUSIBLE not in row.labels]
    names = tuple(dict.fromkeys(row.backend for row in timed))
    over = over or next((row.relative_to for row in rows if row.relative_to in names), "")
    if not over:
        raise UsageError(f"plot: the results have no reference backend; name one of them with --over: {', '.join(names) or 'none'}")
    if over not in names:
        raise UsageError(f"--over: {unknown(over, names, 'backend')}")
    base = {(row.run, row.case): row for row in timed if row.backend == over}

    def value(row: Row) -> float | None:
        theirs = base.get((row.run, row.case))
        if theirs is None or not theirs.median_us or not row.median_us or not row.gbps:
            return None
        return row.speedup if row.relative_to == over else theirs.median_us / row.median_us

    def ends(row: Row) -> Ends | None:
        theirs = base.get((row.run, row.case))
        if theirs is None or row.backend == over or not (theirs.low_us and theirs.high_us and row.low_us and row.high_us):
            return None
        return theirs.low_us / row.high_us, theirs.high_us / row.low_us

    return Quantity(f"speed-up over {over}", value, ends, "95 % intervals of both", over)


def text(quantity: Quantity, row: Row) -> str:
    """The number beside a point: a fraction of copy, or a speed-up."""
    if quantity.over:
        return f"{ratio(found)}x" if (found := quantity.value(row)) else ""
    return percent(row.of_copy) if row.of_copy and row.grade != Grade.YARDSTICK else ""
