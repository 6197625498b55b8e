"""The gate's verdicts, and the decision they add up to. The tests are in `unpaired` and `paired`.

Ratios are of latency, new over old: above 1 is slower. Every test asks for more than the margin: H0 is *slowdown <= margin*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from softbench.core import text
from softbench.core.case import DO_BENCH
from softbench.core.json import JsonObject
from softbench.core.outcome import FAILURES, Status
from softbench.gate.inference import benjamini_hochberg, holm
from softbench.gate.samples import CellKey, CellSamples


class State(StrEnum):
    """The verdict on a cell."""

    SLOWER = "slower"
    """Beyond the margin after correction for multiple tests: a regression."""
    FASTER = "faster"
    SAME = "same"
    """Its interval lies within the margin."""
    CLOCK = "clock"
    """Slower in time, and within the margin in time x SM clock: a lower clock explains it."""
    AMBIGUOUS = "ambiguous"
    """Undecided: too noisy, not confirmed, or the yardstick changed."""
    MISSING = "missing"
    """Measured before, not now."""
    NEW = "new"
    """Measured now, not before."""
    BROKEN = "broken"
    """Correct before, wrong or failed now."""
    FAILED = "failed"
    """Wrong, failed or unverified on one side, and not right on the other: it cannot pass."""
    UNMEASURED = "unmeasured"
    """Timed on neither side, and wrong on none."""


TESTED = (State.SLOWER, State.FASTER, State.SAME, State.CLOCK, State.AMBIGUOUS)
CORRECT = (Status.OK, Status.CHECKED)
FAILING = (State.SLOWER, State.MISSING, State.BROKEN)
NOT_RIGHT = (*FAILURES, Status.UNVERIFIED)
SHORT_US = 10.0
"""Cells of shorter calls on a GPU are advisory: more than a tenth of their time is the events' (1.2 us on an H200)."""
ADVISORY_UP_TO = 0.25
"""The largest slowdown that an advisory cell may have. A larger one is more than noise, so the cell is gated."""
AMBIGUOUS_BEYOND = 0.05
"""How far beyond the margin the interval of an ambiguous cell may reach, before the run is inconclusive."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How strict the gate is."""

    margin: float
    """The slowdown that passes, as a fraction."""
    alpha: float = 0.05
    """Family-wise error rate of the regressions, and false discovery rate of `look`."""
    reference_moves: float = 0.05
    """The largest change of the reference before a cell is ambiguous."""
    most_ambiguous: float = 0.10
    """The largest share of gated cells that are ambiguous and may be slower, before the run is inconclusive."""
    margins: Mapping[str, float] = field(default_factory=dict)
    """The margins of operations that have their own."""

    def margin_of(self, cell: CellKey) -> float:
        """The margin of a cell."""
        return self.margins.get(cell.op.partition("(")[0], self.margin)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one cell, with its numbers."""

    cell: CellKey
    """The cell."""
    state: State
    """`slower`, `faster`, `same`, `clock`, `ambiguous`, `missing`, `new`, `broken`, `failed` or `unmeasured`."""
    reason: str
    """Why the cell has this state."""
    ratio: float | None = None
    """New latency over old latency, against a baseline without the change of copy; null if a side was not measured."""
    interval: tuple[float, float] | None = None
    """The 95 % interval of the ratio, low and high; null if it is unknown."""
    covers: str = ""
    """What the interval covers."""
    n: str = ""
    """The number of values, such as `10+3 processes` or `6 process pairs`."""
    margin: float | None = None
    """The slowdown that passes, as a fraction; null if the cell was not tested."""
    p: float | None = None
    """One-sided p of H0: slowdown <= margin, with Holm's correction over all gated cells. Of a faster cell: of H0: speed-up <= margin.
    Against a baseline the larger one of this p and of that of H0: a shift between sittings of unchanged code."""
    raw_ratio: float | None = None
    """The ratio before the change of copy is subtracted; null without a baseline."""
    gated: bool = True
    """False if the cell is advisory: its verdict alone does not change the exit code."""
    fdr_significant: bool = False
    """True if the slowdown is significant by Benjamini and Hochberg's procedure: look at the cell, even if it is ambiguous."""

    @property
    def fails(self) -> bool:
        """True if this cell makes the exit code 1."""
        return self.gated and self.state in FAILING

    @property
    def up_to(self) -> float:
        """The largest ratio that the measurement allows: the end of the interval or the raw ratio; inf if there is no interval."""
        return max(self.interval[1], self.raw_ratio or 0) if self.interval else math.inf

    @property
    def advises(self) -> bool:
        """True if the cell is advisory and its interval lies beyond the margin: it would fail if it counted."""
        return not self.gated and self.interval is not None and self.interval[0] > 1 + (self.margin or 0)

    @property
    def may_be_slow(self) -> bool:
        """True if the cell is ambiguous, and its interval allows a slowdown that must not pass."""
        return self.gated and self.state is State.AMBIGUOUS and not self.up_to <= 1 + (self.margin or 0) + AMBIGUOUS_BEYOND

    @property
    def may_be_slower(self) -> bool:
        """True if the cell is ambiguous, and its interval or its raw ratio is unknown or beyond the margin."""
        return self.state is State.AMBIGUOUS and (self.margin is None or not self.up_to <= 1 + self.margin)

    def document(self) -> JsonObject:
        """As JSON. The key of `fdr_significant` is `look`."""
        data = asdict(self)
        look = data.pop("fdr_significant")
        return {**data.pop("cell")._asdict(), "case": self.cell.case, **data, "look": look}


