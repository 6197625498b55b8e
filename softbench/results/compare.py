"""Two results files, cell by cell, without the drift of the machine that `copy` shows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

from softbench.core.case import CaseKey
from softbench.core.machine import same_card
from softbench.core.outcome import Grade, Status
from softbench.core.statistics import Ratio, median_interval, over
from softbench.core.text import count
from softbench.results.rows import IMPLAUSIBLE, Row, grouped


@dataclass(frozen=True, slots=True)
class Pair:
    """One cell in both files."""

    backend: str
    case: CaseKey
    unit: str
    """The unit in B, or in A if B lacks the cell; empty if both files have each cell once."""
    a_gbps: float | None
    b_gbps: float | None
    ratio: float | None
    """B's bandwidth over A's; above 1, B is faster."""
    verdict: str
    """`faster` or `slower` if the change is beyond the threshold and its interval does not contain 1, else `same`.

    It is `doubtful` in place of `faster` and `slower` if either cell has a label that casts doubt on it, and also without intervals. The
    yardstick has the verdict `yardstick`. If a file lacks a result: which file, and why.
    """
    change: Ratio | None = None
    """`ratio` over that of `copy`, with its 95 % interval: what is left without the drift of the machine. None without intervals."""

    @property
    def missing(self) -> bool:
        """True if one of the files does not have the cell."""
        return self.verdict.endswith(f": {MISSING}")

    @property
    def changed(self) -> bool:
        """True if both files have the cell, and it is not the same in both."""
        return self.verdict not in (SAME, YARDSTICK) and not self.missing

    @property
    def lost(self) -> bool:
        """True if both files have the cell, and B has no result."""
        return self.verdict.startswith("B: ") and not self.missing

    def worse(self, margin: float) -> bool:
        """True if B has no result, or is slower by more than the margin, with the whole interval of the change."""
        return self.lost or (self.verdict == SLOWER and self.change is not None and self.change.high < 1 / (1 + margin))

    @property
    def beyond_noise(self) -> float:
        """How far the interval of the change lies from 1, as a log; infinite for a lost result and 0 within noise."""
        if self.change is None or not self.change.parted or self.verdict == YARDSTICK:
            return math.inf if self.lost else 0.0
        return min(abs(math.log(self.change.low)), abs(math.log(self.change.high)))


UNTRIED = {Status.SKIPPED, Status.UNAVAILABLE}
"""The statuses of cells that no worker computed."""
MISSING = "missing"
SAME, FASTER, SLOWER, DOUBTFUL, YARDSTICK = "same", "faster", "slower", "doubtful", "yardstick"
"""The verdicts on a cell with a result in both files. `same`: within noise."""
ORDERS: dict[str, Callable[[Pair], Any]] = {
    "change": lambda pair: (pair.verdict == DOUBTFUL, -pair.beyond_noise),
    "file": lambda pair: 0,
    "ratio": lambda pair: pair.ratio or math.inf,
    "backend": lambda pair: pair.backend,
}
"""The orders of pairs: what changed most beyond noise first and doubtful cells last, A's, the slowest first, and by backend. Equal pairs
keep A's order."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How the machine changed from A to B, as `copy` shows it. Ratios are those of bandwidths, B over A."""

    by_case: Mapping[tuple[CaseKey, str], Ratio]
    """The ratio of copy by case and unit, where no doubt is on either."""

    @property
    def usual(self) -> Ratio | None:
        """The median over the cases, with an interval of the median; None if no case has copy in both files."""
        if not self.by_case:
            return None
        values = [one.value for one in self.by_case.values()]
        middle = median(values)
        low, high = median_interval(values) or (min(values), max(values))
        return Ratio(middle, low, high)

    def off(self, change: Ratio, case: CaseKey, unit: str) -> Ratio:
        """A change without the drift: the usual one, unless copy itself changed otherwise in this case, beyond noise.

        Then nobody can tell the machine from copy's own process, and the interval is that of both.
        """
        own, usual = self.by_case.get((case, unit)), self.usual
        if usual is None:
            return change
        found = over(change, usual)
        if own is None or not over(own, usual).parted:
            return found
        other = over(change, own)
        return Ratio(other.value, min(found.low, other.low), max(found.high, other.high))

    @property
    def text(self) -> str:
        """In words; empty without copy."""
        if (usual := self.usual) is None:
            return ""
        size = count(len(self.by_case), "case")
        percent = f"{abs(1 / usual.value - 1) * 100:.1f}"
        way = "as fast in B as in A" if percent == "0.0" else f"{percent} % {'slower' if usual.value < 1 else 'faster'} in B"
        return f"copy is {way} (median of {size}); verdicts are relative to copy"


