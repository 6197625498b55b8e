"""From times to a table: for each kind of rows, boxes of lengths and sizes of launches, with the family that loses least in each.

The boxes have the least sum of what their shapes lose against the fastest family that was timed for them, by dynamic programming. Each
line and each cell costs something too, so that none is made for the noise of one shape. Shapes that were not timed count too, with what the
families lose on the nearest timed ones: otherwise boxes would reach far beyond the few shapes that were timed.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..plans.table import PASSES, VECTOR_BYTES, Cell, Family, Kind, Table
from .shapes import Shape, draw

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

KIB = tuple(2**power for power in range(1, 12))
"""Where a line may be cut: what a launch reads for each SM."""
PER_OCTAVE = 8
"""Lengths at which a kind may be cut, between one and twice as much. Half as many gain less on held-out shapes of an H200."""
CELL_COST = 0.1
"""Of a line, and of a cell: the least sum of relative losses that it must save, so that the noise of one shape makes none.
On held-out shapes of an H200, half as much makes more cells and loses more in the slowest ones; twice as much gains less."""
NEIGHBOURS = 3
"""So many of the nearest shapes say what a family loses on one that was not timed: their mean, since one measurement is noisy.
Up to eight are as good on held-out shapes of an H200; one is not."""
IMAGINED, FIRST_IMAGINED = 3000, 5_000_000
"""So many shapes are drawn that were not timed, from this number on."""
UNFIT = 0.5
"""The loss of a family that makes no plan for a shape, and the most of others: a time that something disturbed shall not decide."""
NOW: Family = ("now",)
"""In place of a family: the cells of the present table."""
SLOW = 0.9
"""Of a copy's speed: cells below it are counted."""


@dataclass(frozen=True)
class Timed:
    """A shape and what was measured: microseconds of a copy, of the plan that is used now, and of each family that makes a plan."""

    shape: Shape
    copy: float
    now: float
    families: dict[Family, float]


def table_of(
    timed: Sequence[Timed], families: Sequence[Family], sms: int, now: Collection[Kind], cell_cost: float = CELL_COST
) -> dict[Kind, list[Cell]]:
    """The cells of each kind that was measured: NOW in boxes in which its plans lose least. `now`: the kinds that have some."""
    kinds = defaultdict(list)
    for one in timed:
        kinds[one.shape.kind].append(one)
    return {kind: _cells(found, [*families, NOW] if kind in now else families, sms, cell_cost) for kind, found in kinds.items()}


def imagined(
    language: str, timed: Sequence[Timed], sms: int, now: dict[Kind, tuple[Cell, ...]], makes: Callable[[Shape], Mapping[Family, int]]
) -> list[Timed]:
    """Shapes that were not timed, with the means of what the families that make a plan lose around them, as times.

    A family's plans with other threads count as another family's. What the plans of `now` lose is that of shapes whose cells have the same
    family: its next cell may have a plan of another kind. `makes`: the families that make a plan, and its threads.
    """
    import numpy as np

    table = Table("", now)

    def kept(shape: Shape) -> Family:
        return *NOW, *next(table.ranked(shape.kind, shape.row_bytes, shape.kib_per_sm(sms)), ())

    places, made = np.array([_place(one.shape, sms) for one in timed]), []
    for one in timed:
        plans = {plan: plan[0] for plan in makes(one.shape).items()}
        made.append({**plans, (kept(one.shape), 0): NOW})
    number = {plan: at for at, plan in enumerate(dict.fromkeys(itertools.chain(*made)))}
    lost = np.array([_lost(one, [plans.get(plan, ()) for plan in number]) for one, plans in zip(timed, made, strict=True)])
    found = []
    for shape in (draw(at, language) for at in range(FIRST_IMAGINED, FIRST_IMAGINED + IMAGINED)):
        nearest, cell = np.square(places - _place(shape, sms)).sum(1).argsort(kind="stable"), (kept(shape), 0)
        times = {}
        for plan in number.keys() & {*makes(shape).items(), cell}:
            losses = lost[nearest, number[plan]]
            if (near := losses[~np.isnan(losses)][:NEIGHBOURS]).size:
                times[plan] = math.exp(near.mean())
        before = times.pop(cell, 1.0)
        if times:
            found.append(Timed(shape, 1.0, before, {family: time for (family, _), time in times.items()}))
    return found


def _place(shape: Shape, sms: int) -> tuple[float, ...]:
    """Its coordinates: another element size, another alignment and the next pass are as far as twice the length or the KiB."""
    of_kind = math.log2(shape.size), shape.kind[2] == VECTOR_BYTES, PASSES.index(shape.which)
    return math.log2(shape.row_bytes), math.log2(shape.kib_per_sm(sms)), *map(float, of_kind)


def _lost(one: Timed, families: Sequence[Family]) -> Array:
    """The logarithm of each family's time over that of the fastest, at most UNFIT, and nan if it makes no plan."""
    import numpy as np

    times = {**one.families, NOW: one.now}
    best = min(times.values())
    return np.minimum(UNFIT, np.array([math.log(times[family] / best) if family in times else math.nan for family in families]))


