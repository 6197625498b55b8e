"""Two results files, cell by cell, without the drift of the machine that `copy` shows."""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import geometric_mean, median

from softbench.core.case import CaseKey
from softbench.core.machine import same_card
from softbench.core.outcome import UNTRIED, Grade, Status
from softbench.core.statistics import Ratio, median_interval, over
from softbench.core.text import count
from softbench.results.columns import IMPLAUSIBLE, Row, grouped


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
    yardstick has the verdict `yardstick`. If a file lacks a result: which file, and why. Cells of two timers are `not compared`.
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
        return self.verdict not in (SAME, YARDSTICK) and not self.missing and not self.refused

    @property
    def refused(self) -> bool:
        """True if two timers took the times, so that their ratio says nothing of the backend."""
        return self.verdict.startswith(REFUSED)

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


MISSING = "missing"
SAME, FASTER, SLOWER, DOUBTFUL, YARDSTICK = "same", "faster", "slower", "doubtful", "yardstick"
"""The verdicts on a cell with a result in both files. `same`: within noise."""
REFUSED = "not compared"
"""The beginning of the verdict on a cell of two timers."""
READS = (
    *("backend", "direction", "M", "N", "dtype", "op", "shape", "unit", "status", "grade", "labels", "timer", "device"),
    *("median_us", "low_us", "high_us", "gbps"),
)
"""The fields of rows that a comparison reads."""


def beyond_noise_first(pair: Pair) -> tuple[bool, float]:
    """The key of pairs in the order of a table: what changed most beyond noise first, doubtful cells last."""
    return pair.verdict == DOUBTFUL, -pair.beyond_noise


class Drift:
    """How the machine changed from A to B, as `copy` shows it. Ratios are those of bandwidths, B over A."""

    def __init__(self, by_case: Mapping[tuple[CaseKey, str], Ratio]) -> None:
        """`by_case`: the ratio of copy by case and unit, where no doubt is on either."""
        self.by_case = by_case

    @cached_property
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
        percent = f"{abs(usual.value - 1) * 100:.1f}"
        way = "as fast in B as in A" if percent == "0.0" else f"{percent} % {'slower' if usual.value < 1 else 'faster'} in B"
        return f"copy is {way} (median of {size}); verdicts are relative to copy"


class TwoFiles:
    """The cells of two files side by side: in A's order, then those of B only.

    If a file has a cell of several units, each unit is compared with itself, or with the other file's only unit.
    """

    def __init__(self, a: Sequence[Row], b: Sequence[Row]) -> None:
        self._cells = [(unit, *both) for unit, left, right in _by_unit(a, b) for both in _joined(left, right)]
        """The unit, and the row in each file."""

    @cached_property
    def drift(self) -> Drift:
        """The drift of the machine, by the yardstick."""
        found = {}
        for unit, a, b in self._cells:
            if a and b and a.grade == b.grade == Grade.YARDSTICK and _clean(a, b) and a.timer == b.timer and (one := b.times_as_fast(a)):
                found[a.case, unit] = one
        return Drift(found)

    def pairs(self, threshold: float = 0.0) -> Iterator[Pair]:
        """Every cell with a result in one of the files. A change up to the threshold (0.05 is 5 %) is `same`."""
        return (_pair(unit, a, b, self.drift, threshold) for unit, a, b in self._cells if (a and a.gbps) or (b and b.gbps))

    @property
    def without_results(self) -> int:
        """The number of cells without a bandwidth in both files, one of which tried it; `pairs` has none of them."""
        both = [(a, b) for _, a, b in self._cells if a and b and not a.gbps and not b.gbps]
        return sum(not {a.status, b.status} <= UNTRIED for a, b in both)

    @property
    def cards_note(self) -> str:
        """How many compared cells another card measured in B than in A, in words; empty for none. Files without units are of any card."""
        moved = sum(not same_card(a.unit, b.unit) for _, a, b in self._cells if a and b)
        return f"{count(moved, 'cell')} of another card in B than in A; cards of one model differ in bandwidth" if moved else ""


def pairs(a: Sequence[Row], b: Sequence[Row], threshold: float = 0.0) -> list[Pair]:
    """Every cell with a result in one of the files (`TwoFiles.pairs`)."""
    return list(TwoFiles(a, b).pairs(threshold))


