"""The unpaired comparison: new processes against a baseline, cell by cell, with a one-sided moderated t test on log process medians.

A process counts as one value. Its rounds share addresses, clocks and warm-up, so they say nothing about the next process. A rank test
is too weak: with 10 and 3 values its smallest p is 0.0035, and 300 cells need 1.7e-4.

The change of copy in the same process, its median over all cases, is subtracted from each value: it moved the whole machine. The
change of the backends is never subtracted, as that would hide a slowdown of all. A case's own copy is not subtracted either: at some
lengths it has two speeds on an H200, depending on the process. It is a guard: the cell is ambiguous if its copy moved by a
few percent. The cell is also ambiguous if subtracting the copy's change would put it on the other side of the margin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from softbench.core.case import YARDSTICK
from softbench.core.errors import InconclusiveError
from softbench.gate.inference import Moderated, moderate, t_quantile, t_upper
from softbench.gate.samples import CellKey, CellSamples, RunSamples, yardstick
from softbench.gate.verdicts import CellTest, GateReport, Rules, State, Verdict, corrected, finite, launch_bound, ranked, unmeasured

MIN_BASE = 5
RECOMMENDED_BASE = 10
MIN_NEW = 3
MARGIN = 0.05
SAME_MOVE = 0.01
"""Largest log difference at which the change of a case's own copy equals that of all copies."""


def judge(new: RunSamples, base: RunSamples, rules: Rules, notes: tuple[str, ...] = ()) -> GateReport:
    """Judge every cell of either side. `softbench.gate.environment_match` checks that the two may be compared.

    Raises:
        InconclusiveError: one side has too few processes (the message names the command that measures more), or no cell has a spread.
    """
    _enough(new, base)
    verdicts, cells = [], {}
    moves = _moves(new, base)
    for key in dict.fromkeys([*base.cells, *new.cells]):
        if found := unmeasured(key, new.cells.get(key), base.cells.get(key), "the baseline"):
            verdicts.append(found)
        elif key.backend != YARDSTICK and all((some := side.cells.get(key)) and some.status == "ok" for side in (new, base)):
            cells[key] = _Cell(key, (new, base), moves)
    able = [cell for cell in cells.values() if not cell.doubt]
    if able and all(not cell.spread for cell in able):
        raise InconclusiveError(
            f"{base.source} and {new.source}: no spread between processes is recorded in any cell, so no noise is known; "
            f"measure again with: {base.more_processes(RECOMMENDED_BASE)}"
        )
    spreads = moderate([(cell.old, cell.now) for cell in able])
    tests = [cell.trial(spread, rules) for cell, spread in zip(able, spreads, strict=True)]
    tests += [cell.trial(None, rules) for cell in cells.values() if cell.doubt]
    return GateReport(f"{new.source} against {base.source}", ranked([*verdicts, *corrected(tests, rules)]), rules, notes)


def _enough(new: RunSamples, base: RunSamples) -> None:
    if base.processes < MIN_BASE:
        raise InconclusiveError(
            f"{base.source}: a baseline needs {MIN_BASE} processes ({RECOMMENDED_BASE} recommended), it has {base.processes}; "
            f"measure it with: {base.more_processes(RECOMMENDED_BASE)}"
        )
    if new.processes < MIN_NEW:
        raise InconclusiveError(
            f"{new.source}: {MIN_NEW} processes are the least to compare with a baseline, it has {new.processes}; "
            f"measure with: {new.more_processes(MIN_NEW)}"
        )


