"""The unpaired comparison: new processes against a baseline, cell by cell, with a one-sided moderated t test on log process medians.

A process counts as one value. Its rounds share addresses, clocks and warm-up, so they say nothing about the next process. A rank test
is too weak: with 10 and 3 values its smallest p is 0.0035, and 300 cells need 1.7e-4.

The change of copy in the same process, its median over all cases, is subtracted from each value: it is the change of the machine.
The change of the backends is never subtracted, as that would hide a slowdown of all of them. A case's own copy is not subtracted
either: at some lengths it has two speeds on an H200, depending on the process. The cell is ambiguous if its own copy slowed down
alike, or if only other copies slowed down. It is also ambiguous if all copies changed by more than 5 % and that decides the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from softbench.core.case import YARDSTICK
from softbench.core.errors import InconclusiveError
from softbench.gate.inference import Moderated, moderate, t_quantile, t_upper
from softbench.gate.samples import CellKey, CellSamples, RunSamples, yardstick
from softbench.gate.verdicts import (
    CellTest,
    GateReport,
    Rules,
    State,
    Verdict,
    advisory_reason,
    corrected,
    finite,
    launch_bound,
    ranked,
    unmeasured,
)

MIN_BASE = 5
RECOMMENDED_BASE = 10
MIN_NEW = 3
MARGIN = 0.05
SAME_CHANGE = 0.01
"""A case's own copy and all copies changed alike if their log changes differ by at most this."""


def judge(new: RunSamples, base: RunSamples, rules: Rules, notes: tuple[str, ...] = ()) -> GateReport:
    """Judge every cell of either side. `softbench.gate.environment_match` checks that the two may be compared.

    Raises:
        InconclusiveError: one side has too few processes (the message names the command that measures more), or no cell has a spread.
    """
    _require_processes(new, base)
    verdicts, cells = [], {}
    copy_changes = _copy_changes(new, base)
    for key in dict.fromkeys([*base.cells, *new.cells]):
        if verdict := unmeasured(key, new.cells.get(key), base.cells.get(key), "the baseline"):
            verdicts.append(verdict)
        elif key.backend != YARDSTICK and all((samples := side.cells.get(key)) and samples.status == "ok" for side in (new, base)):
            cells[key] = _Cell(key, (new, base), copy_changes)
    testable = [cell for cell in cells.values() if not cell.why_ambiguous]
    if testable and all(not cell.spread for cell in testable):
        raise InconclusiveError(
            f"{base.source} and {new.source}: no cell has a spread between processes, so the noise is unknown; "
            f"measure again with: {base.more_processes(RECOMMENDED_BASE)}"
        )
    spreads = moderate([(cell.base_values, cell.new_values) for cell in testable])
    tests = [cell.cell_test(spread, rules) for cell, spread in zip(testable, spreads, strict=True)]
    tests += [cell.cell_test(None, rules) for cell in cells.values() if cell.why_ambiguous]
    return GateReport(f"{new.source} against {base.source}", ranked([*verdicts, *corrected(tests, rules)]), rules, notes)


def _require_processes(new: RunSamples, base: RunSamples) -> None:
    if base.processes < MIN_BASE:
        raise InconclusiveError(
            f"{base.source}: a baseline needs {MIN_BASE} processes ({RECOMMENDED_BASE} recommended), it has {base.processes}; "
            f"measure it with: {base.more_processes(RECOMMENDED_BASE)}"
        )
    if new.processes < MIN_NEW:
        raise InconclusiveError(
            f"{new.source}: a comparison with a baseline needs {MIN_NEW} processes, it has {new.processes}; "
            f"measure with: {new.more_processes(MIN_NEW)}"
        )


