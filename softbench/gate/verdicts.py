"""The gate's verdicts, and the decision they add up to. The tests are in `unpaired` and `paired`.

Ratios are of latency, new over old: above 1 is slower. Every test asks for more than the margin: H0 is *slowdown <= margin*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from softbench.core import text
from softbench.core.outcome import FAILURES, Status
from softbench.gate.inference import benjamini_hochberg, holm
from softbench.gate.samples import CellKey, CellSamples


class State(StrEnum):
    """What became of a cell."""

    SLOWER = "slower"
    """Beyond the margin after correction for multiple tests: a regression."""
    FASTER = "faster"
    SAME = "same"
    """Its interval lies within the margin."""
    AMBIGUOUS = "ambiguous"
    """Undecided: too noisy, not confirmed, or the yardstick moved."""
    MISSING = "missing"
    """Measured before, not now."""
    NEW = "new"
    """Measured now, not before."""
    BROKEN = "broken"
    """Correct before, wrong or failed now."""


TESTED = (State.SLOWER, State.FASTER, State.SAME, State.AMBIGUOUS)
RIGHT = (Status.OK, Status.CHECKED)
FAILING = (State.SLOWER, State.MISSING, State.BROKEN)
LAUNCH_BOUND_US = 10.0
"""A shorter call on a GPU is mostly launch, which host and driver determine: such cells are advisory."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How strict the gate is."""

    margin: float
    """The slowdown that passes, as a fraction."""
    alpha: float = 0.05
    """Family-wise error rate of the regressions, and false discovery rate of the list to look at."""
    most_margin: float = 0.10
    """A cell that would need a larger margin is reported and not gated."""
    reference_moves: float = 0.05
    """The largest change of the reference before a cell is ambiguous."""
    most_ambiguous: float = 0.10
    """The largest share of ambiguous gated cells before the run is inconclusive."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One cell, judged."""

    cell: CellKey
    state: State
    reason: str
    """A sentence for the report."""
    ratio: float | None = None
    """Latency new over old."""
    interval: tuple[float, float] | None = None
    """95 % of the ratio."""
    covers: str = ""
    """What the interval covers, for the report."""
    n: str = ""
    """The number of values: `10+3 processes`, `20 rounds`."""
    margin: float | None = None
    p: float | None = None
    """Adjusted by Holm over the family, one-sided, of H0: slowdown <= margin."""
    raw_ratio: float | None = None
    """The ratio before the change of copy is subtracted."""
    gated: bool = True
    """False: advisory, it fails nothing."""
    look: bool = False
    """True if the slowdown is significant by Benjamini and Hochberg's procedure."""

    @property
    def fails(self) -> bool:
        """True if this cell makes the exit code 1."""
        return self.gated and self.state in FAILING

    def document(self) -> dict[str, Any]:
        """As JSON."""
        found = asdict(self)
        return {**found.pop("cell")._asdict(), "case": self.cell.case, **found}


@dataclass(frozen=True, slots=True)
class CellTest:
    """One cell's test, before the correction for multiple tests."""

    verdict: Verdict
    slower_p: float = 1.0
    """One-sided, of H0: slowdown <= margin."""
    faster_p: float = 1.0
    """One-sided, of H0: speed-up <= margin."""
    doubt: str = ""
    """Why this cell cannot be judged, independent of p."""


@dataclass(frozen=True, slots=True)
class GateReport:
    """The gate's report."""

    what: str
    """The two sides of the comparison."""
    verdicts: tuple[Verdict, ...]
    """Regressions first."""
    rules: Rules
    notes: tuple[str, ...] = field(default=())
    """Notes for the reader: warnings about the environment, omissions."""

    @property
    def exit_code(self) -> int:
        """0 pass; 1 regression, missing or broken; 3 nothing could be judged, or too much is ambiguous."""
        if any(verdict.fails for verdict in self.verdicts):
            return 1
        return 3 if not self._judged() or self._share_ambiguous() > self.rules.most_ambiguous else 0

    @property
    def summary(self) -> str:
        """One line: the outcome and why."""
        counts = [text.count(number, "cell") + f" {state}" for state in State if (number := sum(v.state is state for v in self.verdicts))]
        listed = ", ".join(counts) or "no cell"
        match self.exit_code:
            case 0:
                return f"PASS: {listed}"
            case 1:
                return f"FAIL: {listed}"
            case _ if not self._judged():
                return f"INCONCLUSIVE: no cell could be judged ({listed})"
            case _:
                share = f"{self._share_ambiguous():.0%} of the gated cells are ambiguous, more than {self.rules.most_ambiguous:.0%}"
                return f"INCONCLUSIVE: {share} ({listed}); measure more rounds or processes on a quieter machine"

    def _judged(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.gated and verdict.state in TESTED]

    def _share_ambiguous(self) -> float:
        judged = self._judged()
        return sum(verdict.state is State.AMBIGUOUS for verdict in judged) / len(judged) if judged else 1.0

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "what": self.what,
            "exit_code": self.exit_code,
            "summary": self.summary,
            "rules": asdict(self.rules),
            "notes": list(self.notes),
            "verdicts": [verdict.document() for verdict in self.verdicts],
        }


