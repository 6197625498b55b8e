"""The results of the gate's self-test: its false alarms, and the share of injected slowdowns that it finds.

Each process set begins one A/A repetition, which judges every case as `softbench gate --candidate` does, in this set and the next ones.
So repetitions share sets, and the cells of a repetition share processes. Bounds count repetitions that share nothing: one for each
`fresh_pairs.PAIRS` sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from softbench.core.errors import UsageError
from softbench.core.json import JsonObject
from softbench.gate import fresh_pairs, paired
from softbench.gate.inference import proportion_bounds
from softbench.gate.samples import CellKey, CellSamples, RunSamples
from softbench.gate.verdicts import GateReport, Rules

SLOWDOWNS = (0.03, 0.05, 0.08)
"""Injected slowdowns: the margin, which should pass, and two larger ones, which should be found."""
CASES_PER_INJECTION = 4
"""One case in four has an injected slowdown, because Holm's correction finds slowdowns of all cases more easily."""
ALIKE = 0.01
"""A/A ratios within this fraction of 1 count as alike."""
MIN_REPETITIONS = fresh_pairs.PAIRS
FOR_5_PERCENT = 59 * fresh_pairs.PAIRS
"""Repetitions without a false alarm that give an upper bound of 5 %."""
EXIT_0_SHARE = 0.95
CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True)
class Power:
    """The power for one injected slowdown."""

    injected: float
    """The requested slowdown, as a fraction."""
    measured: float
    """The median over the cells of the measured slowdown."""
    least: float
    """The smallest measured slowdown of a cell."""
    most: float
    """The largest measured slowdown of a cell."""
    trials: int
    """Cells with the slowdown, over all repetitions."""
    found: int
    """Cells that ended as regressions."""
    independent: int
    """Repetitions that share no process set."""

    @property
    def share(self) -> float:
        """The share of the trials that were found."""
        return self.found / self.trials if self.trials else 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """One-sided 95 % bounds of the share, lower and upper, for as many trials as there are independent repetitions."""
        return proportion_bounds(self.share * self.independent, self.independent)


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The result of a self-test."""

    reference: str
    """The measured backend."""
    device_name: str
    """Name of the GPU or CPU."""
    margin: float
    """The slowdown that passes, as a fraction."""
    repetitions: int
    """Number of A/A repetitions."""
    independent: int
    """Repetitions that share no process set: the number of trials for bounds."""
    cells: int
    """Cases per repetition."""
    flagged: int
    """A/A repetitions in which the first look found a cell beyond the margin."""
    alarms: int
    """A/A repetitions that ended with exit code 1."""
    passed: int
    """A/A repetitions that ended with exit code 0."""
    ratios: int
    """Number of A/A ratios of calls over 10 us."""
    within_1_percent: int
    """A/A ratios within 1 %."""
    furthest: float
    """The A/A ratio that is furthest from 1."""
    bystanders: int
    """Cells without a slowdown that ended as regressions in repetitions with injected slowdowns."""
    power: tuple[Power, ...]
    """The power for each injected slowdown."""
    points: tuple[tuple[float, float], ...]
    """Measured slowdown and share found, for each cell with a slowdown."""

    @property
    def exit_code(self) -> int:
        """0 without a false alarm and with enough passes, else 1."""
        return 0 if not self.alarms and self.passed >= EXIT_0_SHARE * self.repetitions else 1

    def bounds(self, count: int) -> tuple[float, float]:
        """One-sided 95 % bounds of the share of repetitions, lower and upper."""
        return proportion_bounds(count * self.independent / self.repetitions, self.independent)

    def document(self) -> JsonObject:
        """As JSON, with the bounds."""
        data = asdict(self)
        data["power"] = [{**_renamed(asdict(level)), "share": level.share, "bounds": level.bounds} for level in self.power]
        data = _renamed(data)
        return {**data, "exit_code": self.exit_code, "false_alarm_rate_at_most": self.bounds(self.alarms)[1]}


JSON_KEYS = {
    **{"reference": "base", "repetitions": "families", "within_1_percent": "alike", "bystanders": "beside"},
    **{"injected": "planted", "measured": "realised"},
}
"""Fields whose JSON key differs; documents of earlier versions have these keys."""


def _renamed(data: JsonObject) -> JsonObject:
    return {JSON_KEYS.get(field, field): value for field, value in data.items()}


def name(reference: str, slowdown: float) -> str:
    """Name of the backend with an injected slowdown; 0 is the A/A copy."""
    return f"{reference}+{slowdown:g}"


def analyse(run: RunSamples, reference: str, rules: Rules) -> SelfTest:
    """Judge every repetition of a self-test's run, or of several joined runs.

    Raises:
        UsageError: the run is not a self-test of `reference`, or has too few repetitions.
    """
    cases = [key for key, samples in run.cells.items() if key.backend == reference and samples.status == "ok"]
    aa_copy = name(reference, 0)
    if not cases or not all((samples := run.cells.get(key.with_backend(aa_copy))) and samples.status == "ok" for key in cases):
        raise UsageError(
            f"{run.source}: is not a self-test of {reference}: every case needs {reference} and {aa_copy}; see: softbench gate --self-test"
        )
    sets = sorted(set.intersection(*(set(run.cells[key].processes) for key in cases)))
    if len(sets) < MIN_REPETITIONS:
        raise UsageError(
            f"{run.source}: {len(sets)} A/A repetitions are too few: it needs {MIN_REPETITIONS}, and {FOR_5_PERCENT} for a bound of 5 %"
        )
    levels = [s for s in SLOWDOWNS if any(key.backend == name(reference, s) and c.status == "ok" for key, c in run.cells.items())]
    aa = [_report_on(run, cases, reference, [aa_copy] * len(cases), sets, i, rules) for i in range(len(sets))]
    aa_ratios = [verdict.ratio for _, report in aa for verdict in report.verdicts if verdict.gated and verdict.ratio]
    power, points, bystanders, independent = [], [], 0, len(sets) // fresh_pairs.PAIRS
    for slowdown in levels:
        hits, bystander_alarms, measured = _injected(run, cases, reference, slowdown, sets, rules)
        bystanders += bystander_alarms
        trials = [hit for of_case in hits.values() for hit in of_case]
        slowdowns = measured.values()
        power.append(Power(slowdown, median(slowdowns), min(slowdowns), max(slowdowns), len(trials), sum(trials), independent))
        points += [(measured[key], sum(of_case) / len(of_case)) for key, of_case in hits.items() if of_case]
    return SelfTest(
        reference=reference,
        device_name=run.device_name,
        margin=rules.margin,
        repetitions=len(sets),
        independent=independent,
        cells=len(cases),
        flagged=sum(flagged for flagged, _ in aa),
        alarms=sum(report.exit_code == 1 for _, report in aa),
        passed=sum(report.exit_code == 0 for _, report in aa),
        ratios=len(aa_ratios),
        within_1_percent=sum(abs(ratio - 1) <= ALIKE for ratio in aa_ratios),
        furthest=max(aa_ratios, key=lambda ratio: abs(math.log(ratio)), default=1.0),
        bystanders=bystanders,
        power=tuple(power),
        points=tuple(points),
    )


def _injected(
    run: RunSamples, cases: Sequence[CellKey], reference: str, slowdown: float, sets: Sequence[int], rules: Rules
) -> tuple[dict[CellKey, list[bool]], int, dict[CellKey, float]]:
    """Judge every repetition with one injected slowdown.

    Returns for each case with the slowdown whether each repetition found it, the number of other failing cells, and the measured
    slowdown of each case.
    """
    slow = name(reference, slowdown)
    injected = [key for key in cases if (samples := run.cells.get(key.with_backend(slow))) and samples.status == "ok"]
    hits: dict[CellKey, list[bool]] = {key: [] for key in injected}
    bystander_alarms = 0
    size = max(1, len(cases) // CASES_PER_INJECTION)
    groups = [set(injected[start : start + size]) for start in range(0, len(injected), size)]
    for i in range(len(sets)):
        for chosen in groups:
            candidates = [slow if key in chosen else name(reference, 0) for key in cases]
            _, report = _report_on(run, cases, reference, candidates, sets, i, rules)
            for verdict in report.verdicts:
                key = verdict.cell.with_backend(reference)
                if key in chosen and verdict.gated:
                    hits[key].append(verdict.fails)
                elif key not in chosen:
                    bystander_alarms += verdict.fails
    measured = {key: _measured_slowdown(run.cells[key.with_backend(slow)], run.cells[key]) for key in injected}
    return hits, bystander_alarms, measured


def _measured_slowdown(slow: CellSamples, reference: CellSamples) -> float:
    return math.expm1(median(rounds.value() for rounds in paired.pair(slow, reference).values()))


def _report_on(
    run: RunSamples, cases: Sequence[CellKey], reference: str, candidates: Sequence[str], sets: Sequence[int], i: int, rules: Rules
) -> tuple[bool, GateReport]:
    """Judge repetition `i` with one candidate per case, in the sets from the `i`-th on.

    Returns whether a cell seemed slower in the first look, and the report after the last one.
    """
    chosen = dict(zip(cases, candidates, strict=True))
    ordered, used = [*sets[i:], *sets[:i]], 0
    plan = [look for look in fresh_pairs.looks() if look.pairs <= len(sets)]

    def measured(cells: Iterable[CellKey], pairs: int) -> RunSamples:
        nonlocal used
        first, used = used, used + pairs
        some = {cell.with_backend(reference): chosen[cell.with_backend(reference)] for cell in cells}
        return replace(_select(run, some, reference, ordered[first:used]), runs=(f"sets-{used}",))

    first = measured(cases, plan[0].pairs)
    report = fresh_pairs.compare(first, measured, CANDIDATE, reference, rules, plan[:1])
    slower = any(one.fails or (one.gated and one.may_be_slower and (one.ratio or 1) > 1 + rules.margin) for one in report.verdicts)
    return slower, fresh_pairs.compare(first, measured, CANDIDATE, reference, rules, plan)


def _select(run: RunSamples, chosen: Mapping[CellKey, str], reference: str, sets: Sequence[int]) -> RunSamples:
    """The samples of some process sets, with one candidate per case."""
    cells: dict[CellKey, CellSamples] = {}
    for key, backend in chosen.items():
        for new_name, samples in ((CANDIDATE, run.cells[key.with_backend(backend)]), (reference, run.cells[key])):
            selected = {number: samples.processes[process] for number, process in enumerate(sets) if process in samples.processes}
            cells[key.with_backend(new_name)] = replace(samples, processes=selected)
    return replace(run, cells=cells, processes=len(sets))
