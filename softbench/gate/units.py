"""Results of several cards: each card is judged against its own baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from softbench.core.case import YARDSTICK
from softbench.core.errors import InconclusiveError
from softbench.core.machine import same_card
from softbench.core.outcome import UNTRIED
from softbench.core.text import count
from softbench.gate import environment_match, unpaired
from softbench.gate.samples import CellKey, CellSamples, RunSamples
from softbench.gate.verdicts import GateReport, Rules, State, Verdict, ranked, unmeasured
from softbench.results.document import device_name

DEALT = "measured on another card than in the baseline"
"""How the reason of a cell begins that was dealt to another card of the same model."""


def split(run: RunSamples) -> list[RunSamples]:
    """The samples of each unit, whose cells then have no unit; the run itself if it is of one."""
    found = []
    for unit, facts in run.units.items():
        cells = {key._replace(unit=""): samples for key, samples in run.cells.items() if key.unit == unit}
        processes = {process for samples in cells.values() for process in samples.processes}
        own = (one._replace(processes=tuple(process for process in one.processes if process in processes)) for one in run.sittings)
        sittings = tuple(one for one in own if one.processes)
        part = replace(run, source=f"{run.source}, {unit}", environment=facts, cells=cells, units={}, sittings=sittings)
        found.append(replace(part, processes=len(processes)))
    return [part for part in found if part.cells] or [run]


def own(new: RunSamples, base: RunSamples, allowed: Sequence[str] = ()) -> RunSamples:
    """The part of a baseline that is of the card of `new`, a run of one unit; of one card, the baseline itself.

    `softbench.gate.environment_match` decides whether another card may be compared. If `allowed` has `unit`, a card that the baseline
    lacks has the part of a card of its model; of several the one with the most of its cells.

    Raises:
        InconclusiveError: the baseline is of several cards, and not of this one.
    """
    parts, unit = split(base), new.environment.get("unit")
    if len(parts) == 1:
        return parts[0]
    for part in parts:
        if unit and same_card(part.environment.get("unit"), unit):
            return part
    if "unit" in allowed:
        model = device_name(new.environment)
        return max(parts, key=lambda part: (device_name(part.environment) == model, len(part.cells.keys() & new.cells.keys())))
    raise InconclusiveError(
        f"{new.source} cannot be compared with {base.source}: it was measured on {unit or 'an unknown card'}, "
        f"and the baseline is of {', '.join(base.units)}; measure on one of them, or: --allow-env-mismatch unit"
    )


def compare(new: RunSamples, base: RunSamples, rules: Rules, notes: Sequence[str], allowed: Sequence[str]) -> GateReport:
    """Judge each unit of `new` against its own part of the baseline. The units share the error rate.

    Cells of the baseline on units that `new` lacks are not missing. A cell that was dealt to another card is ambiguous: see `dealt`.

    Raises:
        InconclusiveError: a unit has no baseline, or `softbench.gate.unpaired.compare` raises it.
    """
    parts = split(new)
    pairs = [(part, own(part, base, allowed)) for part in parts]
    checks = [text for part, of in pairs for text in environment_match.check(part, of, allowed)]
    notes = tuple(dict.fromkeys([*checks, *notes, *_left_out(base, [of for _, of in pairs])]))
    if len(parts) == 1:
        return dealt(unpaired.compare(*pairs[0], rules, notes), *pairs[0], new, base)
    shared = replace(rules, alpha=rules.alpha / len(parts))
    verdicts = []
    for part, of in pairs:
        report = dealt(unpaired.compare(part, of, shared), part, of, new, base)
        unit = str(part.environment.get("unit", ""))
        verdicts += [replace(verdict, cell=verdict.cell._replace(unit=unit)) for verdict in report.verdicts]
        notes += tuple(f"{unit}: {note}" for note in report.notes)
    return GateReport(f"{new.source} against {base.source}, each card against its own", ranked(verdicts), rules, notes)


def _left_out(base: RunSamples, judged: Sequence[RunSamples]) -> Iterator[str]:
    """A note on each card of the baseline that measured nothing now."""
    known = [part.environment.get("unit") for part in judged]
    for part in split(base):
        if base.units and part.environment.get("unit") not in known:
            cells = sum(cell.backend != YARDSTICK for cell in part.cells)
            yield f"{count(cells, 'cell')} of the baseline's {part.environment.get('unit')} are not judged: that card measured nothing now"


def dealt(report: GateReport, part: RunSamples, mine: RunSamples, new: RunSamples, base: RunSamples) -> GateReport:
    """The report of one unit, corrected for cells that a shared sweep dealt to another card of the model than in the baseline.

    Such a cell is ambiguous on the card that measured it now, and not missing on the card that measured it before.

    Args:
        report: the verdicts on the cells of `part`, without units.
        part: the samples of one unit of `new`.
        mine: the part of the baseline that they were judged against (`own`).
        new: the samples of all units.
        base: the baseline of all units.
    """
    known = [*_alike(mine, split(base))]
    now = [*_alike(part, split(new))]
    verdicts = [found for verdict in report.verdicts if (found := _dealt(verdict, part, mine, now, known))]
    return replace(report, verdicts=ranked(verdicts))


def count_dealt(report: GateReport) -> int:
    """How many cells are ambiguous because another card measured them."""
    return sum(verdict.reason.startswith(DEALT) for verdict in report.verdicts)


def _alike(part: RunSamples, parts: Sequence[RunSamples]) -> Iterator[RunSamples]:
    """Those of the parts that are of other cards of its model."""
    unit, model = part.environment.get("unit"), device_name(part.environment)
    for other in parts:
        if not same_card(other.environment.get("unit"), unit) and device_name(other.environment) == model:
            yield other


def _dealt(verdict: Verdict, part: RunSamples, mine: RunSamples, now: Sequence[RunSamples], known: Sequence[RunSamples]) -> Verdict | None:
    """The verdict on a cell of `part`, if other cards have it now, or had it in the baseline; None if there is nothing to say."""
    cell = verdict.cell
    if cell not in part.cells:
        return None if any(cell in other.cells and other.cells[cell].status not in UNTRIED for other in now) else verdict
    if cell in mine.cells or not (before := next((other for other in known if cell in other.cells), None)):
        return verdict
    if part.cells[cell].status in UNTRIED:
        return verdict  # the card of the baseline has the verdict on what it measured
    if any(cell in other.cells and same_card(other.environment.get("unit"), before.environment.get("unit")) for other in now):
        return verdict  # it is judged there
    return _elsewhere(cell, part.cells[cell], before)


def _elsewhere(cell: CellKey, samples: CellSamples, before: RunSamples) -> Verdict | None:
    """The verdict on a cell that only another card of the baseline measured: a change of its class counts, and its time does not."""
    if verdict := unmeasured(cell, samples, before.cells[cell], "the baseline"):
        return verdict
    if cell.backend == YARDSTICK:
        return None
    return Verdict(cell, State.AMBIGUOUS, f"{DEALT}, which was {before.environment.get('unit')}; cards of one model differ")
