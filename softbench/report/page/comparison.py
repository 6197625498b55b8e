"""Compares two results files cell by cell, as lines of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from softbench.core import text as units
from softbench.gate import environment_match
from softbench.report.page.source import Key, Source
from softbench.report.standings import ends
from softbench.results.compare import SAME, cards_note, pairs, summary
from softbench.results.rows import Row

HEAD = (
    *(("backend", False), ("case", False), ("A, GB/s", True), ("B, GB/s", True)),
    *(("B/A", True), ("interval", True), ("verdict", False)),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table."""

    texts: tuple[str, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two files, A before and B after."""

    a: str
    b: str
    summary: str
    notes: tuple[str, ...]
    lines: tuple[Line, ...]
    """The changed cells first, then the others, each in the file's order."""


def compare(a: Source, b: Source) -> Comparison:
    """Every cell with a bandwidth in one of the files."""
    found = pairs(a.rows, b.rows)
    first, second = ({(row.backend, row.case): row for row in source.rows} for source in (a, b))
    lines = []
    for pair in sorted(found, key=lambda pair: (pair.missing, not pair.changed, pair.ratio or math.inf)):
        key = (pair.backend, pair.case)
        bandwidths = (units.three_digits(gbps) if gbps else "" for gbps in (pair.a_gbps, pair.b_gbps))
        ratio = units.ratio(pair.ratio, 3) if pair.ratio else ""
        kind = {"slower": "bad", "faster": "good", SAME: ""}.get(pair.verdict, "plain")
        lines.append(Line((pair.backend, str(pair.case), *bandwidths, ratio, _interval(key, first, second), pair.verdict), kind))
    notes = [f"The devices differ: A is {a.device}, B is {b.device}. The ratios compare the devices."] if a.device != b.device else []
    if a.device == b.device:
        if apart := _environments_apart(a, b):
            notes.append(f"The environments differ: {'; '.join(apart)}.")
        if moved := cards_note(a.rows, b.rows):
            notes.append(f"{moved}.")
    return Comparison(f"{a.name}, {a.device}", f"{b.name}, {b.device}", f"{summary(found)}." if found else "", tuple(notes), tuple(lines))


def _environments_apart(a: Source, b: Source) -> list[str]:
    """How the recorded environments differ; none if one has none."""
    first, second = (source.header.get("environment") for source in (a, b))
    return environment_match.differences(first, second) if isinstance(first, dict) and isinstance(second, dict) else []


def _interval(key: Key, first: Mapping[Key, Row], second: Mapping[Key, Row]) -> str:
    """The ratio of the bandwidths for the ends of both 95 % intervals that lie furthest apart. It contains the ratio of the medians."""
    a, b = first.get(key), second.get(key)
    if not (a and b and a.gbps and b.gbps and (own := ends(a)) and (other := ends(b))):
        return ""
    return f"{own[0] / other[1]:.3f} to {own[1] / other[0]:.3f}"
