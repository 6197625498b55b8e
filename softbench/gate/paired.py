"""The paired comparison: candidate and reference in the same rounds. The process pair is the unit of every test.

The value of a round is log(candidate / reference), so drift cancels. The value of a process pair is the mean of two medians: over the
rounds that the candidate began, and over the others. So the order cancels, and a few disturbed rounds change nothing. Rounds of one pair
share addresses, clocks and warm-up, so they say nothing about the next pair.

`screen` looks for cells that are within the margin and, in three pairs and more, for faster ones. `fresh_pairs` decides all other cells.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

from softbench.core import text
from softbench.core.errors import InconclusiveError
from softbench.core.statistics import median_interval
from softbench.gate.inference import PROCESS_SD_FLOOR, Moderated, moderate, robust_sd, t_quantile, t_upper, without_outliers
from softbench.gate.samples import CellKey, CellSamples, RunSamples
from softbench.gate.verdicts import (
    CellTest,
    GateReport,
    Rules,
    State,
    Verdict,
    advisory_reason,
    corrected,
    ranked,
    state_and_reason,
    unmeasured,
)

MARGIN = 0.03
NO_ROUND = "the two backends share no round"
"""Why a cell has no ratio: the batches of one of them were all disturbed."""
ROUNDS = 20
MIN_ROUNDS = 6
"""Fewer rounds give no 95 % interval, and a median of so few does not resist a disturbed round."""
FIXED_ROUNDS = {"rounds": ROUNDS, "max_rounds": ROUNDS}
"""Settings for which candidate and reference share every round."""
MIN_CELLS = 5
"""Fewer cells with one process pair do not show how much processes differ."""
BETWEEN_PAIRS = "differences between process pairs"
"""What an interval covers that shows how processes differ."""
FEW_PAIRS = 7
"""Fewer process pairs may agree by chance, so the spread of a cell is at least that of the median cell."""
FASTER_PAIRS = 3
"""Process pairs with which the screening looks for faster cells. Fewer do not show whether the order of the two backends matters."""
FASTER_SHARE = 0.1
"""The part of the error rate that the screening spends on `faster`. Fresh pairs have the whole rate for the cells that are left."""
REFERENCE_MOVES = 0.05
"""A larger change of the reference within a run is noted."""
ORDER_FLOOR = 0.01
ORDER_SDS = 4.0
"""AB and BA differ if the difference exceeds the floor and this many standard errors."""


@dataclass(frozen=True, slots=True)
class SharedRounds:
    """The shared rounds of candidate and reference in one process pair."""

    logs: tuple[float, ...]
    """log(candidate / reference) of each round."""
    reference_us: tuple[float, ...]
    first: tuple[bool, ...]
    """True if the candidate came first."""

    @property
    def by_order(self) -> tuple[float, float] | None:
        """The median of the rounds that the candidate began, and of the others; None if all rounds have one order."""
        orders = [[value for value, first in zip(self.logs, self.first, strict=True) if first is begins] for begins in (True, False)]
        return (median(orders[0]), median(orders[1])) if all(orders) else None

    @property
    def value(self) -> float:
        """The value of the pair: log(candidate / reference) with both orders alike."""
        return fmean(self.by_order or (median(self.logs),))

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
            logs = tuple(math.log(new.median_us / old.median_us) for new, old in both)
            us = tuple(old.median_us for _, old in both)
            by_process[process] = SharedRounds(logs, us, tuple(new.position < old.position for new, old in both))
    return by_process


def screen(run: RunSamples, candidate: str, reference: str, rules: Rules, process_sds: Mapping[CellKey, float] | None = None) -> GateReport:
    """Compare candidate and reference in every case of a run. A cell is `same`, `faster` or ambiguous.

    `fresh_pairs.settle` decides the ambiguous ones. Only a run of three process pairs and more shows that a cell is `faster`.

    `process_sds` are the standard deviations of cells between processes, from a baseline.

    Raises:
        InconclusiveError: the two backends did not run interleaved.
    """
    if run.environment.get("interleaved") is False:
        raise InconclusiveError(
            f"{run.source}: {candidate} and {reference} did not run interleaved, so they share no round; free the device's memory, "
            "or compare with a stored baseline: softbench gate --baseline"
        )
    verdicts: list[Verdict] = []
    cells: dict[CellKey, list[SharedRounds]] = {}
    for key in dict.fromkeys(key.with_backend(candidate) for key in run.cells if key.backend in (candidate, reference)):
        new, old = run.cells.get(key), run.cells.get(key.with_backend(reference))
        if verdict := unmeasured(key, new, old, f"the reference {reference}"):
            verdicts.append(verdict)
        elif new and old:
            cells[key] = list(pair(new, old).values())
            if not cells[key] or not all(math.isfinite(value) for rounds in cells[key] for value in rounds.logs):
                why = "a value is not a finite number" if cells.pop(key) else NO_ROUND
                verdicts.append(Verdict(key, State.AMBIGUOUS, why))
    advisory = {
        key: advisory_reason(
            median([us for rounds in pairs for us in rounds.reference_us]),
            run.environment.get("device"),
            run.cells[key.with_backend(reference)],
            math.exp(fmean(_kept(pairs))),
        )
        for key, pairs in cells.items()
    }
    spreads = _spreads(cells, process_sds or {})
    screened = {key: _screened(key, pairs, rules, spreads.get(key), advisory[key]) for key, pairs in cells.items()}
    verdicts += {**screened, **_faster(cells, screened, rules)}.values()
    notes = _reference_note(cells, reference)
    return GateReport(f"{candidate} against {reference}, interleaved in one run", ranked(verdicts), rules, notes)


def spreads(base: RunSamples, reference: str, candidate: str) -> dict[CellKey, float]:
    """The reference's spread between processes in a baseline, for the candidate's cells."""
    keys = [key for key, samples in base.cells.items() if key.backend == reference and len(samples.processes) > 1]
    values = [[[math.log(us) for us in base.cells[key].medians_us().values()]] for key in keys]
    return {key.with_backend(candidate): spread.process_sd for key, spread in zip(keys, moderate(values), strict=True)}


def _kept(pairs: Sequence[SharedRounds]) -> list[float]:
    """The values of the pairs, without the outlying ones."""
    return without_outliers([rounds.value for rounds in pairs])


def _spreads(cells: Mapping[CellKey, Sequence[SharedRounds]], process_sds: Mapping[CellKey, float]) -> dict[CellKey, Moderated]:
    """The spread of a cell's pair values: from several pairs, else from the baseline, else from how the cells differ.

    Cells that differ for another reason make the last one too large. Then more cells are measured again, and none is judged wrongly.
    """
    several = {key: [_kept(pairs)] for key, pairs in cells.items() if len(pairs) > 1}
    found = dict(zip(several, moderate(list(several.values())), strict=True)) if several else {}
    single = {key: pairs[0].value for key, pairs in cells.items() if len(pairs) == 1}
    if len(single) >= MIN_CELLS:
        between_cells = Moderated(max(robust_sd(list(single.values())), PROCESS_SD_FLOOR), len(single) - 1)
        found |= dict.fromkeys(single, between_cells)
    known = {key: Moderated(math.sqrt(2) * sd, math.inf) for key, sd in process_sds.items() if key in single}
    return found | known


def _screened(key: CellKey, pairs: Sequence[SharedRounds], rules: Rules, spread: Moderated | None, advisory: str) -> Verdict:
    """The verdict of the screening. `same` needs an interval within the margin that includes the differences between processes."""
    kept = _kept(pairs)
    centre = fmean(kept)
    half = t_quantile(0.975, spread.df) * spread.process_sd / math.sqrt(len(kept)) if spread else 0.0
    if len(pairs) == 1:
        of_rounds = median_interval(pairs[0].logs) or (-math.inf, math.inf)
        half = math.hypot(half, max(centre - of_rounds[0], of_rounds[1] - centre))
    known = math.isfinite(half)
    verdict = Verdict(
        key,
        State.AMBIGUOUS,
        advisory,
        ratio=math.exp(centre),
        interval=(math.exp(centre - half), math.exp(centre + half)) if known else None,
        covers=BETWEEN_PAIRS if spread else "rounds of one process pair",
        n=f"{sum(len(rounds.logs) for rounds in pairs)} rounds, {text.count(len(pairs), 'process pair')}",
        margin=rules.margin,
        gated=not advisory,
    )
    state, reason = state_and_reason(verdict, 1.0, 1.0, rules)
    if state is State.SAME and not spread:
        state, reason = State.AMBIGUOUS, f"{text.count(len(pairs), 'process pair')} of few cells does not show how processes differ"
    return with_state(verdict, state, reason)


def _faster(cells: Mapping[CellKey, Sequence[SharedRounds]], screened: Mapping[CellKey, Verdict], rules: Rules) -> dict[CellKey, Verdict]:
    """The verdicts on the cells that the screening shows to be faster.

    `slower` needs fresh pairs, because the screening picks the cells that are tested for it. Here none is picked: all gated cells of enough
    pairs are tested, and Holm's correction covers all of them. So a wrong `faster` has at most FASTER_SHARE of the error rate. That holds
    if the processes of a cell differ independently of those of other cells. If all cells share a difference, it can be more. A
    `faster` cell never fails, so its test adds no false alarm.
    """
    pairs = {key: cells[key] for key, verdict in screened.items() if verdict.gated and len(cells[key]) >= FASTER_PAIRS}
    tests = list(cell_tests(pairs, screened, rules, "process pair").values())
    others = sum(bool(test.why_ambiguous) for test in tests)
    found = corrected(tests, rules, share=FASTER_SHARE, others=others)
    return {verdict.cell: verdict for verdict in found if verdict.state is State.FASTER}


def cell_tests(
    cells: Mapping[CellKey, Sequence[SharedRounds]], screened: Mapping[CellKey, Verdict], rules: Rules, unit: str
) -> dict[CellKey, CellTest]:
    """The one-sided t tests of cells of several process pairs. Their spreads are moderated together. `unit` names a pair in the report."""
    values = {key: _kept(pairs) for key, pairs in cells.items()}
    if not values:
        return {}
    spreads = moderate([[each] for each in values.values()], _floor(values.values()))
    return {
        key: _cell_test(screened[key], cells[key], values[key], spread, rules, unit) for key, spread in zip(values, spreads, strict=True)
    }


def _floor(cells: Collection[Sequence[float]]) -> float:
    """The least standard deviation of a cell. With few pairs it is the median of all cells.

    A few values may agree by chance where half of the processes are slower.
    """
    if min(map(len, cells)) >= FEW_PAIRS:
        return PROCESS_SD_FLOOR
    return max(PROCESS_SD_FLOOR, median(stdev(values) for values in cells))


def _cell_test(
    screened: Verdict, pairs: Sequence[SharedRounds], values: Sequence[float], spread: Moderated, rules: Rules, unit: str
) -> CellTest:
    """The t test of one cell on these pairs, of which `values` leaves out the outlying ones."""
    centre, error, limit = fmean(values), spread.process_sd / math.sqrt(len(values)), math.log1p(rules.margin)
    half = t_quantile(0.975, spread.df) * error
    left_out = len(pairs) - len(values)
    verdict = replace(
        screened,
        reason="",
        ratio=math.exp(centre),
        raw_ratio=None,
        interval=(math.exp(centre - half), math.exp(centre + half)),
        covers=BETWEEN_PAIRS,
        n=text.count(len(pairs), unit) + (f", {left_out} outlying left out" if left_out else ""),
    )
    slower_p, faster_p = (t_upper((sign * centre - limit) / error, spread.df) for sign in (1, -1))
    return CellTest(verdict, slower_p, faster_p, why_order(pairs, limit))


def with_state(verdict: Verdict, state: State, reason: str) -> Verdict:
    """The verdict with this state. The reason of an advisory cell stays in front."""
    return replace(verdict, state=state, reason=f"{verdict.reason}; {reason}" if verdict.reason else reason)


def _reference_note(cells: Mapping[CellKey, Sequence[SharedRounds]], reference: str) -> tuple[str, ...]:
    """A note on the largest change of the reference within a process. The ratios of shared rounds cancel it."""
    changes = [(rounds.reference_change, key) for key, pairs in cells.items() for rounds in pairs]
    change, key = max(changes, key=lambda each: abs(each[0]), default=(0.0, None))
    if key is None or abs(change) <= math.log1p(REFERENCE_MOVES):
        return ()
    return (f"{reference} itself changed by {math.expm1(change):+.1%} within a run ({key.case}); the ratios of shared rounds cancel that",)


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
