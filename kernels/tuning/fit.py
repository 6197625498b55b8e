"""From times to a table: for each kind of rows, boxes of lengths and sizes of launches, with the family that loses least in each.

The boxes have the least sum of what their shapes lose against the fastest family that was timed for them, by dynamic programming. Each
line and each cell costs something too, so that none is made for the noise of one shape. Shapes that were not timed count too, with what the
families lose on the shapes around them: otherwise boxes would reach far beyond the few shapes that were timed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..plans.table import PASSES, VECTOR_BYTES, Cell, Family, Kind, Lines, Table, family_name
from .shapes import Shape, draw

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

KIB = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
"""Where a line may be cut: what a launch reads for each SM."""
LENGTHS = 80
"""Places where a kind may be cut, at quantiles of its lengths up to SHORT_ROW bytes, and of the others."""
SHORT_ROW = 1024
CELL_COST = 0.1
"""Of a line, and of a cell: the sum of relative losses that it must save, so that the noise of one shape makes none."""
OTHER_PASS = 2
"""So many octaves of length or of KiB another pass is apart. Another element size and another alignment are one."""
NEAR, FALL = 0.1, -3
"""A timed shape at a distance d counts (d^2 + NEAR)^FALL: the nearest ones decide, and where there are none, those farther away."""
IMAGINED, FIRST_IMAGINED = 3000, 5_000_000
"""So many shapes are drawn that were not timed, from this number on."""
UNFIT = 0.5
"""The loss of a family that makes no plan for a shape, and the most of others: a time that something disturbed shall not decide."""
SLOW = 0.9
"""Of a copy's speed: cells below it are counted."""


@dataclass(frozen=True)
class Timed:
    """A shape and what was measured: microseconds of a copy, of the plan that is used now, and of each family that makes a plan."""

    shape: Shape
    copy: float
    now: float
    families: dict[Family, float]


def table_of(timed: Sequence[Timed], families: Sequence[Family], sms: int) -> dict[Kind, Lines]:
    """The lines of each kind that was measured."""
    kinds = defaultdict(list)
    for one in timed:
        kinds[one.shape.kind].append(one)
    return {kind: _lines(found, families, sms) for kind, found in kinds.items()}


def imagined(
    language: str, timed: Sequence[Timed], families: Sequence[Family], sms: int, makes: Callable[[Shape], Iterable[Family]]
) -> list[Timed]:
    """Shapes that were not timed, with the means of what the families that make a plan lose around them, as times."""
    import numpy as np

    passes = np.array([PASSES.index(one.shape.which) for one in timed])
    places = np.array([_place(one.shape, sms) for one in timed])
    lost = np.array([_lost(one, families) for one in timed])
    made, number = ~np.isnan(lost), {family: at for at, family in enumerate(families)}
    lost = np.where(made, np.minimum(lost, UNFIT), 0)
    found = []
    for shape in (draw(at, language) for at in range(FIRST_IMAGINED, FIRST_IMAGINED + IMAGINED)):
        far = np.square(places - _place(shape, sms)).sum(1) + (OTHER_PASS * (passes != PASSES.index(shape.which))) ** 2
        weights = (far + NEAR) ** FALL
        means = (weights @ lost + 1e-12) / (weights @ made + 1e-12)
        if times := {family: math.exp(means[number[family]]) for family in makes(shape)}:
            found.append(Timed(shape, 1.0, 1.0, times))
    return found


def _place(shape: Shape, sms: int) -> tuple[float, ...]:
    """Its coordinates, of which another element size and alignment are one apart."""
    return math.log2(shape.row_bytes), math.log2(shape.kib_per_sm(sms)), math.log2(shape.size), float(shape.kind[2] == VECTOR_BYTES)


def _lost(one: Timed, families: Sequence[Family]) -> Array:
    """The logarithm of each family's time over that of the fastest, and nan if it makes no plan."""
    import numpy as np

    best = min(one.families.values())
    return np.array([math.log(one.families[family] / best) if family in one.families else math.nan for family in families])


