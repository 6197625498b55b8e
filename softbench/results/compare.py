"""Two results files, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

from softbench.core.case import CaseKey
from softbench.core.machine import same_card
from softbench.core.outcome import Status
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
    """`faster` or `slower` if the ratio is beyond the threshold and the p20..p80 bands lie apart in its direction, else `same`.

    The bands are of all samples, and the ratio is of the medians that the files state, so the two may disagree.
    If a file lacks a result: which file, and why."""

    @property
    def missing(self) -> bool:
        """True if one of the files does not have the cell."""
        return self.verdict.endswith(f": {MISSING}")

    @property
    def changed(self) -> bool:
        """True if both files have the cell, and it is faster, slower or without a result in one of them."""
        return self.verdict != SAME and not self.missing

    @property
    def worse(self) -> bool:
        """True if both files have the cell, and B is slower or has no result."""
        return self.verdict == "slower" or (self.verdict.startswith("B: ") and not self.missing)


UNTRIED = {Status.SKIPPED, Status.UNAVAILABLE}
"""The statuses of cells that no worker computed."""
MISSING = "missing"
SAME = "same"
"""The verdict on a cell within noise."""
ORDERS: dict[str, Callable[[Pair], Any]] = {
    "file": lambda pair: 0,
    "ratio": lambda pair: pair.ratio or math.inf,
    "backend": lambda pair: pair.backend,
}
"""The orders of pairs: A's, the slowest first, and by backend. Equal pairs keep A's order."""


def pairs(a: Sequence[Row], b: Sequence[Row], threshold: float = 0.0) -> list[Pair]:
    """Every cell with a result in one of the files, in A's order. A change up to the threshold (0.05 is 5 %) is `same`.

    If a file has a cell of several units, each unit is compared with itself, or with the other file's only unit.
    """
    joined = _joined(a, b)
    return [_pair(key, left, right, threshold) for key, left, right in joined if (left and left.gbps) or (right and right.gbps)]


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


def _pair(key: tuple[str, CaseKey, str], a: Row | None, b: Row | None, threshold: float) -> Pair:
    backend, case, unit = key
    a_gbps, b_gbps = a.gbps if a else None, b.gbps if b else None
    if a is None or b is None or not a_gbps or not b_gbps:
        lacking = "A" if not a_gbps else "B"
        row = a if lacking == "A" else b
        return Pair(backend, case, unit, a_gbps, b_gbps, None, f"{lacking}: {_without(row)}")
    verdict, ratio = SAME, b_gbps / a_gbps
    if a.p20_us and a.p80_us and b.p20_us and b.p80_us and max(ratio, 1 / ratio) > 1 + threshold:
        verdict = "faster" if ratio > 1 and b.p80_us < a.p20_us else "slower" if ratio < 1 and b.p20_us > a.p80_us else SAME
    return Pair(backend, case, unit, a_gbps, b_gbps, ratio, verdict)


def _without(row: Row | None) -> str:
    """Why a cell has no bandwidth."""
    if row is None:
        return MISSING
    return row.status if row.status != Status.OK else IMPLAUSIBLE if IMPLAUSIBLE in row.labels else f"{row.timer} time"


def differences(found: Sequence[Pair]) -> list[float]:
    """The relative difference of each cell, sorted. Two runs of one commit have small differences."""
    return sorted(abs(pair.ratio - 1) for pair in found if pair.ratio)


def summary(found: Sequence[Pair], empty: int = 0) -> str:
    """One line: cells faster, slower, within noise; the mean of the ratios; the differences. `empty`: see `without_results`."""
    ratios = [pair.ratio for pair in found if pair.ratio]
    counts = {verdict: sum(pair.verdict == verdict for pair in found) for verdict in ("faster", "slower", SAME)}
    one_sided = len(found) - len(ratios) - sum(pair.missing for pair in found)
    mean = f"; geometric mean of B/A {geometric_mean(ratios):.3f}" if ratios else ""
    apart = differences(found)
    if apart:
        high = apart[math.ceil(0.9 * len(apart)) - 1]
        mean += f"; they differ by a median of {median(apart):.2%}, 90 % of the cells by at most {high:.2%}"
    lacking = f", {one_sided} without a result in one file" if one_sided else ""
    lacking += f", {empty} without a result in both" if empty else ""
    for file, other in (("A", "B"), ("B", "A")):
        if absent := sum(pair.verdict == f"{other}: {MISSING}" for pair in found):
            lacking += f", {absent} only in {file}"
    return f"{counts['faster']} faster, {counts['slower']} slower, {counts[SAME]} within noise{lacking}{mean}"