@dataclass(frozen=True, slots=True)
class CellTest:
    """One cell's test, before the correction for multiple tests."""

    verdict: Verdict
    slower_p: float = 1.0
    """One-sided, of H0: slowdown <= margin."""
    faster_p: float = 1.0
    """One-sided, of H0: speed-up <= margin."""
    why_ambiguous: str = ""
    """Why the cell is ambiguous, independent of p; empty if p decides."""


@dataclass(frozen=True, slots=True)
class GateReport:
    """The gate's report."""

    what: str
    """The two sides of the comparison."""
    verdicts: tuple[Verdict, ...]
    """Each cell's verdict, regressions first."""
    rules: Rules
    """How strict the gate was."""
    notes: tuple[str, ...] = field(default=())
    """Notes for the reader: warnings about the environment, omissions."""
    next_step: str = ""
    """What to do about a report that does not pass, with the command."""

    @property
    def exit_code(self) -> int:
        """0 pass; 1 a cell is slower, missing or broken; 3 inconclusive."""
        if any(verdict.fails for verdict in self.verdicts):
            return 1
        return 3 if self.why_inconclusive else 0

    @property
    def why_inconclusive(self) -> str:
        """Why the exit code is 3; empty if it is not."""
        if failed := [verdict for verdict in self.verdicts if verdict.state is State.FAILED]:
            return f"{text.count(len(failed), 'cell')} right on neither side ({failed[0].cell.backend} {failed[0].cell.case})"
        if self.nothing_tested:
            return "no cell could be judged"
        if clock := [verdict for verdict in self.verdicts if verdict.gated and verdict.state is State.CLOCK]:
            return f"{text.count(len(clock), 'cell')} slower by the SM clock ({clock[0].cell.backend} {clock[0].cell.case})"
        if slow := [verdict for verdict in self.verdicts if verdict.may_be_slow]:
            worst = max(slow, key=lambda verdict: verdict.up_to)
            known = f", new/old up to {worst.up_to:.3f}" if math.isfinite(worst.up_to) else ", no interval"
            found = (
                f"{text.count(len(slow), 'ambiguous cell')} may be more than {text.percent(self.rules.margin + AMBIGUOUS_BEYOND)} slower"
            )
            return f"{found} ({worst.cell.backend} {worst.cell.case}{known})"
        if self._share_ambiguous() > self.rules.most_ambiguous:
            return (
                f"{self._share_ambiguous():.0%} of the gated cells may be slower than the margin, more than {self.rules.most_ambiguous:.0%}"
            )
        if self.too_many_advise:
            slower, tested = (sum(verdict.advises for verdict in self.verdicts), sum(verdict.state in TESTED for verdict in self.verdicts))
            listed = f"{slower} of {text.count(tested, 'cell')}"
            return f"{listed} are advisory and slower than the margin, more than {self.rules.most_ambiguous:.0%}"
        return ""

    @property
    def summary(self) -> str:
        """One line: the outcome and why. Advisory cells are listed apart."""
        listed = _counted([verdict for verdict in self.verdicts if verdict.gated]) or "no cell"
        advisory = _counted([verdict for verdict in self.verdicts if not verdict.gated])
        listed += f" (advisory, never failing: {advisory})" if advisory else ""
        match self.exit_code:
            case 0:
                return f"PASS: {listed}"
            case 1:
                return f"FAIL: {listed}"
            case _:
                return f"INCONCLUSIVE: {self.why_inconclusive}: {listed}"

    @property
    def nothing_tested(self) -> bool:
        """True if no gated cell was tested, so that nothing is known."""
        return not self._tested()

    @property
    def too_many_advise(self) -> bool:
        """True if a larger share of the cells than may be ambiguous is advisory and slower than the margin."""
        tested = [verdict for verdict in self.verdicts if verdict.state in TESTED]
        return sum(verdict.advises for verdict in tested) > self.rules.most_ambiguous * len(tested)

    def _tested(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.gated and verdict.state in TESTED]

    def _share_ambiguous(self) -> float:
        """The share of the gated cells that are ambiguous and may be slower than the margin."""
        tested = self._tested()
        return sum(verdict.may_be_slower for verdict in tested) / len(tested) if tested else 1.0

    def document(self) -> JsonObject:
        """As JSON."""
        return {
            "what": self.what,
            "exit_code": self.exit_code,
            "summary": self.summary,
            "rules": asdict(self.rules),
            "notes": list(self.notes),
            "next_step": self.next_step,
            "verdicts": [verdict.document() for verdict in self.verdicts],
        }


