"""Two results files, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from softbench.core.case import CaseKey
from softbench.core.outcome import Status
from softbench.results.rows import IMPLAUSIBLE, Row


@dataclass(frozen=True, slots=True)
class Pair:
    """One cell in both files."""

    backend: str
    case: CaseKey
    a_gbps: float | None
    b_gbps: float | None
    ratio: float | None
    """B's bandwidth over A's; above 1, B is faster."""
    verdict: str
    """`faster` or `slower` if the p20..p80 bands do not touch, `~` if they do; else the file that lacks a result."""


def pairs(a: Sequence[Row], b: Sequence[Row]) -> list[Pair]:
    """Every cell with a result in one of the files, in A's order."""
    first = {(row.backend, row.case): row for row in a}
    second = {(row.backend, row.case): row for row in b}
    found = []
    for key in dict.fromkeys([*first, *second]):
        left, right = first.get(key), second.get(key)
        if (left and left.gbps) or (right and right.gbps):
            found.append(_pair(key, left, right))
    return found


def _pair(key: tuple[str, CaseKey], a: Row | None, b: Row | None) -> Pair:
    backend, case = key
    a_gbps, b_gbps = a.gbps if a else None, b.gbps if b else None
    if a is None or b is None or not a_gbps or not b_gbps:
        lacking = "A" if not a_gbps else "B"
        row = a if lacking == "A" else b
        return Pair(backend, case, a_gbps, b_gbps, None, f"{lacking}: {_without(row)}")
    verdict = "~"
    if a.p20_us and a.p80_us and b.p20_us and b.p80_us:
        verdict = "faster" if b.p80_us < a.p20_us else "slower" if b.p20_us > a.p80_us else "~"
    return Pair(backend, case, a_gbps, b_gbps, b_gbps / a_gbps, verdict)


def _without(row: Row | None) -> str:
    """Why a cell has no bandwidth."""
    if row is None:
        return "missing"
    return row.status if row.status != Status.OK else IMPLAUSIBLE if IMPLAUSIBLE in row.labels else f"{row.timer} time"


def differences(found: Sequence[Pair]) -> list[float]:
    """The relative difference of each cell, sorted. Two runs of one commit have small differences."""
    return sorted(abs(pair.ratio - 1) for pair in found if pair.ratio)


def summary(found: Sequence[Pair]) -> str:
    """One line: cells faster, slower and within noise, the geometric mean of the ratios, and the differences."""
    ratios = [pair.ratio for pair in found if pair.ratio]
    counts = {verdict: sum(pair.verdict == verdict for pair in found) for verdict in ("faster", "slower", "~")}
    one_sided = len(found) - len(ratios)
    mean = f"; geometric mean of B/A {geometric_mean(ratios):.3f}" if ratios else ""
    apart = differences(found)
    if apart:
        high = apart[math.ceil(0.9 * len(apart)) - 1]
        mean += f"; they differ by a median of {median(apart):.2%}, 90 % of the cells by at most {high:.2%}"
    lacking = f", {one_sided} in one file only" if one_sided else ""
    return f"{counts['faster']} faster, {counts['slower']} slower, {counts['~']} within noise{lacking}{mean}"
