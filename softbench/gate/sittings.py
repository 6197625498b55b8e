"""How much unchanged code differs between sittings.

The processes of a sitting (`samples.Sitting`) share temperature, clocks and the load of that time, so a cell has a shift in each sitting. A
part of the shift is common to all cells. It counts as one value for each sitting, however many cells show it. The rest differs from cell to
cell, and all cells together show how much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from softbench.gate.inference import within

ASSUMED_SD = 0.003
"""The assumed standard deviation between sittings that no sitting shows: as much as between processes of a quiet GPU."""
MOST_SD = 0.045
"""The standard deviation that sittings may have if no sitting shows it: a slowdown that it explains is no regression."""
SD_FLOOR = 0.001  # the least standard deviation between sittings that two sittings show
MIN_CELLS = 5
"""Fewer cells do not show which part of a shift is common. Then all of it counts as common."""
MEDIAN_VARIANCE = math.pi / 2
"""The variance of a median, over that of a mean."""

Cell = Sequence[Sequence[Sequence[float]]]
"""The values of a cell: for each side (baseline, new) and each sitting those of the processes."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a variance: its estimate, and the mean square with the degrees of freedom that it was computed from."""

    variance: float
    mean_square: float
    df: float

    def times(self, factor: float) -> Part:
        """This part in a mean of values, or a difference of means."""
        return Part(self.variance * factor, self.mean_square * factor, self.df)


@dataclass(frozen=True, slots=True)
class Sittings:
    """The variance of a cell's log latency between sittings."""

    cell: Part
    """What differs from cell to cell."""
    common: Part
    """What all cells share."""

    @property
    def sd(self) -> float:
        """The standard deviation between sittings; a fraction."""
        return math.sqrt(self.cell.variance + self.common.variance)


def assumed(sd: float) -> Sittings:
    """An assumed standard deviation."""
    return Sittings(Part(sd**2, sd**2, math.inf), Part(0.0, 0.0, math.inf))


def error_of(*parts: Part) -> tuple[float, float]:
    """The standard error of the sum of independent parts, and its degrees of freedom (Satterthwaite 1946)."""
    total = sum(part.variance for part in parts)
    spread = sum(part.mean_square**2 / part.df for part in parts if part.mean_square)
    return math.sqrt(total), max(1.0, total**2 / spread) if spread else math.inf


def estimate(cells: Sequence[Cell]) -> Sittings | None:
    """How much the sittings of a side differ; None if no cell has two sittings on a side."""
    sides = [_Side(usable) for side in zip(*cells, strict=True) if (usable := _usable(side))]
    if not sides:
        return None
    own, common = _pooled([side.cell() for side in sides]), _pooled([side.common() for side in sides])
    return Sittings(Part(max(own.variance, SD_FLOOR**2), own.mean_square, own.df), common)


def _usable(side: Sequence[Sequence[Sequence[float]]]) -> list[Sequence[Sequence[float]]]:
    """The cells that have values in every sitting."""
    return [groups for groups in side if len(groups) > 1 and all(groups)]


def _pooled(parts: Sequence[Part]) -> Part:
    """The mean of the parts, weighted by their degrees of freedom."""
    df = sum(part.df for part in parts)
    variance_, mean_square = (sum(getattr(part, name) * part.df for part in parts) / (df or 1) for name in ("variance", "mean_square"))
    return Part(variance_, mean_square, df)


class _Side:
    """The sittings of one side: a two-way table of cells and sittings."""

    def __init__(self, cells: Sequence[Sequence[Sequence[float]]]) -> None:
        self.count, self.sittings = len(cells), len(cells[0])
        means = [[fmean(values) for values in groups] for groups in cells]
        deviations = [[each - fmean(row) for each in row] for row in means]
        self.shifts = [median(column) for column in zip(*deviations, strict=True)]
        self.squares = sum((each - shift) ** 2 for row in deviations for each, shift in zip(row, self.shifts, strict=True))
        self.all_squares = sum(each**2 for row in deviations for each in row)
        self.processes = fmean(within(groups)[0] * fmean(1 / len(values) for values in groups) for groups in cells)
        """The part of the processes in the variance of a cell's mean in a sitting; 0 if none has two, and then all is between sittings."""

    def cell(self) -> Part:
        if self.count < MIN_CELLS:
            return Part(0.0, 0.0, 0.0)
        df = (self.sittings - 1) * (self.count - 1)
        return Part(max(0.0, self.squares / df - self.processes), self.squares / df, df)

    def common(self) -> Part:
        df = self.sittings - 1
        if self.count < MIN_CELLS:
            mean_square = self.all_squares / (self.count * df)
            return Part(max(0.0, mean_square - self.processes), mean_square, df)
        mean_square = sum(shift**2 for shift in self.shifts) / df
        by_cells = MEDIAN_VARIANCE * self.cell().mean_square / self.count
        return Part(max(0.0, mean_square - by_cells), mean_square, df)