def drift(a: Sequence[Row], b: Sequence[Row]) -> Drift:
    """The drift of the machine between two files, by their yardstick."""
    found = {}
    for (_, case, unit), left, right in _joined(a, b):
        if left and right and left.grade == right.grade == Grade.YARDSTICK and _clean(left, right) and (one := right.times_as_fast(left)):
            found[case, unit] = one
    return Drift(found)


def pairs(a: Sequence[Row], b: Sequence[Row], threshold: float = 0.0) -> list[Pair]:
    """Every cell with a result in one of the files, in A's order. A change up to the threshold (0.05 is 5 %) is `same`.

    If a file has a cell of several units, each unit is compared with itself, or with the other file's only unit.
    """
    joined, moved = list(_joined(a, b)), drift(a, b)
    return [_pair(key, left, right, moved, threshold) for key, left, right in joined if (left and left.gbps) or (right and right.gbps)]


def without_results(a: Sequence[Row], b: Sequence[Row]) -> int:
    """The number of cells without a bandwidth in both files, one of which tried it; `pairs` has none of them."""
    both = [(left, right) for _, left, right in _joined(a, b) if left and right and not left.gbps and not right.gbps]
    return sum(not {left.status, right.status} <= UNTRIED for left, right in both)


def _joined(a: Sequence[Row], b: Sequence[Row]) -> Iterator[tuple[tuple[str, CaseKey, str], Row | None, Row | None]]:
    """Backend, case and unit of each cell, and its row in both files."""
    for unit, left_rows, right_rows in _by_unit(a, b):
        first, second = ({(row.backend, row.case): row for row in rows} for rows in (left_rows, right_rows))
        for key in dict.fromkeys([*first, *second]):
            yield (*key, unit), first.get(key), second.get(key)


def _by_unit(a: Sequence[Row], b: Sequence[Row]) -> list[tuple[str, Sequence[Row], Sequence[Row]]]:
    """The rows that are compared with each other, by unit; all of them together if both files have each cell once."""
    if all(len({(row.backend, row.case) for row in rows}) == len(rows) for rows in (a, b)):
        return [("", a, b)]
    first, second = (grouped(rows, lambda row: row.unit) for rows in (a, b))
    only_a, only_b = (next(iter(side.values())) if len(side) == 1 else [] for side in (first, second))
    found: list[tuple[str, Sequence[Row], Sequence[Row]]] = []
    for unit in dict.fromkeys([*first, *second]):
        if (unit in first or not only_b) and (unit in second or not only_a):  # an only unit is compared with each of the others
            found.append((unit, first.get(unit, only_a), second.get(unit, only_b)))
    return found


def cards_note(a: Sequence[Row], b: Sequence[Row]) -> str:
    """How many compared cells another card measured in B than in A, in words; empty for none. Files without units are of any card."""
    moved = sum(not same_card(left.unit, right.unit) for _, left, right in _joined(a, b) if left and right)
    return f"{count(moved, 'cell')} of another card in B than in A; cards of one model differ in bandwidth" if moved else ""


