"""The results of the gate's self-test: its false alarms, and the share of injected slowdowns that it finds.

Each process set is one A/A repetition: it screens every case in one process pair, as `softbench gate --candidate` does. The next two
process sets confirm its flagged cells. Repetitions share these sets, so the alarms before confirmation are given as well: those are
independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from softbench.core.errors import UsageError
from softbench.gate import paired
from softbench.gate.inference import proportion_bounds
from softbench.gate.samples import CellKey, CellSamples, RunSamples
from softbench.gate.verdicts import GateReport, Rules

SLOWDOWNS = (0.03, 0.05, 0.08)
"""Injected slowdowns: the margin itself, which should pass, and two that should be found."""
EVERY = 4
"""One case in four has an injected slowdown: a repetition that is slower in every case would be easier for Holm's correction."""
ALIKE = 0.01
"""A/A ratios within this fraction of 1 count as alike."""
MIN_FAMILIES = 1 + paired.CONFIRMATIONS
EXIT_0_SHARE = 0.95
CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True)
class Power:
    """The power for one injected slowdown."""

    planted: float
    realised: float
    """The median over the cells of the measured slowdown."""
    least: float
    most: float
    trials: int
    """Cells with the slowdown, over all repetitions."""
    found: int
    """Cells that ended as regressions."""

    @property
    def share(self) -> float:
        return self.found / self.trials if self.trials else 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """One-sided 95 % bounds of the share, lower and upper."""
        return proportion_bounds(self.found, self.trials)


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The result of a self-test."""

    base: str
    device_name: str
    margin: float
    families: int
    cells: int
    """Cases per repetition."""
    flagged: int
    """A/A repetitions with a false alarm before confirmation."""
    alarms: int
    """A/A repetitions that ended with exit code 1."""
    passed: int
    """A/A repetitions that ended with exit code 0."""
    ratios: int
    """Number of A/A ratios of calls over 10 us."""
    alike: int
    """A/A ratios within 1 %."""
    furthest: float
    """The A/A ratio that is furthest from 1."""
    beside: int
    """Cells without a slowdown that ended as regressions beside cells with one."""
    power: tuple[Power, ...]
    points: tuple[tuple[float, float], ...]
    """Measured slowdown and share found, for each cell with a slowdown."""

    @property
    def exit_code(self) -> int:
        """0 without a false alarm and with enough passes, else 1."""
        return 0 if not self.alarms and self.passed >= EXIT_0_SHARE * self.families else 1

    def document(self) -> dict[str, Any]:
        """As JSON, with the bounds."""
        data = asdict(self)
        data["power"] = [{**asdict(power), "share": power.share, "bounds": power.bounds} for power in self.power]
        bound = proportion_bounds(self.alarms, self.families)[1]
        return {**data, "exit_code": self.exit_code, "false_alarm_rate_at_most": bound}


def name(base: str, slowdown: float) -> str:
    """Name of the backend with an injected slowdown; 0 is the A/A copy."""
    return f"{base}+{slowdown:g}"


def analyse(run: RunSamples, base: str, rules: Rules) -> SelfTest:
    """Judge every repetition of a self-test's run, or of several joined runs.

    Raises:
        UsageError: the run is no self-test of `base`, or has too few repetitions.
    """
    cases = [key for key, series in run.cells.items() if key.backend == base and series.status == "ok"]
    twin = name(base, 0)
    if not cases or not all((series := run.cells.get(key.of(twin))) and series.status == "ok" for key in cases):
        raise UsageError(
            f"{run.source}: is no self-test of {base}: it needs {base} and {twin} in every case; see: softbench gate --self-test"
        )
    sets = sorted(set.intersection(*(set(run.cells[key].processes) for key in cases)))
    if len(sets) < MIN_FAMILIES:
        raise UsageError(f"{run.source}: {len(sets)} families are too few: {MIN_FAMILIES} at least, 59 for a bound of 5 %")
    levels = [s for s in SLOWDOWNS if any(key.backend == name(base, s) and c.status == "ok" for key, c in run.cells.items())]
    aa = [_family(run, cases, base, [twin] * len(cases), sets, i, rules) for i in range(len(sets))]
    twins = [verdict.ratio for _, report in aa for verdict in report.verdicts if verdict.gated and verdict.ratio]
    power, points, beside = [], [], 0
    for slowdown in levels:
        found, others, realised = _planted(run, cases, base, slowdown, sets, rules)
        beside += others
        trials = [hit for hits in found.values() for hit in hits]
        power.append(Power(slowdown, median(realised.values()), min(realised.values()), max(realised.values()), len(trials), sum(trials)))
        points += [(realised[key], sum(hits) / len(hits)) for key, hits in found.items() if hits]
    return SelfTest(
        base=base,
        device_name=run.device_name,
        margin=rules.margin,
        families=len(sets),
        cells=len(cases),
        flagged=sum(flagged for flagged, _ in aa),
        alarms=sum(report.exit_code == 1 for _, report in aa),
        passed=sum(report.exit_code == 0 for _, report in aa),
        ratios=len(twins),
        alike=sum(abs(ratio - 1) <= ALIKE for ratio in twins),
        furthest=max(twins, key=lambda ratio: abs(math.log(ratio)), default=1.0),
        beside=beside,
        power=tuple(power),
        points=tuple(points),
    )


def _planted(
    run: RunSamples, cases: Sequence[CellKey], base: str, slowdown: float, sets: Sequence[int], rules: Rules
) -> tuple[dict[CellKey, list[bool]], int, dict[CellKey, float]]:
    """For each case with a slowdown: whether each repetition found it, its measured slowdown, and the number of other slower cells."""
    slow = name(base, slowdown)
    able = [key for key in cases if (series := run.cells.get(key.of(slow))) and series.status == "ok"]
    found: dict[CellKey, list[bool]] = {key: [] for key in able}
    others = 0
    most = max(1, len(cases) // EVERY)
    groups = [set(able[start : start + most]) for start in range(0, len(able), most)]
    for i in range(len(sets)):
        for chosen in groups:
            _, report = _family(run, cases, base, [slow if key in chosen else name(base, 0) for key in cases], sets, i, rules)
            for verdict in report.verdicts:
                key = verdict.cell.of(base)
                if key in chosen and verdict.gated:
                    found[key].append(verdict.fails)
                elif key not in chosen:
                    others += verdict.fails
    realised = {key: _realised(run.cells[key.of(slow)], run.cells[key]) for key in able}
    return found, others, realised


def _realised(slow: CellSamples, base: CellSamples) -> float:
    return math.expm1(median(median(pairs.logs) for pairs in paired.pair(slow, base).values()))


def _family(
    run: RunSamples, cases: Sequence[CellKey], base: str, candidates: Sequence[str], sets: Sequence[int], i: int, rules: Rules
) -> tuple[bool, GateReport]:
    """Screen repetition `i` with these candidates, and confirm its flagged cells in the next sets."""
    chosen = dict(zip(cases, candidates, strict=True))
    report = paired.screen(_only(run, chosen, base, [sets[i]]), CANDIDATE, base, rules)
    flagged = paired.flagged(report)
    if not flagged:
        return False, report
    fresh = [sets[(i + step) % len(sets)] for step in range(1, 1 + paired.CONFIRMATIONS)]
    again = _only(run, {verdict.cell.of(base): chosen[verdict.cell.of(base)] for verdict in flagged}, base, fresh)
    return True, paired.confirmed(report, again, base)


def _only(run: RunSamples, chosen: Mapping[CellKey, str], base: str, sets: Sequence[int]) -> RunSamples:
    """The samples of some process sets, with one candidate per case."""
    cells: dict[CellKey, CellSamples] = {}
    for key, backend in chosen.items():
        for to, series in ((CANDIDATE, run.cells[key.of(backend)]), (base, run.cells[key])):
            kept = {place: series.processes[process] for place, process in enumerate(sets) if process in series.processes}
            cells[key.of(to)] = replace(series, processes=kept)
    return replace(run, cells=cells, processes=len(sets))
