"""The unpaired comparison: new processes against a baseline, cell by cell, with a one-sided moderated t test on log process medians.

A process counts as one value. Its rounds share addresses, clocks and warm-up, so they say nothing about the next process. A rank test
is too weak: with 10 and 3 values its smallest p is 0.0035, and 300 cells need 1.7e-4. One outlying process of ten is left out.

A regression needs two tests. The first asks whether the new processes are slower than the baseline's by more than the margin. The second
asks whether unchanged code differs so much between sittings (`sittings`). If all cells share most of a sitting's shift, the change of a
cell beside that of the others counts too. A baseline of one sitting does not show how sittings differ, so MOST_SD is assumed.

The change of copy in the same process, its median over all cases, is subtracted from each value: it is the change of the machine.
The change of the backends is never subtracted, as that would hide a slowdown of all of them. A case's own copy is not subtracted
either: at some lengths it has two speeds on an H200, depending on the process. The cell is ambiguous if its own copy slowed down
alike, or if only other copies slowed down. It is also ambiguous if all copies changed by more than 5 % and that decides the verdict.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from softbench.core.case import YARDSTICK
from softbench.core.errors import InconclusiveError
from softbench.gate import command_line
from softbench.gate.inference import (
    Moderated,
    moderate,
    outlying,
    t_quantile,
    t_upper,
)
from softbench.gate.samples import SITTING_S, CellKey, CellSamples, RunSamples, yardstick
from softbench.gate.sittings import ASSUMED_SD, MIN_CELLS, MOST_SD, Part, Sittings, assumed, error_of, estimate
from softbench.gate.verdicts import (
    CellTest,
    GateReport,
    Rules,
    State,
    Verdict,
    advisory_reason,
    by_clock,
    clock_change,
    corrected,
    one_timer,
    ranked,
    unmeasured,
    why_advisory,
)

MIN_BASE = 5
RECOMMENDED_BASE = 10
MIN_NEW = 3
MARGIN = 0.05
NO_SECOND_SITTING = "no cell has two sittings of the baseline"
"""How the note on assumed sittings begins."""
SAME_CHANGE = 0.01
"""A case's own copy and all copies changed alike if their log changes differ by at most this. A larger change of the machine is noted."""


def compare(
    new: RunSamples,
    base: RunSamples,
    rules: Rules,
    notes: tuple[str, ...] = (),
    only: Collection[CellKey] | None = None,
    sittings: Sittings | None = None,
    passed: int = 0,
) -> GateReport:
    """Judge every cell of either side. `softbench.gate.environment_match` checks that the two may be compared.

    With `only`, the verdicts of other cells are left out. Their processes still count for the spread. `sittings` is how sittings differ, if
    the baseline has more cells that show it. `passed` is the number of cells that an earlier look of this sitting found to be `same`.

    Raises:
        InconclusiveError: one side has too few processes (the message names the command that measures more), or no cell has a spread.
    """
    _require_processes(new, base)
    verdicts, cells = [], {}
    copy_changes = _copy_changes(new, base)
    for key in dict.fromkeys([*base.cells, *new.cells]):
        if verdict := unmeasured(key, new.cells.get(key), base.cells.get(key), "the baseline"):
            verdicts.append(verdict)
        elif key.backend != YARDSTICK:
            cells[key] = _Cell(key, (new, base), copy_changes)
    testable = [cell for cell in cells.values() if not cell.why_ambiguous]
    if testable and all(not cell.spread for cell in testable):
        raise InconclusiveError(
            f"{base.source} and {new.source}: no cell has a spread between processes, so the noise is unknown; "
            f"measure again with: {base.more_processes(RECOMMENDED_BASE)}"
        )
    spreads = dict(zip((cell.key for cell in testable), moderate([cell.groups for cell in testable]), strict=True))
    log_ratios = [cell.log_ratio for cell in testable]
    sittings = sittings or between_sittings(base, new)
    between = _Between.of(new, base, log_ratios, sittings, 1 + passed / max(1, len(only or log_ratios)))
    judged = [cell for key, cell in cells.items() if only is None or key in only]
    tests = [cell.cell_test(spreads.get(cell.key), between, rules) for cell in judged]
    listed = [
        *(verdict for verdict in verdicts if only is None or verdict.cell in only),
        *(by_clock(one, clock_change(new.cells[one.cell], base.cells[one.cell])) for one in corrected(tests, rules)),
    ]
    notes = (*notes, *_machine_note(_machine_change(copy_changes), rules), *([] if only else between.notes()))
    return GateReport(f"{new.source} against {base.source}", ranked(listed), rules, notes)


