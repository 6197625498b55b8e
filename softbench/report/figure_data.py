"""What the figures of a run show: which cells, which of them make a line, and which quantity."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from softbench.core.case import DTYPES, pass_name
from softbench.core.errors import UsageError
from softbench.core.outcome import Grade
from softbench.core.text import bandwidth_unit, percent, ratio, unknown
from softbench.results.rows import Row, grouped

Shape = tuple[int, int, str]
"""M, N, and the shape of an N-D case, which is a point of no line."""
Ends = tuple[float, float]
MIN_POINTS = 3  # fewer points make no line
PANELS = 4  # cases of one figure without lines
KINDS = POWER, WHOLE, ANY = "powers of two", "other multiples of 16 bytes", "other lengths"
VECTOR_BYTES = 16  # of the widest load of a thread


class Group(NamedTuple):
    """The cells of one heatmap."""

    op: str
    direction: str
    dtype: str
    shaped: bool = False
    """True for the N-D cases."""

    def of(self, rows: Sequence[Row]) -> list[Row]:
        """The rows of this group."""
        return [row for row in rows if _group(row) == self[:3] and bool(row.shape) == self.shaped]


@dataclass(frozen=True, slots=True)
class Slice:
    """The shapes of one figure."""

    op: str
    direction: str
    dtype: str
    shapes: tuple[Shape, ...]
    axis: str = ""
    """`N` or `M`: the axis of the lines. Empty: each shape has its own panel with a row per backend."""

    @property
    def name(self) -> str:
        """The figure's part of a file name."""
        M, N, _ = self.shapes[0]
        fixed = {"N": f"-M{M}", "M": f"-N{N}", "": ""}[self.axis]
        return f"{_name(self.op, self.direction, self.dtype)}{fixed}"

    @property
    def fixed(self) -> str:
        """The extent that all shapes of a line have, such as `M = 4096`."""
        M, N, _ = self.shapes[0]
        return f"N = {N}" if self.axis == "M" else f"M = {M}"

    def of(self, rows: Sequence[Row]) -> list[Row]:
        """The rows of these shapes."""
        shapes = set(self.shapes)
        return [row for row in rows if _group(row) == (self.op, self.direction, self.dtype) and shape(row) in shapes]


def groups(rows: Sequence[Row]) -> list[Group]:
    """The groups with a result, in the order of the rows."""
    return list(dict.fromkeys(Group(*_group(row), bool(row.shape)) for row in rows if row.median_us))


def group_name(group: Group) -> str:
    """The group's part of a file name."""
    return _name(*group[:3]) + "-shapes" * group.shaped


def _name(op: str, direction: str, dtype: str) -> str:
    return f"{pass_name(re.sub(r'[(),=]+', '-', op).rstrip('-'), direction, '-')}-{dtype}"


def slices(rows: Sequence[Row]) -> list[Slice]:
    """The figures that together show every shape with a bandwidth, in the order of the rows."""
    found = []
    for group, some in grouped((row for row in rows if row.gbps), _group).items():
        lines, rest = _lines(list(dict.fromkeys(map(shape, some))))
        found += [Slice(*group, tuple(line), axis) for axis, line in lines]
        found += [Slice(*group, tuple(rest[i : i + PANELS])) for i in range(0, len(rest), PANELS)]
    return found


def shape(row: Row) -> Shape:
    """The shape of a row's case."""
    return row.M, row.N, row.shape


def _group(row: Row) -> tuple[str, str, str]:
    return row.op, row.direction, row.dtype


def _lines(shapes: Sequence[Shape]) -> tuple[list[tuple[str, list[Shape]]], list[Shape]]:
    """The lines with the most shapes first, each with MIN_POINTS shapes that no earlier line has; and the shapes without a line."""
    plain = [shape for shape in shapes if not shape[2]]
    candidates = {("N", M): some for M, some in grouped(plain, lambda shape: shape[0]).items()}
    candidates |= {("M", N): some for N, some in grouped(plain, lambda shape: shape[1]).items()}
    left, found = dict.fromkeys(shapes), []
    while candidates:
        key = max(candidates, key=lambda key: sum(shape in left for shape in candidates[key]))
        line = candidates.pop(key)
        if sum(shape in left for shape in line) < MIN_POINTS:
            break
        found.append((key[0], sorted(line)))
        left = {shape: None for shape in left if shape not in line}
    order = {shape: i for i, shape in enumerate(shapes)}
    return sorted(found, key=lambda line: min(order[shape] for shape in line[1])), sorted(left)


