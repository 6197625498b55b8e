"""The paired comparison: candidate and reference in the same rounds, with a signed-rank test on the log ratios.

The order of a round is balanced (AB BA BA AB). Its value is log(candidate / reference) of the two batches' medians, so drift cancels.
Between processes the ratio differs by more than rounds show. So a flagged cell is measured again in fresh process pairs, and is a
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
from softbench.gate.verdicts import CellTest, GateReport, Rules, State, Verdict, corrected, finite, launch_bound, ranked, unmeasured
from softbench.plan.settings import Layer

MARGIN = 0.03
ROUNDS = 20
FIXED_ROUNDS: Layer = {"rounds": ROUNDS, "max_rounds": ROUNDS}
"""Settings for which candidate and reference share every round."""
CONFIRMATIONS = 2
"""Number of fresh process pairs, which must all agree."""
MARGIN_TAUS = 3 * math.sqrt(2)
"""Least margin in standard deviations of one process: three standard deviations of the difference of two."""
ORDER_FLOOR = 0.01
ORDER_SDS = 4.0
"""Standard errors (or the floor) by which AB and BA may differ. Beyond it a cell is in doubt: 1 in 16 000 identical cells."""
MEDIAN_SD = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean, for normal values


@dataclass(frozen=True, slots=True)
class Pairs:
    """The shared rounds of candidate and reference in one process pair."""

    logs: tuple[float, ...]
    """log(candidate / reference) of each round."""
    reference_us: tuple[float, ...]
    first: tuple[bool, ...]
    """True if the candidate came first."""


def pair(candidate: CellSamples, reference: CellSamples) -> dict[int, Pairs]:
    """The shared rounds by process."""
    found = {}
    for process, rounds in candidate.processes.items():
        others = {turn.number: turn for turn in reference.processes.get(process, ())}
        both = [(turn, others[turn.number]) for turn in rounds if turn.number in others]
        if both:
            logs = tuple(math.log(mine.median_us / other.median_us) for mine, other in both)
            us = tuple(other.median_us for _, other in both)
            found[process] = Pairs(logs, us, tuple(mine.position < other.position for mine, other in both))
    return found


def screen(run: RunSamples, candidate: str, reference: str, rules: Rules, tau: Mapping[CellKey, float] | None = None) -> GateReport:
    """Compare candidate and reference in every case of a run. Cells called slower are flagged and need a confirmation.

    `tau` is the between-process standard deviation of cells, from a baseline. Several process pairs of the run also give it.
    """
    if run.environment.get("interleaved") is False:
        raise InconclusiveError(
            f"{run.source}: {candidate} and {reference} were not alive at a time, so they share no round; free the device's memory, "
            "or compare with a stored baseline (--baseline)"
        )
    verdicts, cells, sides = [], {}, {}
    was = f"the reference {reference}"
    for key in (
        key.of(candidate) for key in dict.fromkeys(key.of(reference) for key in run.cells if key.backend in (candidate, reference))
    ):
        new, old = run.cells.get(key), run.cells.get(key.of(reference))
        if found := unmeasured(key, new, old, was):
            verdicts.append(found)
        elif new and old and new.status == old.status == "ok":
            cells[key], sides[key] = pair(new, old), (new, old)
    spreads = {**_spreads(cells), **(tau or {})}
    device = run.environment.get("device")
    tests = []
    for key, pairs in cells.items():
        us = median([us for found in pairs.values() for us in found.reference_us] or [math.inf])
        tests.append(_cell_test(key, pairs, rules, spreads.get(key), launch_bound(us, device, sides[key]), len(cells)))
    what = f"{candidate} against {reference}, interleaved in one run"
    return GateReport(what, ranked([*verdicts, *corrected(tests, rules)]), rules)


def spreads(base: RunSamples, reference: str, candidate: str) -> dict[CellKey, float]:
    """The reference's spread between processes in a baseline, for the candidate's cells."""
    keys = [key for key, series in base.cells.items() if key.backend == reference and len(series.processes) > 1]
    values = [[[math.log(us) for us in base.cells[key].medians_us().values()]] for key in keys]
    return {key.of(candidate): spread.tau for key, spread in zip(keys, moderate(values), strict=True)}


def _spreads(cells: Mapping[CellKey, Mapping[int, Pairs]]) -> dict[CellKey, float]:
    """The between-process standard deviation of one backend from several process pairs: that of the pairs over sqrt(2)."""
    several = {key: [[median(pairs.logs) for pairs in found.values()]] for key, found in cells.items() if len(found) > 1}
    if not several:
        return {}
    return {key: spread.tau / math.sqrt(2) for key, spread in zip(several, moderate(list(several.values())), strict=True)}


def _cell_test(key: CellKey, found: Mapping[int, Pairs], rules: Rules, tau: float | None, advisory: str, cells: int) -> CellTest:
    logs = [value for pairs in found.values() for value in pairs.logs]
    if not logs or not finite(logs):
        return CellTest(Verdict(key, State.AMBIGUOUS, ""), doubt="the two share no round" if not logs else "its values are no numbers")
    margin = max(rules.margin, MARGIN_TAUS * tau) if tau is not None else rules.margin
    ratio, doubt = math.exp(median(logs)), _doubt(found, rules, cells, math.log1p(margin))
    if not advisory and margin > rules.most_margin:
        told = f"its processes differ so much that the margin would be {margin:.1%}, more than {rules.most_margin:.0%}"
        if ratio <= 1 + rules.most_margin:
            advisory = f"not gated: {told}"
        elif ratio <= 1 + margin:  # too large to pass and too uncertain to decide; beyond the raised margin the test decides
            doubt = doubt or f"{ratio - 1:+.1%}, and {told}: measure more processes"
    interval = _interval(logs, tau)
    pairs_told = f"{len(found)} process pairs" if len(found) > 1 else "1 process pair"
    verdict = Verdict(
        key,
        State.AMBIGUOUS,
        advisory,
        ratio=ratio,
        interval=interval and (math.exp(interval[0]), math.exp(interval[1])),
        covers="rounds, widened by the differences between processes" if tau is not None else "rounds within this process pair",
        n=f"{len(logs)} rounds, {pairs_told}",
        margin=margin,
        gated=not advisory,
    )
    limit = math.log1p(margin)
    # Pooled rounds of several process pairs are not independent: each pair must show the change.
    slower = max(_beyond(pairs.logs, limit) for pairs in found.values())
    faster = max(_beyond([-value for value in pairs.logs], limit) for pairs in found.values())
    return CellTest(verdict, slower, faster, doubt)


def _beyond(logs: Sequence[float], limit: float) -> float:
    """p of H0: the logs are at most `limit`. Rounding keeps the ties that the clock's ticks make."""
    return signed_rank_p([round(value - limit, 9) for value in logs])


