"""The unpaired comparison: new processes against a baseline, cell by cell, with a one-sided moderated t test on log process medians.

A process counts as one value. Its rounds share addresses, clocks and warm-up, so they say nothing about the next process. A rank test
is too weak: with 10 and 3 values its smallest p is 0.0035, and 300 cells need 1.7e-4. The standard error has a term for the sitting, as the
new processes ran at another time than the baseline's. One outlying process of ten is left out.

The change of copy in the same process, its median over all cases, is subtracted from each value: it is the change of the machine.
The change of the backends is never subtracted, as that would hide a slowdown of all of them. A case's own copy is not subtracted
either: at some lengths it has two speeds on an H200, depending on the process. The cell is ambiguous if its own copy slowed down
alike, or if only other copies slowed down. It is also ambiguous if all copies changed by more than 5 % and that decides the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, median

from softbench.core.case import YARDSTICK
from softbench.core.errors import InconclusiveError
from softbench.gate.inference import (
    PROCESS_SD_FLOOR,
    Moderated,
    between_groups_sd,
    moderate,
    outlying,
    t_quantile,
    t_upper,
)
from softbench.gate.samples import CellKey, CellSamples, RunSamples, yardstick
from softbench.gate.verdicts import (
    CellTest,
    GateReport,
    Rules,
    State,
    Verdict,
    advisory_reason,
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
SAME_CHANGE = 0.01
"""A case's own copy and all copies changed alike if their log changes differ by at most this. A larger change of the machine is noted."""
SITTING_SD = 0.003
"""The assumed standard deviation between sittings if the baseline has one sitting: as much as between processes of a quiet GPU."""


def compare(
    new: RunSamples, base: RunSamples, rules: Rules, notes: tuple[str, ...] = (), only: Collection[CellKey] | None = None
) -> GateReport:
    """Judge every cell of either side. `softbench.gate.environment_match` checks that the two may be compared.

    With `only`, the verdicts of other cells are left out. Their processes still count for the spread.

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
    spreads = dict(zip((cell.key for cell in testable), moderate([(cell.base_values, cell.new_values) for cell in testable]), strict=True))
    sitting_error = sitting_sd(base) * math.sqrt(1 / len(new.by_sitting) + 1 / len(base.by_sitting))
    judged = [cell for key, cell in cells.items() if only is None or key in only]
    tests = [cell.cell_test(spreads.get(cell.key), sitting_error, rules) for cell in judged]
    listed = [*(verdict for verdict in verdicts if only is None or verdict.cell in only), *corrected(tests, rules)]
    notes = (*notes, *_machine_note(_machine_change(copy_changes), rules))
    return GateReport(f"{new.source} against {base.source}", ranked(listed), rules, notes)


def sitting_sd(base: RunSamples) -> float:
    """The standard deviation between sittings: the baseline's own, or an assumed one if it has one sitting."""
    own = sitting_sd_of(base)
    return SITTING_SD if own is None else max(own, PROCESS_SD_FLOOR)


def process_values(runs: RunSamples) -> dict[CellKey, dict[int, float]]:
    """For each cell and process: the log of its median, less the change of copy. Outlying processes are left out."""
    changes = _copy_changes(runs, runs)[0]
    measured = {key: samples for key, samples in runs.cells.items() if key.backend != YARDSTICK and samples.status == "ok"}
    return {key: _without_outlying(_normalised(samples, changes)) for key, samples in measured.items()}


def sitting_sd_of(runs: RunSamples) -> float | None:
    """The standard deviation between the sittings of runs, over all cells; None if they do not show it."""
    if len(runs.by_sitting) < 2:
        return None
    cells = process_values(runs).values()
    return between_groups_sd([[kept[process] for process in sitting if process in kept] for sitting in runs.by_sitting] for kept in cells)


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
    def spread(self) -> bool:
        """True if the processes of a side differ."""
        return len(set(self.base_values)) > 1 or len(set(self.new_values)) > 1

    def cell_test(self, spread: Moderated | None, sitting_error: float, rules: Rules) -> CellTest:
        """The cell's moderated t test. Without a spread the cell is ambiguous. `sitting_error` is the standard error of the sittings."""
        left_out = f", {self.left_out} outlying left out" if self.left_out and not self.why_ambiguous else ""
        n = f"{len(self.base_values)}+{len(self.new_values)} processes{left_out}"
        verdict = Verdict(self.key, State.AMBIGUOUS, self.advisory, n=n, raw_ratio=self.raw_ratio, gated=not self.advisory)
        if spread is None or self.copy_change is None:
            return CellTest(verdict, why_ambiguous=self.why_ambiguous)
        log_ratio = fmean(self.new_values) - fmean(self.base_values)
        error = math.hypot(spread.process_sd * math.sqrt(1 / len(self.new_values) + 1 / len(self.base_values)), sitting_error)
        half_width = t_quantile(0.975, spread.df) * error
        limit = math.log1p(rules.margin)
        verdict = Verdict(
            **{name: getattr(verdict, name) for name in ("cell", "state", "reason", "n", "raw_ratio", "gated")},
            ratio=math.exp(log_ratio),
            interval=(math.exp(log_ratio - half_width), math.exp(log_ratio + half_width)),
            covers="differences between processes and between sittings",
            margin=rules.margin,
        )
        why_ambiguous = self._why_copy_forbids(log_ratio, self.copy_change, rules)
        return CellTest(
            verdict, t_upper((log_ratio - limit) / error, spread.df), t_upper((-log_ratio - limit) / error, spread.df), why_ambiguous
        )


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
