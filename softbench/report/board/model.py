"""What a board shows: the results of each operation on each card in all runs, the fastest backends of each case, and what changed.

Runs are added from the oldest to the newest. The work of adding one is linear in its cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from softbench.core.case import CaseKey
from softbench.core.errors import ResultsError
from softbench.core.machine import same_card
from softbench.core.outcome import UNTRIED, Grade
from softbench.core.statistics import Ratio
from softbench.gate.unpaired import MARGIN
from softbench.report.standings import standing
from softbench.results.columns import IMPLAUSIBLE, Row, grouped
from softbench.results.compare import FASTER, SLOWER, Pair, pairs
from softbench.results.csv import read_csv, unvouched
from softbench.results.runs import FoundRun, find
from softbench.results.select import apart

OTHER_TIMERS = {"device": "device time", "graph": "CUDA graphs", "host": "host time"}
"""Timers that measure something else than the default one, so that their results stand apart."""
LOST, BACK = "lost", "back"
"""A backend has no result any more, or has one again."""
KINDS = (LOST, SLOWER, FASTER, BACK)
"""The kinds of changes, those first that need a look."""


class GroupKey(NamedTuple):
    """What one screen of the board shows together."""

    op: str
    direction: str
    dtype: str
    card: str
    """The device, and what was measured there if it is not the default: `NVIDIA H200, warm L2`."""


class BoardRun(NamedTuple):
    """A run on one card."""

    found: FoundRun
    card: str
    unit: str
    """Of its first cell."""
    cells: int
    timer: str
    """The timers of its medians."""


class Point(NamedTuple):
    """A result of one backend in one case of a run."""

    run: int
    us: float | None
    """Median in microseconds; None without a result."""
    of_copy: float | None
    """Fraction of copy in the same run."""
    state: str
    """Empty, `doubtful`, or why there is no result."""


class Result(NamedTuple):
    """The newest result of a backend in a case."""

    run: int
    row: Row
    copy: Row | None
    """That of copy in the same run; None if it is doubtful, or missing."""


@dataclass(slots=True)
class BoardCase:
    """One case of a group."""

    bytes: float = 0.0
    """Algorithmic bytes; 0 if no run published a bandwidth."""
    in_l2: bool = False
    newest: dict[str, Result] = field(default_factory=dict)
    series: dict[str, list[Point]] = field(default_factory=dict)
    fastest: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    """From this run on: the fastest backend, and those that tie with it."""

    def add(self, run: int, row: Row, copy: Row | None) -> None:
        """The result of one backend in a newer run."""
        self.newest[row.backend] = Result(run, row, copy)
        if row.gbps and row.median_us:
            self.bytes = row.gbps * row.median_us * 1e3
        point = Point(run, None, None, IMPLAUSIBLE if IMPLAUSIBLE in row.labels else row.status)
        if row.timed:
            self.in_l2 = row.in_l2
            alike = copy is None or copy.timer in (row.timer, "")  # a share of two timers is no speed
            point = Point(run, row.median_us, row.of_copy if alike else None, "doubtful" if row.doubtful else "")
        self.series.setdefault(row.backend, []).append(point)

    def rank(self, run: int) -> None:
        """Find the fastest backends after a run was added.

        Results of older runs are compared as if they had been measured in the newest run that has `copy`: their times are scaled by it.
        Those of another timer are left out, since do_bench's may be the host's.
        """
        level = max((one for one in self.newest.values() if one.copy), key=lambda one: one.run, default=None)
        timer = level.copy.timer if level and level.copy else ""
        rivals = [one for one in self.newest.values() if not timer or (one.copy or one.row).timer in (timer, "")]
        found = standing([_scaled(one, level) for one in rivals])
        names = tuple(row.backend for row in found.tied) if found.rows else ()
        if names != (self.fastest[-1][1] if self.fastest else ()):
            self.fastest.append((run, names))


def _scaled(one: Result, level: Result | None) -> Row:
    if level is None or one.run == level.run or not (one.copy and level.copy and level.copy.median_us):
        return one.row
    if (ratio := one.row.times_as_fast(one.copy)) is None:
        return one.row
    us = level.copy.median_us
    return replace(one.row, median_us=us / ratio.value, low_us=us / ratio.high, high_us=us / ratio.low)


@dataclass(frozen=True, slots=True)
class Change:
    """What `softbench compare` says of one backend in one group, between a run and the run before that has the same cells."""

    run: int
    before: int
    group: GroupKey
    backend: str
    kind: str
    """`faster`, `slower`, `lost` or `back`."""
    cases: Sequence[tuple[CaseKey, Ratio]]
    """Each case with the ratio of speeds, now over before and without the drift of copy; NaN for `lost` and `back`."""
    compared: int
    """Cells of the backend that both runs have."""
    notes: Sequence[str]
    """Why a result is lost, and whether another card measured it."""


@dataclass(slots=True)
class Board:
    """The runs, and what is known from them."""

    threshold: float = MARGIN
    """A smaller change is none, as a fraction."""
    runs: list[BoardRun] = field(default_factory=list)
    """Oldest first."""
    groups: dict[GroupKey, dict[CaseKey, BoardCase]] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    _copies: list[Sequence[Row]] = field(default_factory=list)
    """The rows of copy in each run."""

    def add(self, found: FoundRun, rows: Sequence[Row]) -> None:
        """Add a newer run: its rows on one card, each cell once (`softbench.results.select.apart`)."""
        number, card = len(self.runs), card_of(rows)
        timers = ", ".join(sorted({row.timer for row in rows if row.timer}))
        self.runs.append(BoardRun(found, card, rows[0].unit, len(rows), timers))
        self._copies.append([row for row in rows if row.grade == Grade.YARDSTICK])
        before: dict[int, list[tuple[Row, Row]]] = {}
        for key, some in grouped((row for row in rows if row.status not in UNTRIED), lambda row: row.case).items():
            case = self.groups.setdefault(_group(key, card), {}).setdefault(key, BoardCase())
            copy = next((row for row in some if row.grade == Grade.YARDSTICK and row.timed and not row.doubtful), None)
            for row in some:
                if old := case.newest.get(row.backend):
                    before.setdefault(old.run, []).append((old.row, row))
                case.add(number, row, copy)
            case.rank(number)
        for run, cells in before.items():
            self._compare(run, number, cells)

    def _compare(self, old: int, new: int, cells: Sequence[tuple[Row, Row]]) -> None:
        """Add the changes of these cells since an older run. All copies of both runs show the drift, as in `softbench compare`."""
        first, second = ({(row.backend, row.case): row for row in rows} for rows in zip(*cells, strict=True))
        a, b = ({(row.backend, row.case): row for row in self._copies[run]} | own for run, own in ((old, first), (new, second)))
        found = [pair for pair in pairs([*a.values()], [*b.values()], self.threshold) if (pair.backend, pair.case) in first]
        card = self.runs[new].card
        for (backend, group), compared in grouped(found, lambda one: (one.backend, _group(one.case, card))).items():
            for kind, some in grouped(compared, _kind).items():
                if kind:
                    both = [(first[backend, pair.case], second[backend, pair.case]) for pair in some]
                    cases = [(pair.case, pair.change or UNKNOWN) for pair in some]
                    self.changes.append(Change(new, old, group, backend, kind, cases, len(compared), _notes(some, both)))


def collect(places: Sequence[Path], threshold: float = MARGIN) -> tuple[Board, list[str]]:
    """The board of the runs in folders and CSVs, and a line for each file that cannot be read, or not wholly.

    Raises:
        ResultsError: a path is missing.
    """
    board = Board(threshold)
    found, problems = find(places)
    for run in found:
        try:
            unvouched(run.file)
            rows, warnings = read_csv(run.file, stored=False)
        except ResultsError as error:
            problems.append(str(error))
            continue
        problems += warnings
        for part in apart(rows):
            board.add(run, part)
    return board, problems


UNKNOWN = Ratio(math.nan, math.nan, math.nan)


def card_of(rows: Sequence[Row]) -> str:
    """The device, and what was measured there if it is not the default."""
    others = [what for timer, what in OTHER_TIMERS.items() if any(row.timer == timer for row in rows)]
    return ", ".join([rows[0].device, *(["warm L2"] if any(row.l2 == "warm" for row in rows) else []), *others])


def _group(case: CaseKey, card: str) -> GroupKey:
    return GroupKey(case.op, case.direction, case.dtype, card)


def _kind(pair: Pair) -> str:
    """The kind of a change; empty for none."""
    return pair.verdict if pair.verdict in (FASTER, SLOWER) else LOST if pair.lost else BACK if pair.verdict.startswith("A: ") else ""


def _notes(some: Sequence[Pair], both: Sequence[tuple[Row, Row]]) -> list[str]:
    found = [f"now {some[0].verdict.removeprefix('B: ')}"] if some[0].lost else []
    return found + (["measured by another card of this model"] if any(not same_card(old.unit, new.unit) for old, new in both) else [])