def _joined(a: Sequence[Row], b: Sequence[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    """The row of each cell in both files."""
    second = {(row.backend, row.case): row for row in b}
    for row in a:
        yield row, second.pop((row.backend, row.case), None)
    for row in second.values():
        yield None, row


def _by_unit(a: Sequence[Row], b: Sequence[Row]) -> list[tuple[str, Sequence[Row], Sequence[Row]]]:
    """The rows that are compared with each other, by unit; all of them together if both files have each cell once."""
    if all(len({row.unit for row in rows}) < 2 or len({(row.backend, row.case) for row in rows}) == len(rows) for rows in (a, b)):
        return [("", a, b)]
    first, second = (grouped(rows, lambda row: row.unit) for rows in (a, b))
    only_a, only_b = (next(iter(side.values())) if len(side) == 1 else [] for side in (first, second))
    found: list[tuple[str, Sequence[Row], Sequence[Row]]] = []
    for unit in dict.fromkeys([*first, *second]):
        if (unit in first or not only_b) and (unit in second or not only_a):  # an only unit is compared with each of the others
            found.append((unit, first.get(unit, only_a), second.get(unit, only_b)))
    return found


def _pair(unit: str, a: Row | None, b: Row | None, moved: Drift, threshold: float) -> Pair:
    row = a or b
    assert row is not None
    backend, case = row.backend, row.case
    a_gbps, b_gbps = a.gbps if a else None, b.gbps if b else None
    if a is None or b is None or not a_gbps or not b_gbps:
        lacking = "A" if not a_gbps else "B"
        return Pair(backend, case, unit, a_gbps, b_gbps, None, f"{lacking}: {_without(a if lacking == 'A' else b)}")
    if a.timer != b.timer:
        return Pair(backend, case, unit, a_gbps, b_gbps, None, f"{REFUSED}: timed by {a.timer} in A, by {b.timer} in B")
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


class Tally:
    """Counts the cells of a comparison one by one, so that a million need not be kept."""

    def __init__(self, empty: int = 0, margin: float = 0.0) -> None:
        """`empty`: `TwoFiles.without_results`. `margin`: that of cells that are `worse`."""
        self.empty, self.margin = empty, margin
        self.cells = self.missing = self.changed = self.worse = 0
        self.verdicts: Counter[str] = Counter()
        self.one_sided = 0
        self.changes = array("d")
        """The change of each cell but copy's; without an interval, the ratio."""

    def counted(self, found: Iterable[Pair]) -> Iterator[Pair]:
        """The cells, each of them counted."""
        for pair in found:
            self.cells += 1
            self.missing += pair.missing
            self.changed += pair.changed
            self.worse += pair.worse(self.margin)
            self.verdicts[pair.verdict] += 1
            self.one_sided += not (pair.ratio or pair.missing or pair.refused)
            if pair.ratio and pair.verdict != YARDSTICK:
                self.changes.append(pair.change.value if pair.change else pair.ratio)
            yield pair

    @property
    def refused(self) -> dict[str, int]:
        """The number of cells of two timers, by verdict."""
        return {verdict: cells for verdict, cells in self.verdicts.items() if verdict.startswith(REFUSED)}

    @property
    def text(self) -> str:
        """One line: cells faster, slower, within noise; the mean of the changes; the differences."""
        counts = self.verdicts
        lacking = f", {counts[DOUBTFUL]} doubtful" if counts[DOUBTFUL] else ""
        lacking += f", {sum(self.refused.values())} of two timers" if self.refused else ""
        lacking += f", {self.one_sided} without a result in one file" if self.one_sided else ""
        lacking += f", {self.empty} without a result in either" if self.empty else ""
        for file, other in (("A", "B"), ("B", "A")):
            if absent := counts[f"{other}: {MISSING}"]:
                lacking += f", {absent} only in {file}"
        mean = ""
        if self.changes:
            apart = sorted(abs(change - 1) for change in self.changes)
            high = apart[math.ceil(0.9 * len(apart)) - 1]
            mean = f"; geometric mean without drift {geometric_mean(self.changes):.3f}"
            mean += f"; the changes have a median of {median(apart):.2%}, and 90 % of them are at most {high:.2%}"
        return f"{counts[FASTER]} faster, {counts[SLOWER]} slower, {counts[SAME]} within noise{lacking}{mean}"


def counted(found: Iterable[Pair], empty: int = 0) -> Tally:
    """A tally of these cells."""
    tally = Tally(empty)
    deque(tally.counted(found), maxlen=0)
    return tally
