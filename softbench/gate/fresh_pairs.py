"""Measures undecided cells again in fresh process pairs, until each is decided.

A look judges all pairs that a cell has by then. Holm's correction covers all cells in each look, and each look spends a part of the error
rate, so that all looks together keep it, whichever cells are measured again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from softbench.gate import paired
from softbench.gate.samples import CellKey, RunSamples, join
from softbench.gate.verdicts import TESTED, GateReport, Rules, State, ranked

PAIRS = 6
"""Process pairs of the first look by default."""

SPREAD_CELLS = 8
"""Cells that a second look at a baseline measures at least: `same` ones join, so that the spread is known."""

MORE_PAIRS = 10
"""Process pairs that messages recommend where the default is not enough."""

Fresh = Callable[[Sequence[CellKey], int], RunSamples]
"""Measures cells of the candidate, and of the reference, in this many fresh process pairs."""


class Look(NamedTuple):
    """A look at the process pairs."""

    pairs: int
    """Process pairs measured until then."""
    share: float
    """The part of the error rate that the look spends."""


def looks(pairs: int = PAIRS) -> tuple[Look, ...]:
    """The looks of a comparison that measures all cells in this many pairs at first. Fewer than MIN_PAIRS decide nothing."""
    first = pairs if pairs >= paired.MIN_PAIRS else PAIRS
    tested = Look(first, 0.2), Look(2 * first, 0.3), Look(4 * first, 0.5)
    return tested if first == pairs else (Look(pairs, 0.0), *tested)


def undecided(report: GateReport) -> list[CellKey]:
    """The gated cells that may be slower than the margin, also those whose rounds a busy machine spoiled."""
    found = [verdict for verdict in report.verdicts if verdict.gated and verdict.may_be_slower]
    return [verdict.cell for verdict in found if verdict.ratio is not None or verdict.reason == paired.NO_ROUND]


def why_undecided(report: GateReport, look: Look, last: Look) -> str:
    """Why the last look would be inconclusive about equal sides, if process pairs went on to differ as in this look; empty if not."""
    shrunk = math.sqrt(look.pairs / last.pairs) / 2
    found = []
    for verdict in report.verdicts:
        if verdict.state in TESTED and verdict.interval and verdict.margin is not None:
            half = shrunk * math.log(verdict.interval[1] / verdict.interval[0])
            state = State.SAME if half <= math.log1p(verdict.margin) else State.AMBIGUOUS
            found.append(replace(verdict, state=state, ratio=1.0, interval=(math.exp(-half), math.exp(half))))
    return replace(report, verdicts=tuple(found)).why_inconclusive if found else ""


def compare(
    first: RunSamples,
    fresh: Fresh,
    candidate: str,
    reference: str,
    rules: Rules,
    plan: Sequence[Look],
    sds: Mapping[CellKey, float] | None = None,
    watch: Callable[[GateReport, Look], object] = lambda report, look: None,
) -> GateReport:
    """Judge the first pairs, and measure undecided cells in fresh ones until the last look. `sds` are those of `paired.compare`.

    `watch` gets the report of each look that another one follows.

    Raises:
        InconclusiveError: the two backends did not run interleaved. Errors of `fresh` pass through.
    """
    samples = first
    report = paired.compare(samples, candidate, reference, rules, plan[0].share, sds=sds)
    for earlier, look in pairwise(plan):
        if not (cells := undecided(report)):
            break
        watch(report, earlier)
        samples = join([samples, fresh(cells, look.pairs - earlier.pairs)])
        found = paired.compare(samples, candidate, reference, rules, look.share, only=cells, sds=sds).verdicts
        judged = {verdict.cell: verdict for verdict in found if verdict.state in LATER}
        report = replace(report, verdicts=ranked(judged.get(verdict.cell, verdict) for verdict in report.verdicts))
    return report


LATER = (*TESTED, State.BROKEN, State.MISSING, State.FAILED)
"""The states that a look may find. A cell that was measured on both sides does not become new."""


def controls_of(report: GateReport, others: int) -> list[CellKey]:
    """`same` cells, evenly spread, that are measured beside so many others to show how processes differ."""
    steady = [verdict.cell for verdict in report.verdicts if verdict.gated and verdict.state is State.SAME]
    wanted = min(max(0, SPREAD_CELLS - others), len(steady))
    return [steady[i * len(steady) // wanted] for i in range(wanted)]