def _cells(timed: Sequence[Timed], families: Sequence[Family], sms: int, cost: float) -> list[Cell]:
    import numpy as np

    each = (2 ** (math.ceil(PER_OCTAVE * math.log2(one.shape.row_bytes)) / PER_OCTAVE) for one in timed)
    cuts = sorted(set(map(int, each)))[:-1]
    losses = np.zeros((len(cuts) + 1, len(KIB) + 1, len(families)))
    for one in timed:
        at = np.searchsorted(cuts, one.shape.row_bytes), np.searchsorted(KIB, one.shape.kib_per_sm(sms))
        losses[at] += np.nan_to_num(_lost(one, families), nan=UNFIT)
    below = np.concatenate([np.zeros((1, *losses.shape[1:])), losses.cumsum(0)])
    best = [0.0]
    made: list[_Cells] = []
    for end in range(1, len(below)):
        cells = _Cells(below[end] - below[:end], cost)
        cells.start = int((np.array(best) + cells.costs).argmin())
        best.append(best[cells.start] + float(cells.costs[cells.start]) + cost)
        made.append(cells)
    found: list[Cell] = []
    end = len(made)
    while end:
        found += made[end - 1].of_start(families, cuts[end - 1] if end <= len(cuts) else math.inf)
        end = made[end - 1].start
    return found[::-1]


def with_now(cells: Sequence[Cell], now: Sequence[Cell]) -> list[Cell]:
    """The cells with those of the present table in place of NOW. Neighbours of one family are one cell."""
    ends = sorted({cell.row_bytes for cell in (*cells, *now)})
    sizes = sorted({cell.kib_per_sm for cell in (*cells, *now)})
    lines: list[list[Cell]] = []
    for row_bytes in ends:
        line: list[Cell] = []
        for kib in sizes:
            family = next(one.family for of in (cells, now) for one in [_cell(of, row_bytes, kib)] if one.family != NOW)
            if line and line[-1].family == family:
                line.pop()
            line.append(Cell(row_bytes, kib, family))
        if lines and [(one.kib_per_sm, one.family) for one in lines[-1]] == [(one.kib_per_sm, one.family) for one in line]:
            lines.pop()
        lines.append(line)
    return [cell for line in lines for cell in line]


def _cell(cells: Sequence[Cell], row_bytes: float, kib: float) -> Cell:
    return next(one for one in cells if row_bytes <= one.row_bytes and kib <= one.kib_per_sm)


class _Cells:
    """The best cells of lines that end at one length and start anywhere before it.

    `losses`: of each start, size of launch and family. `start`: the best one.
    """

    start = 0

    def __init__(self, losses: Array, cost: float) -> None:
        import numpy as np

        starts, sizes, families = losses.shape
        below = np.concatenate([np.zeros((starts, 1, families)), losses.cumsum(1)], 1)
        costs = np.zeros((starts, sizes + 1))
        self.came, self.family = np.zeros((2, starts, sizes + 1), int)
        for end in range(1, sizes + 1):
            lost = below[:, end, None] - below[:, :end]
            family = lost.argmin(2)
            total = costs[:, :end] + np.take_along_axis(lost, family[..., None], 2)[..., 0] + cost
            self.came[:, end] = at = total.argmin(1)
            each = np.arange(starts)
            costs[:, end], self.family[:, end] = total[each, at], family[each, at]
        self.costs = costs[:, -1]

    def of_start(self, families: Sequence[Family], row_bytes: float) -> list[Cell]:
        """Those of the line from `start`, in reverse."""
        cells: list[Cell] = []
        end = self.came.shape[1] - 1
        while end:
            cells.append(Cell(row_bytes, KIB[end - 1] if end <= len(KIB) else math.inf, families[self.family[self.start, end]]))
            end = int(self.came[self.start, end])
        return cells


@dataclass(frozen=True)
class Judged:
    """What a table does on shapes: how many, speed against the present plans and against a copy, and the shares of slow shapes."""

    shapes: int
    gained: float
    of_copy: float
    slow: float
    slow_now: float
    best: float
    """What the fastest family of each shape would gain."""


def judge(timed: Sequence[Timed], cells: dict[Kind, list[Cell]], sms: int) -> Judged:
    """A table on shapes whose families were all timed. Means are geometric."""
    table = Table("", {kind: tuple(found) for kind, found in cells.items()})
    chosen = [_time(one, table, sms) for one in timed]
    count = len(timed)

    def mean(ratios: Iterable[float]) -> float:
        return math.exp(sum(map(math.log, ratios)) / count)

    return Judged(
        count,
        mean(one.now / found for one, found in zip(timed, chosen, strict=True)),
        mean(one.copy / found for one, found in zip(timed, chosen, strict=True)),
        sum(one.copy < SLOW * found for one, found in zip(timed, chosen, strict=True)) / count,
        sum(one.copy < SLOW * one.now for one in timed) / count,
        mean(one.now / min(one.families.values()) for one in timed),
    )


def _time(one: Timed, table: Table, sms: int) -> float:
    shape = one.shape
    ranked = table.ranked(shape.kind, shape.row_bytes, shape.kib_per_sm(sms))
    times = {**one.families, NOW: one.now}
    return next((times[family] for family in ranked if family in times), one.now)
