"""Further measures of two versions, beside the time of a call: each has its own margin, and none is judged unless it is asked for.

`device` and `host` are times of a call, and `compile` is that of a build with empty caches of Triton and Inductor. A process pair has one
value of each, log(candidate / reference), and the test is that of the time (`softbench.gate.paired`), on the pairs of the first look.
`memory`, `kernels` and `recompiles` are counts that do not vary: they are worse if each process of the candidate has more, beyond the
margin, than every one of the reference. Each measure is a family of its own. A measure that is ambiguous changes no exit code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import NamedTuple

from softbench.core import text
from softbench.core.errors import UsageError
from softbench.core.outcome import Measured
from softbench.gate.inference import moderate
from softbench.gate.paired import MIN_PAIRS, SharedRounds, by_start, cell_test
from softbench.gate.samples import CellKey
from softbench.gate.verdicts import CellTest, GateReport, Rules, State, Verdict, corrected, ranked
from softbench.results import writer

COLD = "cold"
"""The state of a build in which a compiler ran."""


class Measure(NamedTuple):
    """A measure of a cell in one process."""

    margin: float
    """Its default margin, as a fraction."""
    counted: bool
    """True if it does not vary, so that it needs no test."""
    of: Callable[[Measured], float | None]
    said: Callable[[float], str]


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


MEASURES: dict[str, Measure] = {
    "device": Measure(0.03, False, lambda one: _median(one.profile.device_us), text.micros),
    "host": Measure(0.10, False, lambda one: _median(one.profile.host_us), text.micros),
    "compile": Measure(0.20, False, lambda one: one.build.seconds if one.build.cache == COLD else None, lambda s: f"{s:.3g} s"),
    "memory": Measure(0.01, True, lambda one: one.profile.peak_bytes, lambda found: f"{found / 2**20:.6g} MiB"),
    "kernels": Measure(0.0, True, lambda one: len(one.profile.kernels) or None, lambda found: text.count(int(found), "kernel")),
    "recompiles": Measure(0.0, True, lambda one: one.profile.recompiles, lambda found: text.count(int(found), "recompile")),
}
Values = dict[int, dict[str, float]]
"""By process and backend."""


def parse(texts: Sequence[str], at: str = "--measure") -> dict[str, float]:
    """The margins of measures such as `memory` and `host=5`, as fractions.

    Raises:
        UsageError: there is no such measure, or the margin is no percentage.
    """
    found = {}
    for given in (part.strip() for one in texts for part in one.split(",")):
        name, equals, percent = given.partition("=")
        if name not in MEASURES:
            raise UsageError(f"{at}: {text.unknown(name, MEASURES, 'measure')}")
        try:
            margin = float(percent) / 100 if equals else MEASURES[name].margin
        except ValueError:
            margin = math.nan
        if not 0 <= margin <= 1 or (not MEASURES[name].counted and not margin > 0):
            raise UsageError(f"{at} {given}: must be a percentage up to 100, as in {name}=5")
        found[name] = margin
    return found


def judged(report: GateReport, run: writer.Run, chosen: Mapping[str, float], candidate: str, reference: str) -> GateReport:
    """The report with verdicts on these measures, by the run of the first look."""
    verdicts, notes = list(report.verdicts), list(report.notes)
    for name, margin in chosen.items():
        rules = replace(report.rules, margin=margin, margins={})
        cells = {
            key: pairs
            for key, values in _values(run, name).items()
            if (pairs := {process: both for process, both in values.items() if {candidate, reference} <= both.keys()})
        }
        if not cells:
            notes.append(f"{name} is not judged: {_why_none(name)}")
        elif MEASURES[name].counted:
            verdicts += [_counted(key, values, candidate, reference, rules) for key, values in cells.items()]
        else:
            verdicts += _timed(cells, candidate, reference, rules)
    return replace(report, verdicts=ranked(verdicts), notes=tuple(notes))


def _why_none(name: str) -> str:
    return "nothing was compiled" if name in ("compile", "recompiles") else "it needs a GPU and its profiler"


def _values(run: writer.Run, name: str) -> dict[CellKey, Values]:
    """The values of a measure, by the candidate's cell."""
    found: dict[CellKey, Values] = {}
    for process, record in run.by_process():
        if isinstance(record.outcome, Measured) and (value := MEASURES[name].of(record.outcome)) is not None:
            key = CellKey("", *record.case.identity, measure=name)
            found.setdefault(key, {}).setdefault(process, {})[record.backend] = value
    return found


def _counted(key: CellKey, values: Values, candidate: str, reference: str, rules: Rules) -> Verdict:
    new, old = ([both[name] for both in values.values()] for name in (candidate, reference))
    limit, said = 1 + rules.margin, MEASURES[key.measure].said
    if min(new) > max(old) * limit:
        state = State.SLOWER
    elif max(new) * limit < min(old):
        state = State.FASTER
    else:
        state = State.SAME if max(new) <= min(old) * limit else State.AMBIGUOUS
    ratio = median(new) / median(old) if median(old) else None
    reason = f"{said(median(new))} now, {said(median(old))} in the reference; the margin is {text.margin(rules.margin)}"
    n = text.count(len(values), "process pair")
    return Verdict(key.with_backend(candidate), state, reason, ratio, n=n, margin=rules.margin, gated=state is not State.AMBIGUOUS)


def _timed(cells: Mapping[CellKey, Values], candidate: str, reference: str, rules: Rules) -> list[Verdict]:
    pairs = {key: [_pair(process, both[candidate], both[reference]) for process, both in values.items()] for key, values in cells.items()}
    groups = {key: by_start(found, tails=False) for key, found in pairs.items()}
    enough = [key for key, found in pairs.items() if len(found) >= MIN_PAIRS]
    spreads = dict(zip(enough, moderate([groups[key] for key in enough]), strict=True))
    tests = []
    for key, found in pairs.items():
        ratio, n = math.exp(fmean(map(fmean, groups[key]))), text.count(len(found), "process pair")
        verdict = Verdict(key.with_backend(candidate), State.AMBIGUOUS, "", ratio, n=n, margin=rules.margin)
        if key in spreads:
            tests.append(cell_test(verdict, found, groups[key], spreads[key], 0.0, rules))
        else:
            tests.append(CellTest(verdict, why_ambiguous=f"{n}: fewer than {MIN_PAIRS} do not show how processes differ"))
    return [replace(one, gated=one.state is not State.AMBIGUOUS) for one in corrected(tests, rules)]


def _pair(process: int, new: float, old: float) -> SharedRounds:
    log = math.log(new / old)
    first = process % 2 == 0  # every second process set starts its workers in the reverse order
    return SharedRounds((log,), (log,), (old,), (first,), first)