def between_sittings(*sides: RunSamples) -> Sittings | None:
    """How the sittings of these sides differ, over the cells that all of them have; None if none has two sittings."""
    values = [process_values(side) for side in sides]
    keys = [key for key in values[0] if all(key in side for side in values)]
    first, device = sides[0], sides[0].environment.get("device")
    steady = [key for key in keys if not why_advisory(median(first.cells[key].medians_us().values()), device, first.cells[key])]
    return estimate([[_by_sitting(of[key], side) for of, side in zip(values, sides, strict=True)] for key in steady or keys])


def process_values(runs: RunSamples) -> dict[CellKey, dict[int, float]]:
    """For each cell and process: the log of its median, less the change of copy. Outlying processes are left out."""
    changes = _copy_changes(runs, runs)[0]
    measured = {key: samples for key, samples in runs.cells.items() if key.backend != YARDSTICK and samples.status == "ok"}
    return {key: _without_outlying(_normalised(samples, changes)) for key, samples in measured.items()}


def _by_sitting(values: Mapping[int, float], runs: RunSamples) -> list[list[float]]:
    """A cell's values for each sitting of the runs."""
    return [[values[process] for process in sitting.processes if process in values] for sitting in runs.by_sitting]


def groups_of(values: Mapping[int, float], runs: RunSamples) -> list[list[float]]:
    """The values that differ as processes of one sitting do. With a process for each sitting they are one group."""
    groups = _by_sitting(values, runs)
    return groups if any(len(group) > 1 for group in groups) else [list(values.values())]


def machine_change(new: RunSamples, base: RunSamples) -> float:
    """The log change of the machine since the baseline."""
    return _machine_change(_copy_changes(new, base))


def _machine_change(copy_changes: Sequence[Mapping[int, float]]) -> float:
    """The log change of the machine: copy over all cases, new over baseline."""
    new, base = (median(changes.values()) if changes else 0.0 for changes in copy_changes)
    return new - base


def _machine_note(machine: float, rules: Rules) -> tuple[str, ...]:
    if abs(machine) < SAME_CHANGE:
        return ()
    change = f"the machine changed: copy is {_changed(machine)} over all cases"
    if abs(machine) > math.log1p(rules.reference_moves):
        return (f"{change}; that is too much to be subtracted where it decides the verdict",)
    return (f"{change}; this is subtracted from all cells, and a change of softbench or of all kernels alike looks the same",)


def add_sitting(base: RunSamples, name: str) -> str:
    """The commands that add a sitting to a saved baseline."""
    hours = f"{SITTING_S / 3600:.0f} hours"
    measure = base.more_processes(MIN_BASE)
    given = command_line.options(command_line.words(measure), ("-o", "--output"))
    latest = Path(given[-1].removeprefix("--output=") if given else "results") / "latest.csv"
    save = f"softbench baseline save {name} {shlex.quote(str(latest))} --name {name} --force"
    return f"measure the same code after {hours} or more, best on another day: {measure} && {save}"


def require_base(base: RunSamples) -> None:
    """Raise InconclusiveError if the baseline has too few processes."""
    if base.processes < MIN_BASE:
        raise InconclusiveError(
            f"{base.source}: a baseline needs {MIN_BASE} processes ({RECOMMENDED_BASE} recommended), it has {base.processes}; "
            f"measure it with: {base.more_processes(RECOMMENDED_BASE)}"
        )


def _require_processes(new: RunSamples, base: RunSamples) -> None:
    require_base(base)
    if new.processes < MIN_NEW:
        raise InconclusiveError(
            f"{new.source}: a comparison with a baseline needs {MIN_NEW} processes, it has {new.processes}; "
            f"measure with: {new.more_processes(MIN_NEW)}"
        )


def _changed(log_change: float) -> str:
    """A log change of latencies in words: `3.0% slower`."""
    return f"{abs(math.expm1(log_change)):.1%} {'slower' if log_change > 0 else 'faster'}"


