"""Finds the commits that made something slower, with the gate as the test of a commit.

A commit is *bad* if a cell that is slower at the end is slower in it than at the start, and *good* if every such cell is within the margin.
An undecided commit is neither, so the search never moves past it: it measures the next nearest commit instead, but no more after
MOST_UNDECIDED of them. The ends of a range are always decided. When a bad commit follows a good one, the two are compared with each other,
because a slowdown below the margin may have come before. The search then goes on from the bad commit, so it finds each slowdown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from softbench.core.json import JsonObject
from softbench.gate.samples import CellKey
from softbench.gate.verdicts import TESTED, GateReport, State, Verdict


class Decision(StrEnum):
    """What a comparison of a commit with an earlier one says."""

    SLOWER = "slower"
    """Slower, or broken or missing."""
    WITHIN = "within the margin"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Step:
    """A commit compared with an earlier one."""

    commit: str
    against: str
    decision: Decision
    reason: str = ""
    """Why nothing was decided."""
    verdicts: tuple[Verdict, ...] = ()
    """Those that the decision is about, the worst first."""

    @property
    def text(self) -> str:
        """The decision with the worst cell, such as `slower: new forward-bf16-8x64 1.083 [1.071, 1.095]`."""
        shown = f"{self.decision}: {figure(self.verdicts[0])}" if self.verdicts else f"{self.decision}"
        return f"{shown}: {self.reason}" if self.reason else shown


@dataclass(frozen=True, slots=True)
class Found:
    """A commit that made something slower."""

    commit: str
    before: str
    """The commit that it was compared with: its parent, or the last one before undecided commits."""
    step: Step
    """The comparison of the two."""
    undecided: tuple[str, ...] = ()
    """Commits between both, undecided or not measured: one of them may be the cause instead."""
    steps: int = 0
    """The comparisons that found it."""

    @property
    def named(self) -> bool:
        """True if this commit, and no other one, is shown to be slower than its parent."""
        return not self.undecided and self.step.decision is Decision.SLOWER

    def document(self) -> JsonObject:
        """As JSON."""
        own = {name: getattr(self, name) for name in ("commit", "before", "undecided", "steps", "named")}
        return {**own, "step": step_document(self.step)}


def step_document(step: Step) -> JsonObject:
    """As JSON."""
    own = {name: getattr(step, name) for name in ("commit", "against", "decision", "reason")}
    return {**own, "verdicts": [verdict.document() for verdict in step.verdicts]}


Compare = Callable[[str, str, Collection[CellKey]], Step]
"""`compare(commit, against, cells)`: compares these cells of two commits, all for none."""


@dataclass(slots=True)
class Search:
    """A search of a line of commits, from the oldest to the newest."""

    commits: Sequence[str]
    compare: Compare
    told: Callable[[Step], object] = lambda step: None
    """Gets each comparison once it is decided."""
    steps: list[Step] = field(default_factory=list)
    end: Step | None = None
    """The comparison of the ends, while its half may decide a commit (`of_half`)."""

    def run(self) -> Iterator[Found]:
        """Yield each commit that made something slower, as it is found. The last of `steps` says why there are no more."""
        start, last = 0, len(self.commits) - 1
        while start < last:
            before = len(self.steps)
            end = self._step(last, start)
            if end.decision is not Decision.SLOWER:
                return
            cells = [verdict.cell for verdict in end.verdicts]
            good, bad = self._narrowed(start, last, cells, end)
            known = good == start and bad == last  # both were compared already
            found = end if known else self._step(bad, good, cells)
            yield Found(self.commits[bad], self.commits[good], found, tuple(self.commits[good + 1 : bad]), len(self.steps) - before)
            start = bad

    def _narrowed(self, start: int, last: int, cells: Sequence[CellKey], end: Step) -> tuple[int, int]:
        """The last good and the first bad commit; those between them are undecided, or not measured after too many undecided ones."""
        good, bad, undecided, measured, self.end = start, last, set[int](), 0, end
        while measured < MOST_UNDECIDED and (places := [place for place in range(good + 1, bad) if place not in undecided]):
            place = min(places, key=lambda one: abs(2 * one - good - bad))
            step = self._step(place, start, cells)
            match step.decision:
                case Decision.SLOWER:
                    bad = place
                case Decision.WITHIN:
                    good = place
                case Decision.UNDECIDED:
                    undecided.add(place)
                    measured += bool(step.verdicts)
        self.end = None
        return good, bad

    def _step(self, place: int, against: int, cells: Sequence[CellKey] = ()) -> Step:
        step = self.compare(self.commits[place], self.commits[against], cells)
        self.steps.append(of_half(step, self.end))
        self.told(self.steps[-1])
        return self.steps[-1]


MOST_UNDECIDED = 3
"""Commits that are measured and stay undecided in the search of one slowdown: then the machine is too noisy to decide others."""
LARGE = 4.0
"""A slowdown of so many margins is looked for by its half, in log."""
HALVED = (State.AMBIGUOUS, State.SAME, State.FASTER)
"""The states of cells that half of a slowdown may decide."""
SETTLED = (State.SAME, State.FASTER, State.NEW, State.UNMEASURED)
"""The states of cells that are not slower."""


def steps_at_most(commits: int) -> int:
    """The comparisons that find one slowdown in a range of this many commits if all are decided."""
    return 1 + max(0, commits - 1).bit_length() + (commits > 1)


def decided(report: GateReport, commit: str, against: str, cells: Collection[CellKey] = ()) -> Step:
    """What a report of the gate says of these cells, or of all: slower if one fails, within the margin if none may be slower."""
    asked = [one for one in report.verdicts if (one.cell in cells if cells else one.gated)]
    if slower := tuple(one for one in asked if one.fails):
        return Step(commit, against, Decision.SLOWER, verdicts=slower)
    open_ones = [one for one in asked if one.state not in SETTLED and (one.state is not State.AMBIGUOUS or one.may_be_slower)]
    tested = tuple(sorted((one for one in asked if one.state in TESTED), key=lambda one: -(one.ratio or 0)))
    if open_ones or not tested:
        reason = open_ones[0].reason if open_ones else report.summary
        return Step(commit, against, Decision.UNDECIDED, reason, (*open_ones, *(one for one in tested if one not in open_ones)))
    return Step(commit, against, Decision.WITHIN, verdicts=tested)


def of_half(step: Step, end: Step | None) -> Step:
    """An undecided step decided by half of a slowdown, in log, if the comparison of the ends shows one of LARGE margins; else the step.

    An interval that contains the half decides nothing, and neither does one beyond the margin on the side of the fast commit.
    """
    sizes = {one.cell: math.log(one.interval[0]) for one in (end.verdicts if end else ()) if one.interval}
    known = []
    for one in step.verdicts:
        size, margin = sizes.get(one.cell, 0.0), math.log1p(one.margin or 0.0)
        if step.decision is not Decision.UNDECIDED or not one.interval or one.state not in HALVED or size < LARGE * margin or not margin:
            return step
        low, high = map(math.log, one.interval)
        known.append(Decision.SLOWER if low > size / 2 else Decision.WITHIN if low <= margin and high < size / 2 else Decision.UNDECIDED)
    decision = next((one for one in (Decision.SLOWER, Decision.UNDECIDED, Decision.WITHIN) if one in known), Decision.UNDECIDED)
    return step if decision is Decision.UNDECIDED else Step(step.commit, step.against, decision, "by half of the slowdown", step.verdicts)


def more_may_decide(step: Step, times: float) -> bool:
    """True if so many times the process pairs decide an undecided step, provided that ratios and spreads stay as they are."""
    ends = []
    for one in step.verdicts:
        if one.state is State.AMBIGUOUS and one.ratio and one.interval and one.may_be_slower:
            half = math.log(one.interval[1] / one.interval[0]) / 2 / math.sqrt(times)
            beyond = math.log(one.ratio) - math.log1p(one.margin or 0.0)
            ends.append((beyond - half > 0, beyond + half < 0))
    return any(slower for slower, _ in ends) or (bool(ends) and all(within for _, within in ends))


def figure(verdict: Verdict) -> str:
    """A cell with its ratio and the interval of the ratio."""
    shown = f"{verdict.cell.backend} {verdict.cell.case} {verdict.state if verdict.ratio is None else f'{verdict.ratio:.3f}'}"
    return f"{shown} [{verdict.interval[0]:.3f}, {verdict.interval[1]:.3f}]" if verdict.interval else shown