class _Cell:
    """One cell's values on both sides, or why it cannot be judged."""

    def __init__(self, key: CellKey, both: tuple[RunSamples, RunSamples], copy_changes: Sequence[Mapping[int, float]]) -> None:
        """`both` are the new runs and the baseline; `copy_changes` has the change of copy in each process, for each of the two."""
        self.key = key
        copies = [side.cells.get(yardstick(key)) for side in both]
        sides = [side.cells[key] for side in both]
        self.new_values, self.base_values = (_normalised(side, changes) for side, changes in zip(sides, copy_changes, strict=True))
        raw = [list(side.medians_us().values()) for side in sides]
        self.us = median(raw[1])
        self.raw_ratio = median(raw[0]) / median(raw[1])
        self.copy_change = _copy_change(copies[0], copies[1])
        self.raw_log_ratio = fmean(map(math.log, raw[0])) - fmean(map(math.log, raw[1])) if all(raw) else 0.0
        self.why_ambiguous = self._why_untestable()
        self.advisory = advisory_reason(self.us, both[0].environment.get("device"), sides[1], self.raw_ratio)

    def _why_untestable(self) -> str:
        if self.copy_change is None:
            return "copy was not measured on this case on both sides, so a change of the machine is unknown"
        if len(self.base_values) < MIN_BASE or len(self.new_values) < MIN_NEW:
            return f"only {len(self.base_values)} processes of the baseline and {len(self.new_values)} new processes have this cell"
        return "" if finite([*self.base_values, *self.new_values, self.copy_change]) else "a value is not a finite number"

    def _why_copy_forbids(self, log_ratio: float, copy_change: float, rules: Rules) -> str:
        """Why the change of copy forbids a decision; empty if it does not.

        It forbids nothing if the cell is beyond the margin whichever change is subtracted.
        """
        limit, raw = math.log1p(rules.margin), self.raw_log_ratio
        machine, by_own_copy = raw - log_ratio, raw - copy_change
        slower = log_ratio > limit
        if abs(machine) > math.log1p(rules.reference_moves) and (raw > limit) != slower:
            without = f"new/old is {math.exp(raw):.3f} without that change and {math.exp(log_ratio):.3f} less it"
            return f"copy itself changed by {math.expm1(machine):+.1%} over all cases, too much to be subtracted: {without}"
        hidden = not slower and min(raw, by_own_copy) > limit
        if abs(copy_change - machine) > SAME_CHANGE and (hidden or (slower and by_own_copy <= limit)):
            changes = f"{math.expm1(copy_change):+.1%} in this case and {math.expm1(machine):+.1%} over all cases"
            ratios = f"{math.exp(by_own_copy):.3f} after subtracting the first, {math.exp(log_ratio):.3f} after the second"
            return f"copy changed by {changes}: new/old is {ratios}"
        return ""

    @property
    def spread(self) -> bool:
        """True if the processes of a side differ."""
        return len(set(self.base_values)) > 1 or len(set(self.new_values)) > 1

    def cell_test(self, spread: Moderated | None, rules: Rules) -> CellTest:
        """The cell's moderated t test. Without a spread the cell is ambiguous."""
        n = f"{len(self.base_values)}+{len(self.new_values)} processes"
        verdict = Verdict(self.key, State.AMBIGUOUS, self.advisory, n=n, raw_ratio=self.raw_ratio, gated=not self.advisory)
        if spread is None or self.copy_change is None:
            return CellTest(verdict, why_ambiguous=self.why_ambiguous)
        log_ratio = fmean(self.new_values) - fmean(self.base_values)
        error = spread.process_sd * math.sqrt(1 / len(self.new_values) + 1 / len(self.base_values))
        half_width = t_quantile(0.975, spread.df) * error
        limit = math.log1p(rules.margin)
        verdict = Verdict(
            **{name: getattr(verdict, name) for name in ("cell", "state", "reason", "n", "raw_ratio", "gated")},
            ratio=math.exp(log_ratio),
            interval=(math.exp(log_ratio - half_width), math.exp(log_ratio + half_width)),
            covers="differences between processes",
            margin=rules.margin,
        )
        why_ambiguous = self._why_copy_forbids(log_ratio, self.copy_change, rules)
        return CellTest(
            verdict, t_upper((log_ratio - limit) / error, spread.df), t_upper((-log_ratio - limit) / error, spread.df), why_ambiguous
        )


def _copy_changes(new: RunSamples, base: RunSamples) -> tuple[dict[int, float], dict[int, float]]:
    """For each side and process: the median over copy's cells of log(latency / baseline's latency).

    Only cells of both sides count. Launch-bound cells change with the host, so they count only if there are no others.
    """
    both = {key: (samples, base.cells[key]) for key, samples in new.cells.items() if key.backend == YARDSTICK and key in base.cells}
    testable = {key: sides for key, sides in both.items() if all(side.status == "ok" and side.processes for side in sides)}
    base_medians = {key: median(sides[1].medians_us().values()) for key, sides in testable.items()}
    device = new.environment.get("device")
    not_launch_bound = {key: sides for key, sides in testable.items() if not launch_bound(base_medians[key], device, sides[1])}
    changes: tuple[dict[int, list[float]], dict[int, list[float]]] = ({}, {})
    for key, sides in (not_launch_bound or testable).items():
        for samples, values in zip(sides, changes, strict=True):
            for process, us in samples.medians_us().items():
                values.setdefault(process, []).append(math.log(us / base_medians[key]))
    of_new, of_base = ({process: median(values) for process, values in side.items()} for side in changes)
    return of_new, of_base


def _normalised(samples: CellSamples, copy_changes: Mapping[int, float]) -> list[float]:
    """log(median) of each process less the change of copy in that process; processes without copy are left out."""
    return [math.log(us) - copy_changes[process] for process, us in samples.medians_us().items() if process in copy_changes]


def _copy_change(new: CellSamples | None, base: CellSamples | None) -> float | None:
    """The log of copy's new latency over its latency in the baseline; None if a side lacks it."""
    if not (new and base and new.status == "ok" and base.status == "ok"):
        return None
    return math.log(median(new.medians_us().values()) / median(base.medians_us().values()))