class _Cell:
    """One cell's values on both sides, or why it cannot be judged."""

    def __init__(self, key: CellKey, both: tuple[RunSamples, RunSamples], copy_changes: Sequence[Mapping[int, float]]) -> None:
        """`both` are the new runs and the baseline; `copy_changes` has the change of copy in each process, for each of the two."""
        self.key = key
        copies = [side.cells.get(yardstick(key)) for side in both]
        sides = [side.cells[key] for side in both]
        medians = [side.medians_us() for side in sides]
        normalised = [_normalised(side, changes) for side, changes in zip(sides, copy_changes, strict=True)]
        self.processes = len(normalised[1]), len(normalised[0])
        kept = [_without_outlying(values) for values in normalised]
        self.new_values, self.base_values = (list(values.values()) for values in kept)
        self.groups = [group for values, side in zip(kept, both, strict=True) for group in groups_of(values, side)]
        self.left_out = sum(map(len, normalised)) - sum(map(len, kept))
        self.us = median(medians[1].values())
        self.raw_ratio = median(medians[0].values()) / self.us
        self.copy_change = _copy_change(copies[0], copies[1])
        raw = [fmean(math.log(us[process]) for process in values) if values else 0.0 for us, values in zip(medians, kept, strict=True)]
        self.raw_log_ratio = raw[0] - raw[1]
        self.why_ambiguous = self._why_untestable()
        self.advisory = advisory_reason(self.us, both[0].environment.get("device"), sides[1], self.raw_ratio)

    def _why_untestable(self) -> str:
        if self.copy_change is None:
            return "copy was not measured by one timer on this case on both sides, so a change of the machine is unknown"
        if self.processes[0] < MIN_BASE or self.processes[1] < MIN_NEW:
            return f"only {self.processes[0]} processes of the baseline and {self.processes[1]} new processes have this cell"
        return "" if all(map(math.isfinite, [*self.base_values, *self.new_values, self.copy_change])) else "a value is not a finite number"

    def _why_copy_forbids(self, log_ratio: float, copy_change: float, rules: Rules) -> str:
        """Why the change of copy forbids a decision; empty if it does not.

        It forbids nothing if the cell is beyond the margin whichever change is subtracted.
        """
        limit, raw = math.log1p(rules.margin), self.raw_log_ratio
        machine, by_own_copy = raw - log_ratio, raw - copy_change
        slower = log_ratio > limit
        if abs(machine) > math.log1p(rules.reference_moves) and (raw > limit) != slower:
            return f"copy is {_changed(machine)} over all cases, too much to be subtracted"
        hidden = not slower and min(raw, by_own_copy) > limit
        if abs(copy_change - machine) > SAME_CHANGE and (hidden or (slower and by_own_copy <= limit)):
            changes = f"copy is {_changed(copy_change)} in this case and {_changed(machine)} over all cases"
            return f"{changes}; with the first subtracted, new/old is {math.exp(by_own_copy):.3f}"
        return ""

    @property
    def log_ratio(self) -> float:
        """The log of the ratio, without the change of copy."""
        return fmean(self.new_values) - fmean(self.base_values)

    @property
    def spread(self) -> bool:
        """True if the processes of a side differ."""
        return len(set(self.base_values)) > 1 or len(set(self.new_values)) > 1

    def cell_test(self, spread: Moderated | None, between: _Between, rules: Rules) -> CellTest:
        """The cell's two tests. Without a spread the cell is ambiguous."""
        left_out = f", {self.left_out} outlying left out" if self.left_out and not self.why_ambiguous else ""
        n = f"{len(self.base_values)}+{len(self.new_values)} processes{left_out}"
        verdict = Verdict(self.key, State.AMBIGUOUS, self.advisory, n=n, raw_ratio=self.raw_ratio, gated=not self.advisory)
        if spread is None or self.copy_change is None:
            return CellTest(verdict, why_ambiguous=self.why_ambiguous)
        log_ratio, limit = self.log_ratio, math.log1p(rules.margin)
        factor = 1 / len(self.new_values) + 1 / len(self.base_values)
        processes = Part(spread.process_sd**2, spread.process_sd**2, spread.df).times(factor)
        low, high = between.interval(log_ratio, processes, limit)
        verdict = replace(
            verdict,
            ratio=math.exp(log_ratio),
            interval=(math.exp(low), math.exp(high)),
            covers=between.covers,
            margin=rules.margin,
        )
        slower_p, faster_p = (between.p(log_ratio, processes, limit, sign) for sign in (1, -1))
        return CellTest(verdict, slower_p, faster_p, self._why_copy_forbids(log_ratio, self.copy_change, rules))


