"""Results of several cards: each card is judged against its own baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from softbench.core.errors import InconclusiveError
from softbench.core.machine import same_card
from softbench.gate import environment_match, unpaired
from softbench.gate.samples import RunSamples
from softbench.gate.verdicts import GateReport, Rules, ranked


def split(run: RunSamples) -> list[RunSamples]:
    """The samples of each unit, whose cells then have no unit; the run itself if it is of one."""
    found = []
    for unit, facts in run.units.items():
        cells = {key._replace(unit=""): samples for key, samples in run.cells.items() if key.unit == unit}
        processes = {process for samples in cells.values() for process in samples.processes}
        sittings = tuple(some for sitting in run.sittings if (some := tuple(process for process in sitting if process in processes)))
        part = replace(run, source=f"{run.source}, {unit}", environment=facts, cells=cells, units={}, sittings=sittings)
        found.append(replace(part, processes=len(processes)))
    return [part for part in found if part.cells] or [run]


def own(new: RunSamples, base: RunSamples) -> RunSamples:
    """The part of a baseline that is of the card of `new`, a run of one unit; of one card, the baseline itself.

    `softbench.gate.environment_match` decides whether another card may be compared.

    Raises:
        InconclusiveError: the baseline is of several cards, and not of this one.
    """
    parts, unit = split(base), new.environment.get("unit")
    if len(parts) == 1:
        return parts[0]
    for part in parts:
        if unit and same_card(part.environment.get("unit"), unit):
            return part
    raise InconclusiveError(
        f"{new.source} cannot be compared with {base.source}: it was measured on {unit or 'an unknown card'}, "
        f"and the baseline is of {', '.join(base.units)}; measure on one of them"
    )


def judge(new: RunSamples, base: RunSamples, rules: Rules, notes: Sequence[str], allowed: Sequence[str]) -> GateReport:
    """Judge each unit of `new` against its own part of the baseline. The units share the error rate.

    Cells of the baseline on units that `new` lacks are not missing.

    Raises:
        InconclusiveError: a unit has no baseline, or `softbench.gate.unpaired.judge` raises it.
    """
    parts = split(new)
    pairs = [(part, own(part, base)) for part in parts]
    checks = [text for part, of in pairs for text in environment_match.check(part, of, allowed)]
    notes = tuple(dict.fromkeys([*checks, *notes]))
    if len(parts) == 1:
        return unpaired.judge(*pairs[0], rules, notes)
    shared = replace(rules, alpha=rules.alpha / len(parts))
    verdicts = []
    for part, of in pairs:
        report = unpaired.judge(part, of, shared)
        unit = str(part.environment.get("unit", ""))
        verdicts += [replace(verdict, cell=verdict.cell._replace(unit=unit)) for verdict in report.verdicts]
        notes += tuple(f"{unit}: {note}" for note in report.notes)
    return GateReport(f"{new.source} against {base.source}, each card against its own", ranked(verdicts), rules, notes)
