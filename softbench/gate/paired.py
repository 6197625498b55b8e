"""The paired comparison: candidate and reference in the same rounds. The process pair is the unit of every test.

The value of a round is log(candidate / reference), so drift cancels. The value of a process pair is the median of its rounds, less what the
order of the two backends explains in all pairs of the cell. So the order cancels, and a few disturbed rounds change nothing. Rounds of one
pair share addresses, clocks and warm-up, so they say nothing about the next pair.

A second value of each round compares the means of the calls, and that of a pair is the mean of its rounds. Rare slow calls change it.
`compare` judges all pairs that were measured, and `fresh_pairs` measures more of them for undecided cells.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median, stdev

from softbench.core import text
from softbench.core.errors import InconclusiveError
from softbench.gate.inference import Moderated, moderate, t_quantile, t_upper
from softbench.gate.samples import CellKey, CellSamples, RoundMedian, RunSamples
from softbench.gate.verdicts import (
    ORDER,
    CellTest,
    GateReport,
    Rules,
    State,
    Verdict,
    advisory_reason,
    by_clock,
    clock_change,
    corrected,
    ranked,
    unmeasured,
)

MARGIN = 0.03
NO_ROUND = "the two backends share no round"
"""Why a cell has no ratio: the batches of one of them were all disturbed."""
ROUNDS = 8
"""Both orders are alike often in them. Six resist slow batches less, and more than eight find no more: more pairs do."""
MIN_ROUNDS = 6
"""A median of fewer rounds does not resist a disturbed round."""
FIXED_ROUNDS = {"rounds": ROUNDS, "max_rounds": ROUNDS}
"""Settings for which candidate and reference share every round."""
MIN_PAIRS = 5
"""Fewer process pairs do not show how much they differ. Four of a kernel that is slow in every other process are all fast in 6 %."""
TAIL_SHARE = 0.2
"""The part of the error rate for slowdowns of the mean."""
REFERENCE_MOVES = 0.05
"""A larger change of the reference within a run is noted."""
ORDER_FLOOR = 0.01
ORDER_SDS = 4.0
"""AB and BA differ if the difference exceeds the floor and this many standard errors."""


@dataclass(frozen=True)
class SharedRounds:
    """The shared rounds of candidate and reference in one process pair."""

    logs: tuple[float, ...]
    """log(candidate / reference) of each round's medians."""
    mean_logs: tuple[float, ...]
    """log(candidate / reference) of each round's means."""
    reference_us: tuple[float, ...]
    first: tuple[bool, ...]
    """True if the candidate came first."""
    started_first: bool
    """True if the candidate's process started first."""

    @cached_property
    def by_order(self) -> tuple[float, float] | None:
        """The median of the rounds that the candidate began, and of the others; None if all rounds have one order."""
        begun, others = self._orders(self.logs)
        return (median(begun), median(others)) if begun and others else None

    def value(self, order_effect: float = 0.0) -> float:
        """The value of the pair: the median log(candidate / reference), less half of this in rounds that the candidate began."""
        return median(log - (order_effect if first else -order_effect) / 2 for log, first in zip(self.logs, self.first, strict=True))

    @property
    def mean_value(self) -> float:
        """The same of the means of the calls: their mean over all rounds, with both orders alike."""
        return fmean(fmean(order) for order in self._orders(self.mean_logs) if order)

    def _orders(self, logs: Sequence[float]) -> list[list[float]]:
        return [[value for value, first in zip(logs, self.first, strict=True) if first is begins] for begins in (True, False)]

    @property
    def reference_change(self) -> float:
        """The log of the reference's latency in the second half of the rounds over that in the first."""
        half = len(self.reference_us) // 2
        return math.log(median(self.reference_us[half:]) / median(self.reference_us[:half])) if half else 0.0


def pair(candidate: CellSamples, reference: CellSamples) -> dict[int, SharedRounds]:
    """The shared rounds by process."""
    by_process = {}
    for process, rounds in candidate.processes.items():
        references = {one.number: one for one in reference.processes.get(process, ())}
        both = [(one, references[one.number]) for one in rounds if one.number in references]
        if both:
            first = tuple(new.position < old.position for new, old in both)
            by_process[process] = SharedRounds(
                tuple(math.log(new.median_us / old.median_us) for new, old in both),
                tuple(math.log((new.mean_us or new.median_us) / (old.mean_us or old.median_us)) for new, old in both),
                tuple(old.median_us for _, old in both),
                first,
                first[0] is not _reversed(both[0][0]),
            )
    return by_process