class _Between(NamedTuple):
    """The part of the sittings in the error of every cell."""

    sittings: Sittings
    """What the interval of a cell covers."""
    most: Sittings
    """What is no regression: the same, or more if no sitting shows it."""
    factor: float
    """The variance of a ratio over that of a sitting."""
    common: float | None
    """The log change of the median cell, if all cells share most of a sitting's shift."""
    looks: float
    """The cells of both looks over those that are tested. The second look has the sitting's shift for which the first one picked them."""
    how: str
    """`, assumed` if the sittings do not show the standard deviation."""

    @classmethod
    def of(cls, new: RunSamples, base: RunSamples, log_ratios: Sequence[float], sittings: Sittings | None, looks: float) -> _Between:
        """`sittings` is what the sittings show, if they show it."""
        sides = new.by_sitting, base.by_sitting
        several = max(map(len, sides)) > 1
        at_once = not several and None not in (sides[0][0].times, sides[1][0].times) and sides[0][0].near(sides[1][0])
        known = sittings or assumed(ASSUMED_SD)
        most = known if sittings or at_once else assumed(MOST_SD)
        shared = sittings and sittings.common.variance > sittings.cell.variance and len(log_ratios) >= MIN_CELLS
        common = median(log_ratios) if shared else None
        return cls(known, most, 1 / len(sides[0]) + 1 / len(sides[1]), common, looks, "" if sittings else ", assumed")

    @property
    def covers(self) -> str:
        """What the interval of a cell covers."""
        return f"differences between processes and between sittings (standard deviation {self.sittings.sd:.1%}{self.how})"

    def notes(self) -> list[str]:
        """What is assumed if no sitting shows how sittings differ."""
        if self.most is self.sittings:
            return []
        return [
            f"{NO_SECOND_SITTING}: intervals assume a standard deviation of {self.sittings.sd:.1%} between "
            f"sittings, and no cell is called slower that one of {self.most.sd:.1%} explains"
        ]

    def interval(self, log_ratio: float, processes: Part, limit: float) -> tuple[float, float]:
        """The 95 % interval of a log ratio. If it is not within the margin, it covers the most that sittings may differ by."""
        for sittings in (self.sittings, self.most):
            error, df = self._error(processes, sittings)
            half = t_quantile(0.975, df) * error
            if abs(log_ratio) + half <= limit:
                break
        return log_ratio - half, log_ratio + half

    def p(self, log_ratio: float, processes: Part, limit: float, sign: int) -> float:
        """The p value of a cell that is slower (sign 1) or faster (-1): the larger one of both tests."""
        sd = min(self.sittings.sd, ASSUMED_SD)
        error = math.sqrt(processes.variance + sd**2 * self.factor)
        beyond = t_upper((sign * log_ratio - limit) / error, processes.df)
        error, df = self._error(processes, self.most)
        by_sittings = t_upper(sign * log_ratio / error, df)
        if self.common is not None:
            error, df = error_of(processes, self.most.cell.times(self.factor))
            by_sittings = min(1.0, 2 * min(by_sittings, t_upper(sign * (log_ratio - self.common) / error, df)))
        return max(beyond, min(1.0, self.looks * by_sittings))

    def _error(self, processes: Part, sittings: Sittings) -> tuple[float, float]:
        return error_of(processes, sittings.cell.times(self.factor), sittings.common.times(self.factor))


def _copy_changes(new: RunSamples, base: RunSamples) -> tuple[dict[int, float], dict[int, float]]:
    """For each side and process: the median over copy's cells of log(latency / baseline's latency).

    Only cells of both sides count. Advisory cells scatter more, so they count only if there are no others.
    """
    both = {key: (samples, base.cells[key]) for key, samples in new.cells.items() if key.backend == YARDSTICK and key in base.cells}
    measured = {key: sides for key, sides in both.items() if all(side.status == "ok" and side.processes for side in sides)}
    testable = {key: sides for key, sides in measured.items() if one_timer(*sides)}
    base_medians = {key: median(sides[1].medians_us().values()) for key, sides in testable.items()}
    device = new.environment.get("device")
    steady = {key: sides for key, sides in testable.items() if not why_advisory(base_medians[key], device, sides[1])}
    changes: tuple[dict[int, list[float]], dict[int, list[float]]] = ({}, {})
    for key, sides in (steady or testable).items():
        for samples, values in zip(sides, changes, strict=True):
            for process, us in samples.medians_us().items():
                values.setdefault(process, []).append(math.log(us / base_medians[key]))
    of_new, of_base = ({process: median(values) for process, values in side.items()} for side in changes)
    return of_new, of_base


def _normalised(samples: CellSamples, copy_changes: Mapping[int, float]) -> dict[int, float]:
    """log(median) of each process less the change of copy in that process; processes without copy are left out."""
    return {process: math.log(us) - copy_changes[process] for process, us in samples.medians_us().items() if process in copy_changes}


def _without_outlying(values: Mapping[int, float]) -> dict[int, float]:
    """The values by process without the outlying ones."""
    dropped = outlying(list(values.values()))
    return {process: value for i, (process, value) in enumerate(values.items()) if i not in dropped}


def _copy_change(new: CellSamples | None, base: CellSamples | None) -> float | None:
    """The log of copy's new latency over its latency in the baseline; None if a side lacks it."""
    if not (new and base and new.status == base.status == "ok" and one_timer(new, base)):
        return None
    return math.log(median(new.medians_us().values()) / median(base.medians_us().values()))
