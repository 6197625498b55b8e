"""The paired comparison: candidate and reference in the same rounds, with a signed-rank test on the log ratios.

The order of a round is balanced (AB BA BA AB). Its value is log(candidate / reference) of the two batches' medians, so drift cancels.
The ratio differs more between processes than between rounds. So a flagged cell is measured again in fresh process pairs. It is a
regression only if all pairs agree (`confirmed`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from softbench.core.errors import InconclusiveError
from softbench.core.statistics import median_interval
from softbench.gate.inference import moderate, robust_sd, signed_rank_p
from softbench.gate.samples import CellKey, CellSamples, RunSamples
from softbench.gate.verdicts import CellTest, GateReport, Rules, State, Verdict, advisory_reason, corrected, finite, ranked, unmeasured
from softbench.plan.settings import Layer

MARGIN = 0.03
ROUNDS = 20
FIXED_ROUNDS: Layer = {"rounds": ROUNDS, "max_rounds": ROUNDS}
"""Settings for which candidate and reference share every round."""
CONFIRMATIONS = 2
"""Number of fresh process pairs, which must all agree."""
MARGIN_SDS = 3 * math.sqrt(2)
"""The smallest margin in standard deviations of one process: three standard deviations of the difference of two processes."""
ORDER_FLOOR = 0.01
ORDER_SDS = 4.0
"""Standard errors (or the floor) by which AB and BA may differ. A larger difference, of 1 in 16 000 identical cells, is ambiguous."""
MEDIAN_SD = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean, for normal values


@dataclass(frozen=True, slots=True)
class SharedRounds:
    """The shared rounds of candidate and reference in one process pair."""

    logs: tuple[float, ...]
    """log(candidate / reference) of each round."""
    reference_us: tuple[float, ...]
    first: tuple[bool, ...]
    """True if the candidate came first."""


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
    """Compare candidate and reference in every case of a run. Cells called slower are flagged and need a confirmation.

    `process_sds` are the between-process standard deviations of cells, from a baseline. Several process pairs of the run also give them.
    """
    if run.environment.get("interleaved") is False:
        raise InconclusiveError(
            f"{run.source}: {candidate} and {reference} did not run interleaved, so they share no round; free the device's memory, "
            "or compare with a stored baseline (--baseline)"
        )
    verdicts, cells, sides = [], {}, {}
    for key in dict.fromkeys(key.with_backend(candidate) for key in run.cells if key.backend in (candidate, reference)):
        new, old = run.cells.get(key), run.cells.get(key.with_backend(reference))
        if verdict := unmeasured(key, new, old, f"the reference {reference}"):
            verdicts.append(verdict)
        elif new and old and new.status == old.status == "ok":
            cells[key], sides[key] = pair(new, old), old
    spreads = {**_spreads(cells), **(process_sds or {})}
    device = run.environment.get("device")
    tests = []
    for key, pairs in cells.items():
        us = median([us for rounds in pairs.values() for us in rounds.reference_us] or [math.inf])
        ratio = math.exp(median([value for rounds in pairs.values() for value in rounds.logs] or [0.0]))
        tests.append(_cell_test(key, pairs, rules, spreads.get(key), advisory_reason(us, device, sides[key], ratio), len(cells)))
    what = f"{candidate} against {reference}, interleaved in one run"
    return GateReport(what, ranked([*verdicts, *corrected(tests, rules)]), rules)


def spreads(base: RunSamples, reference: str, candidate: str) -> dict[CellKey, float]:
    """The reference's spread between processes in a baseline, for the candidate's cells."""
    keys = [key for key, samples in base.cells.items() if key.backend == reference and len(samples.processes) > 1]
    values = [[[math.log(us) for us in base.cells[key].medians_us().values()]] for key in keys]
    return {key.with_backend(candidate): spread.process_sd for key, spread in zip(keys, moderate(values), strict=True)}


def _spreads(cells: Mapping[CellKey, Mapping[int, SharedRounds]]) -> dict[CellKey, float]:
    """The between-process standard deviation of one backend: that of several process pairs over sqrt(2)."""
    several = {key: [[median(pairs.logs) for pairs in by_process.values()]] for key, by_process in cells.items() if len(by_process) > 1}
    if not several:
        return {}
    return {key: spread.process_sd / math.sqrt(2) for key, spread in zip(several, moderate(list(several.values())), strict=True)}


def _cell_test(
    key: CellKey, by_process: Mapping[int, SharedRounds], rules: Rules, process_sd: float | None, advisory: str, cells: int
) -> CellTest:
    logs = [value for pairs in by_process.values() for value in pairs.logs]
    if not logs or not finite(logs):
        return CellTest(
            Verdict(key, State.AMBIGUOUS, ""),
            why_ambiguous="the two backends share no round" if not logs else "a value is not a finite number",
        )
    margin = max(rules.margin, MARGIN_SDS * process_sd) if process_sd is not None else rules.margin
    ratio, why_ambiguous = math.exp(median(logs)), _why_ambiguous(by_process, rules, cells, math.log1p(margin))
    if not advisory and margin > rules.most_margin:
        noise = f"its processes differ so much that the margin would be {margin:.1%}, more than {rules.most_margin:.0%}"
        if ratio <= 1 + rules.most_margin:
            advisory = f"not gated: {noise}"
        elif ratio <= 1 + margin:  # undecided; beyond the raised margin the test decides
            why_ambiguous = why_ambiguous or f"{ratio - 1:+.1%}, and {noise}: measure more processes"
    interval = _interval(logs, process_sd)
    process_pairs = f"{len(by_process)} process pairs" if len(by_process) > 1 else "1 process pair"
    verdict = Verdict(
        key,
        State.AMBIGUOUS,
        advisory,
        ratio=ratio,
        interval=interval and (math.exp(interval[0]), math.exp(interval[1])),
        covers="rounds, widened by the differences between processes" if process_sd is not None else "rounds within this process pair",
        n=f"{len(logs)} rounds, {process_pairs}",
        margin=margin,
        gated=not advisory,
    )
    limit = math.log1p(margin)
    # Pooled rounds of several process pairs are not independent: each pair must show the change.
    slower_p = max(_exceedance_p(pairs.logs, limit) for pairs in by_process.values())
    faster_p = max(_exceedance_p([-value for value in pairs.logs], limit) for pairs in by_process.values())
    return CellTest(verdict, slower_p, faster_p, why_ambiguous)


def _exceedance_p(logs: Sequence[float], limit: float) -> float:
    """p of H0: the logs are at most `limit`. Rounding keeps the ties that the resolution of the timer causes."""
    return signed_rank_p([round(value - limit, 9) for value in logs])


def _interval(logs: list[float], process_sd: float | None) -> tuple[float, float] | None:
    """A distribution-free interval over the rounds. A known spread of both processes is added in quadrature."""
    interval = median_interval(logs)
    if interval is None or process_sd is None:
        return interval
    centre, between = median(logs), 1.96 * math.sqrt(2) * process_sd
    return centre - math.hypot(centre - interval[0], between), centre + math.hypot(interval[1] - centre, between)


def _why_ambiguous(by_process: Mapping[int, SharedRounds], rules: Rules, cells: int, margin: float) -> str:
    """Too few rounds, a changed reference, or a dependence on the order; empty without these. `margin` is of a log ratio."""
    rounds = min(len(pairs.logs) for pairs in by_process.values())
    if 0.5**rounds > rules.alpha / cells:
        needed = math.ceil(math.log2(cells / rules.alpha))
        return f"{rounds} rounds cannot be significant after correction for {cells} tests: use --rounds {needed} or more"
    for pairs in by_process.values():
        half = len(pairs.reference_us) // 2
        change = median(pairs.reference_us[half:]) / median(pairs.reference_us[:half])
        if abs(math.log(change)) > math.log1p(rules.reference_moves):
            return f"the reference itself changed by {change - 1:+.1%} within the run"
        ab = [value for value, first in zip(pairs.logs, pairs.first, strict=True) if first]
        ba = [value for value, first in zip(pairs.logs, pairs.first, strict=True) if not first]
        if min(len(ab), len(ba)) < 3:
            continue
        sigma = robust_sd([value - median(ab) for value in ab] + [value - median(ba) for value in ba])
        limit = max(ORDER_FLOOR, ORDER_SDS * MEDIAN_SD * sigma * math.sqrt(1 / len(ab) + 1 / len(ba)))
        if min(median(ab), median(ba)) > margin or max(median(ab), median(ba)) < -margin:
            continue  # beyond the margin in both orders
        if (difference := abs(median(ab) - median(ba))) > limit:
            return f"the ratio depends on the order: AB and BA differ by {difference:.1%}, more than the noise explains ({limit:.1%})"
    return ""


def flagged(report: GateReport) -> list[Verdict]:
    """The verdicts that need a confirmation."""
    return [verdict for verdict in report.verdicts if verdict.state is State.SLOWER and verdict.gated]


def confirmed(report: GateReport, second_run: RunSamples | None, reference: str) -> GateReport:
    """The report after the confirmation: a regression stays only if every fresh process pair agrees.

    Without a second run (None) no flagged cell stays a regression.
    """
    return replace(report, verdicts=ranked([_after_confirmation(v, second_run, reference, report.rules) for v in report.verdicts]))


def _after_confirmation(verdict: Verdict, second_run: RunSamples | None, reference: str, rules: Rules) -> Verdict:
    if verdict.state is not State.SLOWER or not verdict.gated:
        return verdict
    cells = second_run.cells if second_run else {}
    new, old = cells.get(verdict.cell), cells.get(verdict.cell.with_backend(reference))
    if new and new.status != "ok":
        return replace(verdict, state=State.BROKEN, reason=f"was correct and slower, is {new.status} when measured again: {new.reason}")
    by_process = list(pair(new, old).values()) if new and old else []
    limit = math.log1p(verdict.margin or rules.margin)
    agree = [_exceedance_p(pairs.logs, limit) <= rules.alpha for pairs in by_process]
    ratios = ", ".join(f"{math.exp(median(pairs.logs)):.3f}" for pairs in by_process)
    if len(by_process) >= CONFIRMATIONS and all(agree):
        pooled = fmean([math.log(verdict.ratio or 1), *(median(pairs.logs) for pairs in by_process)])
        reason = f"{verdict.reason}; confirmed in {len(by_process)} fresh process pairs ({ratios}; mean of all {math.exp(pooled):.3f})"
        return replace(verdict, reason=reason)
    outcome = f"fresh process pairs do not all agree ({ratios})" if by_process else "it was not measured again"
    return replace(verdict, state=State.AMBIGUOUS, reason=f"unstable: flagged once at {verdict.ratio:.3f}, but {outcome}")