def timers_note(a: Sequence[Row], b: Sequence[Row]) -> str:
    """How many compared cells another timer measured in B than in A, in words; empty for none."""
    both = ((left.timer, right.timer) for _, left, right in _joined(a, b) if left and right and left.gbps and right.gbps)
    moved = Counter(timers for timers in both if timers[0] != timers[1])
    found = "; ".join(
        f"{count(cells, 'cell')} timed by {old or 'no timer'} in A and by {new or 'no timer'} in B" for (old, new), cells in moved.items()
    )
    return f"{found}; such ratios compare the timers too" if found else ""


def _pair(key: tuple[str, CaseKey, str], a: Row | None, b: Row | None, moved: Drift, threshold: float) -> Pair:
    backend, case, unit = key
    a_gbps, b_gbps = a.gbps if a else None, b.gbps if b else None
    if a is None or b is None or not a_gbps or not b_gbps:
        lacking = "A" if not a_gbps else "B"
        row = a if lacking == "A" else b
        return Pair(backend, case, unit, a_gbps, b_gbps, None, f"{lacking}: {_without(row)}")
    ratio, change = b_gbps / a_gbps, b.times_as_fast(a)
    if a.grade == Grade.YARDSTICK:
        return Pair(backend, case, unit, a_gbps, b_gbps, ratio, YARDSTICK, change)
    if change is not None:
        change = moved.off(change, case, unit)
    verdict = SAME if change else DOUBTFUL
    if change and change.parted and max(change.value, 1 / change.value) > 1 + threshold:
        verdict = (FASTER if change.value > 1 else SLOWER) if _clean(a, b) else DOUBTFUL
    return Pair(backend, case, unit, a_gbps, b_gbps, ratio, verdict, change)


def _clean(*rows: Row) -> bool:
    """True if every row has a result without doubt."""
    return all(row.timed and not row.doubtful for row in rows)


def _without(row: Row | None) -> str:
    """Why a cell has no bandwidth."""
    if row is None:
        return MISSING
    return row.status if row.status != Status.OK else IMPLAUSIBLE if IMPLAUSIBLE in row.labels else f"{row.timer} time"


def differences(found: Sequence[Pair]) -> list[float]:
    """The relative change of each cell, sorted. Two runs of one commit have small ones."""
    return sorted(abs(change - 1) for change in _changes(found))


def _changes(found: Sequence[Pair]) -> list[float]:
    """The change of each cell but copy's; without an interval, the ratio."""
    return [pair.change.value if pair.change else pair.ratio for pair in found if pair.ratio and pair.verdict != YARDSTICK]


def summary(found: Sequence[Pair], empty: int = 0) -> str:
    """One line: cells faster, slower, within noise; the mean of the changes; the differences. `empty`: see `without_results`."""
    ratios = _changes(found)
    counts = {verdict: sum(pair.verdict == verdict for pair in found) for verdict in (FASTER, SLOWER, SAME, DOUBTFUL)}
    one_sided = sum(not pair.ratio and not pair.missing for pair in found)
    mean = f"; geometric mean of B/A {geometric_mean(ratios):.3f}" if ratios else ""
    apart = differences(found)
    if apart:
        high = apart[math.ceil(0.9 * len(apart)) - 1]
        mean += f"; they differ by a median of {median(apart):.2%}, 90 % of the cells by at most {high:.2%}"
    unsure = f", {counts[DOUBTFUL]} doubtful" if counts[DOUBTFUL] else ""
    lacking = unsure + (f", {one_sided} without a result in one file" if one_sided else "")
    lacking += f", {empty} without a result in both" if empty else ""
    for file, other in (("A", "B"), ("B", "A")):
        if absent := sum(pair.verdict == f"{other}: {MISSING}" for pair in found):
            lacking += f", {absent} only in {file}"
    return f"{counts[FASTER]} faster, {counts[SLOWER]} slower, {counts[SAME]} within noise{lacking}{mean}"