def _counted(verdicts: Sequence[Verdict]) -> str:
    """How many verdicts have each state: `2 cells slower, 38 cells same`."""
    counts = {state: sum(verdict.state is state for verdict in verdicts) for state in State}
    return ", ".join(f"{text.count(number, 'cell')} {state}" for state, number in counts.items() if number)


ORDER = tuple(map(State, ("slower", "broken", "missing", "failed", "clock", "ambiguous", "faster", "new", "unmeasured", "same")))


def ranked(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Failing verdicts first, the largest ratio first."""
    return tuple(sorted(verdicts, key=lambda v: (not v.fails, ORDER.index(v.state), -(v.ratio or 0))))


def corrected(tests: Sequence[CellTest], rules: Rules, *, share: float = 1.0, others: int = 0) -> list[Verdict]:
    """The verdicts of tested cells, with p values corrected over the gated cells.

    Holm's correction decides which cells are regressions. Benjamini and Hochberg's procedure marks cells that are significant on their own.
    `share` is the part of the error rate that these tests may spend; `others` is the number of cells that belong to the family too.
    """
    gated = [test for test in tests if test.verdict.gated and not test.why_ambiguous]
    rest = [1.0] * others
    slower, faster = ([getattr(test, side) / share for test in gated] + rest for side in ("slower_p", "faster_p"))
    slower_p, faster_p, fdr_p = (
        dict(zip(map(id, gated), p, strict=False)) for p in (holm(slower), holm(faster), benjamini_hochberg(slower))
    )
    verdicts = []
    for test in tests:
        key = id(test)
        p, q = slower_p.get(key, test.slower_p), fdr_p.get(key, test.slower_p)
        if test.why_ambiguous:
            state, reason = State.AMBIGUOUS, test.why_ambiguous
        else:
            state, reason = state_and_reason(test.verdict, p, faster_p.get(key, test.faster_p), rules)
        fdr_significant = not test.why_ambiguous and q <= rules.alpha
        if fdr_significant and state is State.AMBIGUOUS:
            reason = f"significant on its own but not after correction for multiple tests ({text.p_value(p)})"
        if not test.verdict.gated and test.verdict.reason:
            reason = f"{test.verdict.reason}; {reason}"
        p = faster_p.get(key, test.faster_p) if state is State.FASTER else p
        verdicts.append(replace(test.verdict, state=state, reason=reason, p=p, fdr_significant=fdr_significant))
    return verdicts


def state_and_reason(verdict: Verdict, slower_p: float, faster_p: float, rules: Rules) -> tuple[State, str]:
    """The state of a cell by its corrected p values and its interval, and a sentence for the report."""
    margin = verdict.margin or rules.margin
    shown = text.margin(margin)
    if slower_p <= rules.alpha:
        shift = ", and no difference between sittings explains it" if verdict.interval and verdict.interval[0] < 1 + margin else ""
        p = text.p_value(slower_p)
        return State.SLOWER, f"slower by more than the margin of {shown}{shift}, after correction for multiple tests ({p})"
    if faster_p <= rules.alpha:
        return State.FASTER, f"faster by more than the margin of {shown} ({text.p_value(faster_p)})"
    if verdict.interval and 1 / (1 + margin) <= verdict.interval[0] and verdict.interval[1] <= 1 + margin:
        return State.SAME, f"within the margin of {shown}"
    if verdict.interval and verdict.interval[1] <= 1 + margin:
        return (
            State.AMBIGUOUS,
            f"no slower than the margin of {shown}, perhaps faster: its interval reaches {_interval_text(verdict.interval)}",
        )
    width = f"its interval reaches {_interval_text(verdict.interval)}" if verdict.interval else "too few values for an interval"
    return State.AMBIGUOUS, f"neither within the margin of {shown} nor beyond it: {width}"


def clock_change(new: CellSamples, old: CellSamples) -> float | None:
    """The log of the new side's SM clock over the old one's; None if one is not known."""
    mine, other = new.log_mhz(), old.log_mhz()
    return None if mine is None or other is None else mine - other


def by_clock(verdict: Verdict, change: float | None) -> Verdict:
    """A slower cell as `clock` if its slowdown disappears when time is multiplied by the SM clock.

    `change` is the log of the new side's clock over the old one's; None if it is not known.
    """
    if verdict.state is not State.SLOWER or not verdict.interval or not change:
        return verdict
    low, high = (end * math.exp(change) for end in verdict.interval)
    if high > 1 + (verdict.margin or 0):
        return verdict
    within = f"time x clock is within the margin of {text.margin(verdict.margin or 0)}: its interval reaches {_interval_text((low, high))}"
    return replace(verdict, state=State.CLOCK, reason=f"the SM clock was {-math.expm1(change):.1%} lower; {within}", fdr_significant=False)


def _interval_text(interval: tuple[float, float]) -> str:
    return f"from {interval[0] - 1:+.1%} to {interval[1] - 1:+.1%}"


def unmeasured(cell: CellKey, new: CellSamples | None, old: CellSamples | None, old_side: str) -> Verdict | None:
    """The verdict on a cell that a side did not time, or that two timers timed; None if the test decides.

    `old_side` is its name in messages: `the baseline`, `the reference torch`.
    """
    new_status, old_status = (side.status if side else "" for side in (new, old))
    if new is not None and _broke(new_status, old_status):
        before = "was correct" if old_status in CORRECT else f"was {old_status}" if old_status else "was not measured"
        return Verdict(cell, State.BROKEN, f"{before} in {old_side}, is {new_status}: {new.reason}")
    if new_status == Status.OK and old_status != Status.OK:
        return Verdict(cell, State.NEW, f"{old_status} in {old_side}: {old.reason}" if old else f"not in {old_side}")
    if old_status == Status.OK != new_status or (old_status == Status.CHECKED and new_status not in CORRECT):
        now = f"is {new_status} now: {new.reason}" if new else "was not measured now"
        return Verdict(cell, State.MISSING, f"is in {old_side} and {now}")
    if not (new and old and new_status == old_status == Status.OK):
        then, now = (_said(side) for side in (old, new))
        right = Status.CHECKED in (new_status, old_status) or not {new_status, old_status}.intersection(NOT_RIGHT)
        said = f"{old_side} and now: {now}" if then == now else f"{old_side}: {then}; now: {now}"
        return Verdict(cell, State.UNMEASURED if right else State.FAILED, said)
    if not one_timer(new, old):
        timers = f"timed by {new.timer} now and by {old.timer} in {old_side}"
        return Verdict(cell, State.AMBIGUOUS, f"not compared: {timers}; measure both with --timer {DO_BENCH}")
    return None


def _said(side: CellSamples | None) -> str:
    """The status of a side that was not timed, with its reason."""
    return ": ".join(filter(None, (side.status, side.reason))) if side else "not measured"


def one_timer(a: CellSamples, b: CellSamples) -> bool:
    """True if one timer took the times of both, as far as that is known. The ratio of two timers' times says nothing of a backend."""
    return not (a.timer and b.timer) or a.timer == b.timer


def _broke(new_status: str, old_status: str) -> bool:
    if new_status == Status.UNVERIFIED:
        return old_status in (*CORRECT, "")
    return new_status in FAILURES and old_status not in FAILURES


def why_advisory(us: float, device: object, old: CellSamples) -> str:
    """Why a cell is advisory; empty if not. `us` and `old` are of the old side: a call that became launch-bound became slower."""
    if device == "cuda" and us < SHORT_US:
        return f"advisory: short, {text.micros(us)}: the events take a tenth of a call under {SHORT_US:g} us"
    if old.host_bound:
        return f"advisory: launch-bound, so the median is not device time: {old.host_bound}"
    return ""


def advisory_reason(us: float, device: object, old: CellSamples, ratio: float) -> str:
    """Why a cell of this ratio is advisory; empty if it is not, or if its slowdown is more than noise."""
    return why_advisory(us, device, old) if ratio <= 1 + ADVISORY_UP_TO else ""