def _reversed(one: RoundMedian) -> bool:
    """True if the two backends of this round went in the reverse order of their start: rounds go AB BA BA AB."""
    return (one.number + one.number // 2) % 2 == 1


def compare(
    run: RunSamples,
    candidate: str,
    reference: str,
    rules: Rules,
    share: float = 1.0,
    *,
    only: Collection[CellKey] | None = None,
    sds: Mapping[CellKey, float] | None = None,
) -> GateReport:
    """Judge candidate and reference in every case of a run.

    Args:
        run: the samples. A cell of fewer than MIN_PAIRS process pairs is ambiguous.
        candidate: name of the backend.
        reference: name of the backend.
        rules: how strict the gate is.
        share: the part of the error rate that these tests may spend.
        only: the cells that are judged; None for all. The others count in the spread and in Holm's correction.
        sds: standard deviations of cells between processes that are known from a baseline. No smaller one is assumed.

    Raises:
        InconclusiveError: the two backends did not run interleaved.
    """
    if run.environment.get("interleaved") is False:
        raise InconclusiveError(
            f"{run.source}: {candidate} and {reference} did not run interleaved, so they share no round; free the device's memory, "
            "or compare with a stored baseline: softbench gate --baseline"
        )
    verdicts: list[Verdict] = []
    clocks: dict[CellKey, float | None] = {}
    cells: dict[CellKey, list[SharedRounds]] = {}
    for key in dict.fromkeys(key.with_backend(candidate) for key in run.cells if key.backend in (candidate, reference)):
        new, old = run.cells.get(key), run.cells.get(key.with_backend(reference))
        if verdict := unmeasured(key, new, old, f"the reference {reference}"):
            verdicts.append(verdict)
        elif new and old:
            cells[key], clocks[key] = list(pair(new, old).values()), clock_change(new, old)
            if not cells[key] or not all(math.isfinite(value) for rounds in cells[key] for value in (*rounds.logs, *rounds.mean_logs)):
                why = "a value is not a finite number" if cells.pop(key) else NO_ROUND
                verdicts.append(Verdict(key, State.AMBIGUOUS, why))
    tests = []
    for share_of, tails in ((1 - TAIL_SHARE, False), (TAIL_SHARE, True)):
        found = _cell_tests(run, cells, reference, rules, sds or {}, tails=tails)
        judged = [test for test in found if only is None or test.verdict.cell in only]
        others = sum(test.verdict.gated for test in found) - sum(test.verdict.gated and not test.why_ambiguous for test in judged)
        tests.append(corrected(judged, rules, share=share * share_of, others=others))
    for verdict, tail in zip(*([by_clock(one, clocks[one.cell]) for one in found] for found in tests), strict=True):
        by_tail = tail.state in (State.SLOWER, State.CLOCK) and ORDER.index(tail.state) < ORDER.index(verdict.state)
        verdicts.append(replace(tail, reason=f"the mean of its calls is {tail.reason}; {_of_median(verdict)}") if by_tail else verdict)
    listed = ranked(verdict for verdict in verdicts if only is None or verdict.cell in only)
    return GateReport(f"{candidate} against {reference}, interleaved in one run", listed, rules, _reference_note(cells, reference))


def _of_median(verdict: Verdict) -> str:
    return f"that of the medians is {verdict.ratio:.3f}" if verdict.ratio else ""


def spreads(base: RunSamples, reference: str, candidate: str) -> dict[CellKey, float]:
    """The reference's spread between processes in a baseline, for the candidate's cells."""
    keys = [key for key, samples in base.cells.items() if key.backend == reference and len(samples.processes) > 1]
    values = [[[math.log(us) for us in base.cells[key].medians_us().values()]] for key in keys]
    return {key.with_backend(candidate): spread.process_sd for key, spread in zip(keys, moderate(values), strict=True)}


def _cell_tests(
    run: RunSamples,
    cells: Mapping[CellKey, Sequence[SharedRounds]],
    reference: str,
    rules: Rules,
    sds: Mapping[CellKey, float],
    *,
    tails: bool,
) -> list[CellTest]:
    """The one-sided t tests of all cells, of their medians or of their means. The spreads of cells of enough pairs are moderated together.

    The pairs in which the candidate started first have a mean of their own, so that a difference between the two starts cancels.
    """
    groups = {key: by_start(pairs, tails=tails) for key, pairs in cells.items()}
    enough = [key for key, pairs in cells.items() if len(pairs) >= MIN_PAIRS]
    spreads = dict(zip(enough, moderate([groups[key] for key in enough]), strict=True))
    tests = []
    for key, pairs in cells.items():
        us = median(us for rounds in pairs for us in rounds.reference_us)
        ratio = math.exp(fmean(map(fmean, groups[key])))
        advisory = advisory_reason(us, run.environment.get("device"), run.cells[key.with_backend(reference)], ratio)
        n = text.count(len(pairs), "process pair")
        verdict = Verdict(key, State.AMBIGUOUS, advisory, ratio, None, n=n, margin=rules.margin_of(key), gated=not advisory)
        if key in spreads:
            tests.append(cell_test(verdict, pairs, groups[key], spreads[key], math.sqrt(2) * sds.get(key, 0.0), rules))
        else:
            tests.append(CellTest(verdict, why_ambiguous=f"{n}: fewer than {MIN_PAIRS} do not show how processes differ"))
    return tests


def by_start(pairs: Sequence[SharedRounds], *, tails: bool) -> list[list[float]]:
    """The values of the pairs in which the candidate started first, and of the others; an empty group is left out."""
    if tails:
        values = [(rounds.started_first, rounds.mean_value) for rounds in pairs]
    else:
        effect = median([begun - others for begun, others in filter(None, (rounds.by_order for rounds in pairs))] or [0.0])
        values = [(rounds.started_first, rounds.value(effect)) for rounds in pairs]
    return [group for first in (True, False) if (group := [value for started, value in values if started is first])]


def cell_test(
    verdict: Verdict, pairs: Sequence[SharedRounds], groups: Sequence[Sequence[float]], spread: Moderated, least_sd: float, rules: Rules
) -> CellTest:
    """The t test of one cell, whose values are in one group for each start order."""
    centre, limit = fmean(map(fmean, groups)), math.log1p(rules.margin_of(verdict.cell))
    error = max(spread.process_sd, least_sd) * math.sqrt(fmean(1 / len(group) for group in groups) / len(groups))
    half = t_quantile(0.975, spread.df) * error
    verdict = replace(verdict, interval=(math.exp(centre - half), math.exp(centre + half)), covers="differences between process pairs")
    slower_p, faster_p = (t_upper((sign * centre - limit) / error, spread.df) for sign in (1, -1))
    return CellTest(verdict, slower_p, faster_p, why_order(pairs, limit))


def _reference_note(cells: Mapping[CellKey, Sequence[SharedRounds]], reference: str) -> tuple[str, ...]:
    """A note on the largest change of the reference within a process. The ratios of shared rounds cancel it."""
    changes = [(rounds.reference_change, key) for key, pairs in cells.items() for rounds in pairs]
    change, key = max(changes, key=lambda each: abs(each[0]), default=(0.0, None))
    if key is None or abs(change) <= math.log1p(REFERENCE_MOVES):
        return ()
    told = f"the time of {reference} changed by {math.expm1(change):+.1%} within a run ({key.case})"
    return (f"{told}; the ratios of shared rounds cancel that",)


def why_order(pairs: Sequence[SharedRounds], limit: float) -> str:
    """Why the order of the two backends forbids a decision; empty if it does not. `limit` is a log ratio.

    The order forbids nothing if both orders are on one side of the margin.
    """
    orders = [rounds.by_order for rounds in pairs]
    known = [order for order in orders if order]
    if len(known) < 3:
        return ""
    ab, ba = (fmean(order[which] for order in known) for which in (0, 1))
    if _side(ab, limit) == _side(ba, limit):
        return ""
    differences = [order[0] - order[1] for order in known]
    if abs(ab - ba) <= max(ORDER_FLOOR, ORDER_SDS * stdev(differences) / math.sqrt(len(known))):
        return ""
    return f"the ratio depends on the order: {math.exp(ab):.3f} if the candidate comes first, {math.exp(ba):.3f} if it comes second"


def _side(log_ratio: float, limit: float) -> int:
    return (log_ratio > limit) - (log_ratio < -limit)
