"""What a comparison can find: in process pairs, and with a baseline. A run in which it finds nothing makes no baseline."""

from __future__ import annotations

import math
from statistics import median

from softbench.core import text
from softbench.core.errors import InconclusiveError
from softbench.gate.fresh_pairs import looks
from softbench.gate.inference import moderate, t_quantile
from softbench.gate.paired import TAIL_SHARE
from softbench.gate.samples import CellKey, RunSamples
from softbench.gate.sittings import ASSUMED_SD, MOST_SD, Part, assumed, error_of
from softbench.gate.unpaired import MARGIN, MIN_NEW, RECOMMENDED_BASE, between_sittings, groups_of, process_values
from softbench.gate.verdicts import AMBIGUOUS_BEYOND, Rules, why_advisory

SECOND_LOOK = 2
"""The second look has this many times as many processes as the first."""
LARGEST_MARGIN = 1.0
"""The largest margin that the gate takes. A slowdown that is found only beyond it is found with no margin."""
EXAMPLE_SUSPECTS = 10
EXAMPLE_CELLS = 20
"""Undecided cells of a comparison with a baseline, and cells of one in process pairs, for which the plan says what it finds."""


def found_in_pairs(rules: Rules, pairs: int, process_sd: float) -> float:
    """The slowdown that the last look, at this many pairs, finds with probability .95 in one of EXAMPLE_CELLS cells.

    `process_sd` is the standard deviation of one backend between processes.
    """
    share = (1 - TAIL_SHARE) * looks()[-1].share
    quantiles = t_quantile(1 - rules.alpha * share / EXAMPLE_CELLS, pairs) + t_quantile(0.95, pairs)
    return math.expm1(math.log1p(rules.margin) + quantiles * math.sqrt(2 / pairs) * process_sd)


def slowdowns_found(base: RunSamples, new_processes: int, rules: Rules, most_sd: float = MOST_SD) -> dict[CellKey, float]:
    """For each cell the slowdown that this many new processes find with probability .95 among ten undecided cells.

    The spread between processes and between sittings is the baseline's. `most_sd` is that between sittings if it has one. Cells of one
    process, or without copy, are left out.
    """
    values = {key: groups_of(each, base) for key, each in process_values(base).items() if len(each) > 1}
    sittings, factor = between_sittings(base) or assumed(most_sd), 1 + 1 / len(base.by_sitting)
    alpha = rules.alpha / EXAMPLE_SUSPECTS
    found = {}
    for key, spread in zip(values, moderate(list(values.values())), strict=True):
        processes = Part(spread.process_sd**2, spread.process_sd**2, spread.df).times(1 / new_processes + 1 / base.processes)
        error, df = error_of(processes, sittings.cell.times(factor))
        beyond = math.hypot(math.sqrt(processes.variance), min(sittings.sd, ASSUMED_SD) * math.sqrt(factor))
        least = (t_quantile(1 - alpha / 2, df) + t_quantile(0.95, df)) * error
        least = max(least, math.log1p(rules.margin) + (t_quantile(1 - alpha, math.inf) + t_quantile(0.95, math.inf)) * beyond)
        found[key] = math.expm1(min(least, 700.0))  # exp(710) is no float
    return found


def found_by_processes(base: RunSamples, new_processes: int, rules: Rules) -> float:
    """The median of `slowdowns_found` over the cells; NaN if the baseline shows no spread."""
    return median(slowdowns_found(base, new_processes, rules).values() or [math.nan])


def check_noise(base: RunSamples) -> list[str]:
    """Warnings about cells in which the gate's default plan finds large slowdowns only.

    Advisory cells do not count, since they never change the gate's decision.

    Raises:
        InconclusiveError: there is no copy. Or the plan finds no slowdown up to LARGEST_MARGIN, in more cells than may be ambiguous, so
            that the gate would be inconclusive about unchanged code.
    """
    rules, device = Rules(margin=MARGIN), base.environment.get("device")
    found = slowdowns_found(base, SECOND_LOOK * MIN_NEW, rules, ASSUMED_SD)
    medians = {key: base.cells[key].medians_us().values() for key in found}
    if not found and base.processes > 1:
        raise InconclusiveError(f"{base.source}: has no results of copy, which shows how the machine changes; measure again with copy")
    gated = {key: finds for key, finds in found.items() if not why_advisory(median(medians[key]), device, base.cells[key])}
    for limit, refused in ((LARGEST_MARGIN, True), (rules.margin + AMBIGUOUS_BEYOND, False)):
        noisy = sorted((key for key, finds in gated.items() if finds > limit), key=lambda key: -gated[key])
        if not noisy or (refused and len(noisy) <= rules.most_ambiguous * len(gated)):
            continue
        fastest, slowest = (text.micros(extreme(medians[noisy[0]])) for extreme in (min, max))
        message = (
            f"{base.source}: {'too noisy for a baseline' if refused else 'noisy'}: the processes of {len(noisy)} of "
            f"{text.count(len(gated), 'cell')} differ so much that the gate may miss a slowdown of {limit:.0%} there "
            f"(most: {noisy[0].backend} {noisy[0].case}, {fastest} to {slowest}); to find smaller ones, measure on a machine that does "
            f"nothing else, with more processes: {base.more_processes(max(RECOMMENDED_BASE, 2 * base.processes))}"
        )
        if refused:
            raise InconclusiveError(message)
        return [message]
    return []