def _interval(logs: list[float], tau: float | None) -> tuple[float, float] | None:
    """A distribution-free interval over the rounds; a known tau of two processes is added in quadrature."""
    found = median_interval(logs)
    if found is None or tau is None:
        return found
    centre, between = median(logs), 1.96 * math.sqrt(2) * tau
    return centre - math.hypot(centre - found[0], between), centre + math.hypot(found[1] - centre, between)


def _doubt(found: Mapping[int, Pairs], rules: Rules, cells: int, margin: float) -> str:
    least = min(len(pairs.logs) for pairs in found.values())
    if 0.5**least > rules.alpha / cells:
        needed = math.ceil(math.log2(cells / rules.alpha))
        return f"{least} rounds cannot be significant in a family of {cells}: use --rounds {needed} or more"
    for pairs in found.values():
        half = len(pairs.reference_us) // 2
        moved = median(pairs.reference_us[half:]) / median(pairs.reference_us[:half])
        if abs(math.log(moved)) > math.log1p(rules.reference_moves):
            return f"the reference itself moved by {moved - 1:+.1%} within the run"
        ab = [value for value, first in zip(pairs.logs, pairs.first, strict=True) if first]
        ba = [value for value, first in zip(pairs.logs, pairs.first, strict=True) if not first]
        if min(len(ab), len(ba)) < 3:
            continue
        sigma = robust_sd([value - median(ab) for value in ab] + [value - median(ba) for value in ba])
        limit = max(ORDER_FLOOR, ORDER_SDS * MEDIAN_SD * sigma * math.sqrt(1 / len(ab) + 1 / len(ba)))
        if min(median(ab), median(ba)) > margin or max(median(ab), median(ba)) < -margin:
            continue  # beyond the margin in both orders
        if (differ := abs(median(ab) - median(ba))) > limit:
            return f"it depends on the order: AB and BA differ by {differ:.1%}, more than the noise explains ({limit:.1%})"
    return ""


def flagged(report: GateReport) -> list[Verdict]:
    """The verdicts that need a confirmation."""
    return [verdict for verdict in report.verdicts if verdict.state is State.SLOWER and verdict.gated]


def confirmed(report: GateReport, again: RunSamples | None, reference: str) -> GateReport:
    """The report after the confirmation: a regression stays only if every fresh process pair agrees.

    Without a second measurement (`again` is None) no flagged cell stays a regression.
    """
    return replace(report, verdicts=ranked([_settled(v, again, reference, report.rules) for v in report.verdicts]))


def _settled(verdict: Verdict, again: RunSamples | None, reference: str, rules: Rules) -> Verdict:
    if verdict.state is not State.SLOWER or not verdict.gated:
        return verdict
    cells = again.cells if again else {}
    new, old = cells.get(verdict.cell), cells.get(verdict.cell.of(reference))
    if new and new.status != "ok":
        return replace(verdict, state=State.BROKEN, reason=f"was right and slower, is {new.status} when measured again: {new.reason}")
    found = list(pair(new, old).values()) if new and old else []
    limit = math.log1p(verdict.margin or rules.margin)
    agree = [_beyond(pairs.logs, limit) <= rules.alpha for pairs in found]
    ratios = ", ".join(f"{math.exp(median(pairs.logs)):.3f}" for pairs in found)
    if len(found) >= CONFIRMATIONS and all(agree):
        pooled = fmean([math.log(verdict.ratio or 1), *(median(pairs.logs) for pairs in found)])
        told = f"{verdict.reason}; confirmed in {len(found)} fresh process pairs ({ratios}; mean of all {math.exp(pooled):.3f})"
        return replace(verdict, reason=told)
    told = f"fresh process pairs do not all agree ({ratios})" if found else "it was not measured again"
    return replace(verdict, state=State.AMBIGUOUS, reason=f"unstable: flagged once at {verdict.ratio:.3f}, but {told}")