ORDER = (State.SLOWER, State.BROKEN, State.MISSING, State.AMBIGUOUS, State.FASTER, State.NEW, State.SAME)


def ranked(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Failing verdicts first, the largest ratio first."""
    return tuple(sorted(verdicts, key=lambda v: (not v.fails, ORDER.index(v.state), -(v.ratio or 0))))


def corrected(tests: Sequence[CellTest], rules: Rules) -> list[Verdict]:
    """The verdicts of tested cells, with p values corrected over the gated cells.

    Holm's correction decides which cells are regressions. Benjamini and Hochberg's procedure marks cells to look at.
    """
    counted = [tested for tested in tests if tested.verdict.gated and not tested.doubt]
    slower = dict(zip(map(id, counted), holm([tested.slower_p for tested in counted]), strict=True))
    faster = dict(zip(map(id, counted), holm([tested.faster_p for tested in counted]), strict=True))
    worth = dict(zip(map(id, counted), benjamini_hochberg([tested.slower_p for tested in counted]), strict=True))
    found = []
    for tested in tests:
        key = id(tested)
        p, q = slower.get(key, tested.slower_p), worth.get(key, tested.slower_p)
        state, reason = _state(tested, p, faster.get(key, tested.faster_p), rules)
        look = not tested.doubt and q <= rules.alpha
        if look and state is State.AMBIGUOUS:
            reason = f"significant on its own but not after correction for multiple tests (p {p:.2g})"
        if not tested.verdict.gated and tested.verdict.reason:
            reason = f"{tested.verdict.reason}; {reason}"
        found.append(replace(tested.verdict, state=state, reason=reason, p=p, look=look))
    return found


def _state(tested: CellTest, slower: float, faster: float, rules: Rules) -> tuple[State, str]:
    verdict, margin = tested.verdict, tested.verdict.margin or rules.margin
    if tested.doubt:
        return State.AMBIGUOUS, tested.doubt
    if slower <= rules.alpha:
        return State.SLOWER, f"slower by more than the margin of {margin:.1%}, after correction for multiple tests (p {slower:.2g})"
    if faster <= rules.alpha:
        return State.FASTER, f"faster by more than the margin of {margin:.1%} (p {faster:.2g})"
    if verdict.interval and 1 / (1 + margin) <= verdict.interval[0] and verdict.interval[1] <= 1 + margin:
        return State.SAME, f"within the margin of {margin:.1%}"
    width = f"its interval reaches {_reach(verdict.interval)}" if verdict.interval else "too few values for an interval"
    return State.AMBIGUOUS, f"neither within the margin of {margin:.1%} nor beyond it: {width}"


def _reach(interval: tuple[float, float]) -> str:
    return f"from {interval[0] - 1:+.1%} to {interval[1] - 1:+.1%}"


def unmeasured(cell: CellKey, new: CellSamples | None, old: CellSamples | None, was: str) -> Verdict | None:
    """The verdict on a cell that only one side measured, or that broke; None if the test decides.

    `was` names the old side: `the baseline`, `the reference torch`.
    """
    now, then = (side.status if side else "" for side in (new, old))
    if new is not None and ((now in FAILURES and then not in FAILURES) or (now == Status.UNVERIFIED and then in (*RIGHT, ""))):
        before = "was right" if then in RIGHT else f"was {then}" if then else "was not"
        return Verdict(cell, State.BROKEN, f"{before} in {was}, is {now}: {new.reason}")
    if now == Status.OK and then != Status.OK:
        return Verdict(cell, State.NEW, f"{then} in {was}: {old.reason}" if old else f"not in {was}")
    if then == Status.OK != now or (then == Status.CHECKED and now not in RIGHT):
        return Verdict(cell, State.MISSING, f"is in {was}, is {now} now: {new.reason}" if new else f"is in {was} and was not measured")
    return None


def launch_bound(us: float, device: object, sides: Sequence[CellSamples]) -> str:
    """Why a cell of this latency is advisory; empty if it is not. `sides` are the cell and the cell it is compared with."""
    if device == "cuda" and us < LAUNCH_BOUND_US:
        return f"advisory: launch-bound, {text.micros(us)} is under {LAUNCH_BOUND_US:g} us"
    if told := next((side.host_bound for side in sides if side.host_bound), ""):
        return f"advisory: launch-bound, no figure of the device's bandwidth: {told}"
    return ""


def finite(values: Iterable[float]) -> bool:
    """True if every value is finite."""
    return all(math.isfinite(value) for value in values)
