"""Measures what a baseline has, judges it, and measures undecided cells again in new processes.

The second look alone decides these cells, so that being picked by the first look biases nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from softbench.core import text
from softbench.core.case import YARDSTICK
from softbench.core.errors import UsageError
from softbench.core.outcome import UNTRIED
from softbench.gate import environment_match, unpaired
from softbench.gate.ab_run import Measure, confirmation, samples_of, times
from softbench.gate.fresh_pairs import controls_of
from softbench.gate.power import SECOND_LOOK, found_by_processes
from softbench.gate.samples import CellKey, RunSamples
from softbench.gate.units import dealt, own
from softbench.gate.verdicts import CORRECT, GateReport, Rules, State, Verdict, ranked
from softbench.plan.plan import Plan
from softbench.plan.settings import read
from softbench.plan.sweep import cases, only
from softbench.run.request import RunRequest

SETTINGS = ("threads", "rounds", "max_rounds", "precision", "tick_us", "seed", "warmup_ms", "batch_ms", "timer", "l2")
"""The settings of a baseline that its new processes share."""


def baseline_request(request: RunRequest, base: RunSamples) -> RunRequest:
    """The request that measures the baseline's backends, with its settings, and its cases if none are given. Flags win.

    Cells that were wrong or failed are measured too, so that the report says what they are now.

    Raises:
        UsageError: too few processes, a setting of the baseline is invalid, or the baseline has no backend.
    """
    known_cells = {key: samples.status for key, samples in base.cells.items() if key.backend != YARDSTICK}
    backends = tuple(dict.fromkeys(key.backend for key, status in known_cells.items() if status not in UNTRIED))
    known = {**base.settings, "device": base.environment.get("device", "auto")}
    stored = {name: read(name, known[name], f"{base.source}: {name}") for name in (*SETTINGS, "device") if known.get(name) is not None}
    sweeps = tuple(map(only, dict.fromkeys(key.identity for key in known_cells)))
    config = {"sweep": sweeps, "profile": "off", "processes": unpaired.MIN_NEW, **stored, **request.config}
    flags = {**request.flags, "backends": backends}
    adjusted = replace(request, config=config, flags=flags)
    if not any(status in CORRECT for status in known_cells.values()):
        raise UsageError(f"{base.source}: has no correct cell besides those of {YARDSTICK}; give a run that has some, of several processes")
    if (processes := adjusted.settings().processes) < unpaired.MIN_NEW:
        raise UsageError(
            f"gate: --processes {processes} can never show a regression; a comparison with a baseline needs {unpaired.MIN_NEW}"
        )
    return adjusted


def compare(measure: Measure, request: RunRequest, base: RunSamples, rules: Rules, allowed: Sequence[str] = ()) -> GateReport:
    """Measure new processes, judge them, and give the cells that are not `same` a second look in new processes.

    A cell of the baseline whose case was asked for and is not in the results is missing.

    Raises:
        UsageError: a backend of the baseline does not exist. Other errors of `measure` pass through.
        InconclusiveError: the baseline has too few processes, or comes from another machine or kind of device.
    """
    unpaired.require_base(base)
    device = request.flags.get("device")
    environment_match.check_device(device, base, allowed)
    environment_match.check_threads(request.settings().threads, base, allowed)
    try:
        run = measure(request)
    except UsageError as error:
        if device is None and str(error).startswith("--device cuda: "):
            raise UsageError(environment_match.without_gpu(str(error), base)) from None
        needed = " ".join(base.plugin_flags) or "--plugin"
        message = str(error).replace("--backends", f"{base.source}: its backends need {needed}", 1)
        raise UsageError(message.replace("--op FILE.py", " ".join(base.problem_flags) or "--op FILE.py", 1)) from None
    new = samples_of(run)
    mine = own(new, base, allowed)
    asked = {case.identity for case in cases(request.settings().sweep, str(mine.environment.get("device")))}
    expected = replace(mine, cells={cell: one for cell, one in mine.cells.items() if cell.identity in asked or cell in new.cells})
    notes = [f"measured: {run.csv}", *environment_match.check(new, mine, allowed), *_left_out(mine, expected)]
    first = unpaired.compare(new, expected, rules)

    def fresh(cells: Sequence[CellKey]) -> RunSamples:
        again = measure(confirmation(request, cells, SECOND_LOOK * request.settings().processes))
        notes.append(f"{text.count(len(cells), 'cell')} measured again in new processes: {again.csv}")
        return samples_of(again)

    report = dealt(second_look(first, mine, rules, fresh), new, mine, new, base)
    return replace(report, notes=(*notes, *report.notes))


def _left_out(base: RunSamples, expected: RunSamples) -> list[str]:
    """A note on the cells of the baseline that the command line leaves out."""
    every, judged = (sum(cell.backend != YARDSTICK for cell in of.cells) for of in (base, expected))
    return (
        [f"{every - judged} of {text.count(every, 'cell')} of the baseline were not asked for, and are not judged"]
        if judged < every
        else []
    )


def second_look(first: GateReport, base: RunSamples, rules: Rules, fresh: Callable[[Sequence[CellKey]], RunSamples]) -> GateReport:
    """The report with the cells that are not `same` decided by new processes, which `fresh` measures. Errors of `fresh` pass through.

    Some `same` cells are measured too: their processes show how much processes differ.
    """
    suspects = [verdict.cell for verdict in first.verdicts if _suspicious(verdict)]
    if not suspects:
        return first
    cells = [*suspects, *controls_of(first, len(suspects))]
    passed = sum(verdict.state is State.SAME for verdict in first.verdicts)
    sittings = unpaired.between_sittings(base)
    second = unpaired.compare(fresh(cells), _of_cases(base, cells), rules, only=suspects, sittings=sittings, passed=passed)
    decided = {verdict.cell: verdict for verdict in second.verdicts}
    verdicts = ranked([decided.get(verdict.cell, verdict) for verdict in first.verdicts])
    notes = (*first.notes, *(f"second look: {note}" for note in second.notes))
    return replace(first, verdicts=verdicts, notes=notes)


def _of_cases(base: RunSamples, cells: Iterable[CellKey]) -> RunSamples:
    """The baseline without other cases than those of these cells."""
    cases = {cell.with_backend("") for cell in cells}
    return replace(base, cells={key: samples for key, samples in base.cells.items() if key.with_backend("") in cases})


def _suspicious(verdict: Verdict) -> bool:
    return verdict.gated and verdict.state in (State.SLOWER, State.FASTER, State.CLOCK, State.AMBIGUOUS)


def plan_text(plan: Plan, base: RunSamples, rules: Rules) -> str:
    """What the comparison can find and how long it takes, as a sentence, before anything is measured. `plan` is that of the first look."""
    settings = plan.settings
    more = SECOND_LOOK * settings.processes
    finds = found_by_processes(base, more, rules)
    return (
        f"plan: {text.count(settings.processes, 'new process set')} of {text.count(settings.rounds, 'round')} against "
        f"{base.processes} processes of the baseline, then undecided cells again in {more} more; {times(plan, more)}; "
        f"margin {100 * rules.margin:.3g}%; finds a slowdown of {text.percent(finds)} with probability .95"
    )