class _Cell:
    """One cell's values on both sides, or why it cannot be judged."""

    def __init__(self, key: CellKey, both: tuple[RunSamples, RunSamples], moves: Sequence[Mapping[int, float]]) -> None:
        """`both` are the new runs and the baseline; `moves` are the changes of copy in each process of each."""
        self.key = key
        copies = [side.cells.get(yardstick(key)) for side in both]
        sides = [side.cells[key] for side in both]
        self.now, self.old = (_normalised(side, moved) for side, moved in zip(sides, moves, strict=True))
        raw = [list(side.medians_us().values()) for side in sides]
        self.us = median(raw[1])
        self.raw_ratio = median(raw[0]) / median(raw[1])
        self.moved = _moved(copies[0], copies[1])
        self.raw_shift = fmean(map(math.log, raw[0])) - fmean(map(math.log, raw[1])) if all(raw) else 0.0
        self.doubt = self._doubt()
        self.advisory = launch_bound(self.us, both[0].environment.get("device"), sides)

    def _doubt(self) -> str:
        if self.moved is None:
            return "copy was not measured beside it in both: nothing tells whether the machine moved in this case"
        if len(self.old) < MIN_BASE or len(self.now) < MIN_NEW:
            return f"only {len(self.old)} processes of the baseline and {len(self.now)} new ones have it"
        return "" if finite([*self.old, *self.now, self.moved]) else "its values are no numbers"

    def _guarded(self, shift: float, moved: float, rules: Rules) -> str:
        """Why the change of the case's own copy forbids a decision; empty if it does not."""
        if abs(moved) > math.log1p(rules.reference_moves):
            return f"copy itself moved by {math.expm1(moved):+.1%}"
        limit, alone = math.log1p(rules.margin), self.raw_shift - moved
        if (shift > limit) != (alone > limit) and abs(shift - alone) > SAME_MOVE:
            told = f"{math.expm1(moved):+.1%} in this case and {math.expm1(self.raw_shift - shift):+.1%} over all"
            return f"copy moved by {told}: less the one it is {math.exp(alone):.3f}, less the other {math.exp(shift):.3f}"
        return ""

    @property
    def spread(self) -> bool:
        return len(set(self.old)) > 1 or len(set(self.now)) > 1

    def trial(self, spread: Moderated | None, rules: Rules) -> CellTest:
        counted = f"{len(self.old)}+{len(self.now)} processes"
        verdict = Verdict(self.key, State.AMBIGUOUS, self.advisory, n=counted, raw_ratio=self.raw_ratio, gated=not self.advisory)
        if spread is None or self.moved is None:
            return CellTest(verdict, doubt=self.doubt)
        shift = fmean(self.now) - fmean(self.old)
        error = spread.tau * math.sqrt(1 / len(self.now) + 1 / len(self.old))
        reach = t_quantile(0.975, spread.df) * error
        limit = math.log1p(rules.margin)
        verdict = Verdict(
            **{name: getattr(verdict, name) for name in ("cell", "state", "reason", "n", "raw_ratio", "gated")},
            ratio=math.exp(shift),
            interval=(math.exp(shift - reach), math.exp(shift + reach)),
            covers="differences between processes",
            margin=rules.margin,
        )
        doubt = self._guarded(shift, self.moved, rules)
        return CellTest(verdict, t_upper((shift - limit) / error, spread.df), t_upper((-shift - limit) / error, spread.df), doubt)


def _moves(new: RunSamples, base: RunSamples) -> tuple[dict[int, float], dict[int, float]]:
    """For each side and process: the median over copy's cells of log(latency / baseline's latency).

    Only cells that both sides have count. Launch-bound cells, which change with the host, count only without others.
    """
    both = {key: (series, base.cells[key]) for key, series in new.cells.items() if key.backend == YARDSTICK and key in base.cells}
    able = {key: sides for key, sides in both.items() if all(side.status == "ok" and side.processes for side in sides)}
    levels = {key: median(sides[1].medians_us().values()) for key, sides in able.items()}
    device = new.environment.get("device")
    of_device = {key: sides for key, sides in able.items() if not launch_bound(levels[key], device, sides)}
    found: tuple[dict[int, list[float]], dict[int, list[float]]] = ({}, {})
    for key, sides in (of_device or able).items():
        for series, values in zip(sides, found, strict=True):
            for process, us in series.medians_us().items():
                values.setdefault(process, []).append(math.log(us / levels[key]))
    one, other = ({process: median(values) for process, values in side.items()} for side in found)
    return one, other


def _normalised(series: CellSamples, moves: Mapping[int, float]) -> list[float]:
    """log(median) of each process less the change of copy in it; processes without copy are left out."""
    return [math.log(us) - moves[process] for process, us in series.medians_us().items() if process in moves]


def _moved(new: CellSamples | None, base: CellSamples | None) -> float | None:
    """The log of copy's latency now over that of the baseline; None if a side lacks it."""
    if not (new and base and new.status == "ok" and base.status == "ok"):
        return None
    return math.log(median(new.medians_us().values()) / median(base.medians_us().values()))