def _loss(one: Timed, families: Sequence[Family]) -> Array:
    """What each family loses for a shape, where a family that makes no plan loses UNFIT."""
    import numpy as np

    return np.minimum(UNFIT, np.nan_to_num(_lost(one, families), nan=UNFIT))


def _lines(timed: Sequence[Timed], families: Sequence[Family], sms: int) -> Lines:
    import numpy as np

    cuts = _cuts([one.shape.row_bytes for one in timed])
    losses = np.zeros((len(cuts) + 1, len(KIB) + 1, len(families)))
    for one in timed:
        losses[np.searchsorted(cuts, one.shape.row_bytes), np.searchsorted(KIB, one.shape.kib_per_sm(sms))] += _loss(one, families)
    below = np.concatenate([np.zeros((1, *losses.shape[1:])), losses.cumsum(0)])
    best = [0.0]
    made: list[_Cells] = []
    for end in range(1, len(below)):
        cells = _Cells(below[end] - below[:end])
        cells.start = int((np.array(best) + cells.costs).argmin())
        best.append(best[cells.start] + float(cells.costs[cells.start]) + CELL_COST)
        made.append(cells)
    lines: Lines = []
    end = len(made)
    while end:
        lines.append((cuts[end - 1] if end <= len(cuts) else None, made[end - 1].of_start(families)))
        end = made[end - 1].start
    return lines[::-1]


def _cuts(lengths: Sequence[int]) -> list[int]:
    """Lengths between those that were measured."""
    known = sorted(set(lengths))
    short = [one for one in known if one <= SHORT_ROW]
    found = set()
    for part in (short, known[max(0, len(short) - 1) :]):
        at = (round(share * len(part) / LENGTHS) for share in range(1, LENGTHS))
        found |= {math.isqrt(part[i - 1] * part[i]) for i in at if 0 < i < len(part)}
    return sorted(found)


class _Cells:
    """The best cells of lines that end at one length and start anywhere before it.

    `losses`: of each start, size of launch and family. `start`: the best one.
    """

    start = 0

    def __init__(self, losses: Array) -> None:
        import numpy as np

        starts, sizes, families = losses.shape
        below = np.concatenate([np.zeros((starts, 1, families)), losses.cumsum(1)], 1)
        costs = np.zeros((starts, sizes + 1))
        self.came, self.family = np.zeros((2, starts, sizes + 1), int)
        for end in range(1, sizes + 1):
            lost = below[:, end, None] - below[:, :end]
            family = lost.argmin(2)
            total = costs[:, :end] + np.take_along_axis(lost, family[..., None], 2)[..., 0] + CELL_COST
            self.came[:, end] = at = total.argmin(1)
            each = np.arange(starts)
            costs[:, end], self.family[:, end] = total[each, at], family[each, at]
        self.costs = costs[:, -1]

    def of_start(self, families: Sequence[Family]) -> list[tuple[int | None, str]]:
        """Those of the line from `start`."""
        cells: list[tuple[int | None, str]] = []
        end = self.came.shape[1] - 1
        while end:
            cells.append((KIB[end - 1] if end <= len(KIB) else None, family_name(families[self.family[self.start, end]])))
            end = int(self.came[self.start, end])
        return cells[::-1]


@dataclass(frozen=True)
class Judged:
    """What a table does on shapes: how many, speed against the plans of now and against a copy, and the shares of slow shapes."""

    shapes: int
    gained: float
    of_copy: float
    slow: float
    slow_now: float
    best: float
    """What the fastest family of each shape would gain."""


def judge(timed: Sequence[Timed], cells: dict[Kind, tuple[Cell, ...]], sms: int) -> Judged:
    """A table on shapes whose families were all timed. Means are geometric."""
    table = Table("", cells)
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
    return next((one.families[family] for family in ranked if family in one.families), one.now)