def kinds(lengths: Collection[int], dtype: str, axis: str) -> dict[str, list[int]]:
    """The lengths of one figure by kind, each of which makes a line; in ascending order, the powers of two first.

    Kernels treat three kinds of N unlike, so one line through all of them zigzags. Powers of two fill their blocks. Other rows of whole
    16-byte vectors are all aligned. The rest start at any address. Where fewer than MIN_POINTS lengths are powers of two, they count as
    others; then so few of whole vectors count as the rest. M has no kinds, as it does not change how a row is read.
    """
    found: dict[str, list[int]] = {POWER: [], WHOLE: [], ANY: []}
    for length in sorted(lengths):
        aligned = length * DTYPES[dtype] % VECTOR_BYTES == 0
        found[POWER if axis == "M" or length & (length - 1) == 0 else WHOLE if aligned else ANY].append(length)
    if axis == "M":
        return {"": found[POWER]}
    if len(found[POWER]) < MIN_POINTS:
        found[WHOLE] = sorted(found.pop(POWER) + found[WHOLE])
        if len(found[WHOLE]) < MIN_POINTS:
            found[ANY] = sorted(found.pop(WHOLE) + found[ANY])
    found = {kind: members for kind, members in found.items() if members}
    return found if len(found) > 1 else {"": next(iter(found.values()))}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of a row, and how it is drawn."""

    label: str
    """The text of the axis."""
    value: Callable[[Row], float | None]
    """The number; None if the row has none."""
    ends: Callable[[Row], Ends | None] = lambda _: None
    """The ends of its spread or interval, lower first."""
    spread: str = ""
    """What the ends are; empty if there are none."""
    over: str = ""
    """The backend that a speed-up is over. Its axis is logarithmic around 1."""


def bandwidth(rows: Sequence[Row]) -> Quantity:
    """The bandwidth in the unit that fits the rows, with the 20th and 80th percentile of its samples."""
    unit, factor = bandwidth_unit([row.gbps for row in rows if row.gbps])

    def ends(row: Row) -> Ends | None:
        if not (row.gbps and row.median_us):
            return None
        low, high = (factor * row.gbps * row.median_us / (us or row.median_us) for us in (row.p80_us, row.p20_us))
        return low, high

    return Quantity(f"bandwidth ({unit}), median", lambda row: factor * row.gbps if row.gbps else None, ends, "p20 to p80")


FRACTION = Quantity("fraction of the yardstick", lambda row: row.of_copy if row.gbps and row.grade != Grade.YARDSTICK else None)


def speedup(rows: Sequence[Row], over: str = "") -> Quantity:
    """The speed-up over a backend, by default the reference backend of the rows.

    It is the ratio of the medians, with its 95 % interval.

    Raises:
        UsageError: no row has the backend, or none is given and the rows have no reference backend.
    """
    timed = [row for row in rows if row.timed]
    names = tuple(dict.fromkeys(row.backend for row in timed))
    over = over or next((row.relative_to for row in rows if row.relative_to in names), "")
    if not over:
        raise UsageError(f"plot: the results have no reference backend; name one of them with --over: {', '.join(names) or 'none'}")
    if over not in names:
        raise UsageError(f"--over: {unknown(over, names, 'backend')}")
    base = {(row.run, row.case): row for row in timed if row.backend == over}

    def value(row: Row) -> float | None:
        theirs = base.get((row.run, row.case))
        if theirs is None or not theirs.median_us or not row.median_us or not row.gbps:
            return None
        return theirs.median_us / row.median_us

    def ends(row: Row) -> Ends | None:
        theirs = base.get((row.run, row.case))
        found = row.times_as_fast(theirs) if theirs and row.backend != over else None
        return (found.low, found.high) if found else None

    return Quantity(f"speed-up over {over}", value, ends, "95 % interval", over)


def number_text(quantity: Quantity, row: Row) -> str:
    """The number beside a point: a fraction of copy, or a speed-up."""
    if quantity.over:
        return f"{ratio(found)}x" if (found := quantity.value(row)) else ""
    return percent(row.of_copy) if row.of_copy and row.grade != Grade.YARDSTICK else ""
