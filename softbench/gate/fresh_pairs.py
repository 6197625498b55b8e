"""Fresh process pairs decide the cells that the screening left undecided.

Only fresh pairs count, so that being picked by the screening biases nothing. After 3, 6 and 12 of them a one-sided moderated t test asks
whether the mean of a cell's pair values exceeds the margin. Holm's correction covers all undecided cells, and each look spends a part of
the error rate, so that all looks together keep it. `faster` is tested in the same way, if the screening did not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

from softbench.gate.paired import BETWEEN_PAIRS, FASTER_PAIRS, NO_ROUND, SharedRounds, cell_tests, pair
from softbench.gate.samples import CellKey, RunSamples, join
from softbench.gate.verdicts import GateReport, State, Verdict, advisory_reason, corrected, one_timer, ranked

SPREAD_CELLS = 8
"""Cells that fresh pairs measure at least, as far as there are cells: `same` ones join, so that the spread between pairs is known."""

MORE_PAIRS = 10
"""Process pairs of the screening that messages recommend where one is not enough."""

Fresh = Callable[[Sequence[CellKey], int], RunSamples]
"""Measures cells of the candidate, and of the reference, in this many fresh process pairs."""


class Look(NamedTuple):
    """A look at the fresh pairs."""

    pairs: int
    """Fresh pairs measured until then."""
    share: float
    """The part of the error rate that the look spends."""


def looks(pairs: int = 1) -> tuple[Look, ...]:
    """The looks of a comparison that screens in this many pairs."""
    return Look(3, 0.2), Look(6, 0.3), Look(max(12, 2 * pairs), 0.5)


@dataclass(slots=True)
class _Progress:
    """What the looks have found so far."""

    report: GateReport
    open: list[CellKey]
    """Cells without a decision."""
    controls: list[CellKey]
    samples: RunSamples | None = None
    passed: int = 0
    """Cells that a look found to be `same` or broken. They count in Holm's correction."""
    tested: set[CellKey] = field(default_factory=set)
    """Cells that fresh pairs tested. The verdicts of others are still those of the screening."""


def undecided(report: GateReport, pairs: int = 1) -> list[Verdict]:
    """The gated cells that a screening in this many pairs left undecided, also those whose rounds a busy machine spoiled.

    With FASTER_PAIRS and more, a cell is left out if its interval ends within the margin. `same` is decided by that interval too.
    An interval of one pair, the only one of the cell that has shared rounds, does not show that.
    """
    found = [verdict for verdict in report.verdicts if verdict.gated and verdict.state is State.AMBIGUOUS]
    found = [verdict for verdict in found if verdict.ratio is not None or verdict.reason == NO_ROUND]
    return [verdict for verdict in found if pairs < FASTER_PAIRS or verdict.may_be_slower or verdict.covers != BETWEEN_PAIRS]


def settle(report: GateReport, fresh: Fresh, reference: str, plan: Sequence[Look], pairs: int = 1) -> GateReport:
    """Measure undecided cells in fresh process pairs until each is decided, or until the last look. Errors of `fresh` pass through.

    `pairs` are those of the screening.
    """
    found = undecided(report, pairs)
    controls = controls_of(report, len(found))
    progress, done = _Progress(report, [verdict.cell for verdict in found], controls), 0
    for look in plan:
        if not progress.open:
            break
        more = fresh([*progress.open, *controls], look.pairs - done)
        progress.samples = join([progress.samples, more]) if progress.samples else more
        done = look.pairs
        _look(progress, look, reference)
    if progress.samples is None:
        return report
    left = progress.tested.intersection(progress.open)
    verdicts = [_advised(v, progress.samples, reference) if v.cell in left else v for v in progress.report.verdicts]
    return replace(progress.report, verdicts=ranked(verdicts))


def controls_of(report: GateReport, others: int) -> list[CellKey]:
    """`same` cells, evenly spread, that are measured beside so many others to show how processes differ."""
    steady = [verdict.cell for verdict in report.verdicts if verdict.gated and verdict.state is State.SAME]
    wanted = min(max(0, SPREAD_CELLS - others), len(steady))
    return [steady[i * len(steady) // wanted] for i in range(wanted)]


def _advised(verdict: Verdict, samples: RunSamples, reference: str) -> Verdict:
    """The verdict, which is advisory if all fresh pairs leave the cell undecided and show no more than noise.

    The screening gates a cell of short calls of a large ratio, which may have been noise.
    """
    old = samples.cells[verdict.cell.with_backend(reference)]
    us = median(old.medians_us().values())
    why = advisory_reason(us, samples.environment.get("device"), old, verdict.ratio) if verdict.ratio else ""
    return replace(verdict, gated=False, reason=f"{why}; {verdict.reason}") if why else verdict


def _look(progress: _Progress, look: Look, reference: str) -> None:
    """Decide what the fresh pairs measured so far can decide."""
    report, samples = progress.report, progress.samples
    earlier = {verdict.cell: verdict for verdict in report.verdicts}
    settled: dict[CellKey, Verdict] = {}
    pairs: dict[CellKey, list[SharedRounds]] = {}
    for key in [*progress.open, *progress.controls]:
        new, old = (samples.cells.get(key.with_backend(name)) if samples else None for name in (key.backend, reference))
        if new and new.status != "ok":
            reason = f"was correct when screened, is {new.status} when measured again: {new.reason}"
            settled[key] = replace(earlier[key], state=State.BROKEN, reason=reason)
        elif new and old and one_timer(new, old) and len(both := list(pair(new, old).values())) > 1:
            pairs[key] = both
    tested = cell_tests(pairs, earlier, report.rules, "fresh process pair")
    tests = [tested[key] for key in progress.open if key in tested]
    progress.tested.update(test.verdict.cell for test in tests)
    others = progress.passed + sum(bool(test.why_ambiguous) for test in tests)
    for verdict in corrected(tests, report.rules, share=look.share, others=others):
        settled[verdict.cell] = verdict
    progress.open = [key for key in progress.open if key not in settled or settled[key].state is State.AMBIGUOUS]
    progress.passed += sum(verdict.state in (State.SAME, State.BROKEN) for verdict in settled.values())
    verdicts = [settled.get(verdict.cell, verdict) for verdict in report.verdicts]
    progress.report = replace(report, verdicts=ranked(verdicts))
