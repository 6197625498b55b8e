"""What the figures of a run show: which cells, which of them make a line, and which quantity."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from softbench.core.case import DTYPES, pass_name
from softbench.core.errors import UsageError
from softbench.core.outcome import Grade, Status
from softbench.core.text import bandwidth_unit, percent, ratio, three_digits, unknown
from softbench.results.columns import Row, grouped

Shape = tuple[int, int, str]
"""M, N, and the shape of an N-D case, which is a point of no line."""
Ends = tuple[float, float]
MIN_POINTS = 3  # fewer points make no line
SHAPES = 24
"""The most shapes without a line that a panel holds."""
KINDS = POWER, WHOLE, ANY = "powers of two", "other multiples of 16 bytes", "other lengths"
LEAP = 8
"""The largest factor between two places that a line of a kind joins. What lies between is another kind's."""
VECTOR_BYTES = 16  # of the widest load of a thread


class Group(NamedTuple):
    """The cells of one map of the fastest."""

    op: str
    direction: str
    dtype: str
    shaped: bool = False
    """True for the N-D cases."""
    size: int = 0
    """The number of cases."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The shapes of one panel."""

    op: str
    direction: str
    dtype: str
    shapes: tuple[Shape, ...]
    axis: str = ""
    """`N` or `M`: the axis of the lines. Empty: the shapes form no line."""

    @property
    def size(self) -> int:
        """The number of shapes."""
        return len(self.shapes)

    @property
    def fixed(self) -> str:
        """The extent that all shapes of a line have, such as `M = 4096`."""
        M, N, _ = self.shapes[0]
        return f"N = {N}" if self.axis == "M" else f"M = {M}"


def groups(rows: Sequence[Row]) -> list[Group]:
    """The groups with a result, in the order of the rows."""
    found = grouped((row for row in rows if row.median_us), lambda row: (*_group(row), bool(row.shape)))
    return [Group(*key, len({row.case for row in some})) for key, some in found.items()]


def slices(rows: Sequence[Row]) -> list[Slice]:
    """The panels that together show every shape with a bandwidth, in the order of the rows."""
    found = []
    for group, some in grouped((row for row in rows if row.gbps), _group).items():
        lines, rest = _lines(list(dict.fromkeys(map(shape, some))))
        found += [Slice(*group, tuple(line), axis) for axis, line in lines]
        found += [Slice(*group, tuple(rest[i : i + SHAPES])) for i in range(0, len(rest), SHAPES)]
    return found


def by_group(groups: Sequence[Group], rows: Sequence[Row]) -> list[tuple[Group, list[Row]]]:
    """The groups with their rows."""
    found = grouped(rows, lambda row: (*_group(row), bool(row.shape)))
    return [(group, found[group[:4]]) for group in groups]


def by_slice(panels: Sequence[Slice], rows: Sequence[Row]) -> dict[Slice, list[Row]]:
    """The rows of each panel, in the order of its shapes. One may belong to two panels."""
    found: dict[Slice, list[Row]] = {what: [] for what in panels}
    at: dict[object, list[Slice]] = {}
    for what in panels:
        for one in what.shapes:
            at.setdefault((what.op, what.direction, what.dtype, one), []).append(what)
    for row in rows:
        for what in at.get((*_group(row), shape(row)), ()):
            found[what].append(row)
    for what, some in found.items():
        order = {one: place for place, one in enumerate(what.shapes)}
        some.sort(key=lambda row, order=order: order[shape(row)])  # type: ignore[misc]
    return found


def pass_of(what: Slice | Group) -> str:
    """The operation and the direction in a file's name."""
    return pass_name(re.sub(r"[(),=]+", "-", what.op).rstrip("-"), what.direction, "-")


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
    heap = [(-len(line), place, key) for place, (key, line) in enumerate(candidates.items())]
    heapify(heap)
    while heap:
        size, place, key = heappop(heap)
        line = candidates[key]
        now = -sum(shape in left for shape in line)
        if now > size:  # an earlier line has some of its shapes
            heappush(heap, (now, place, key))
        elif -now < MIN_POINTS:
            break
        else:
            found.append((key[0], sorted(line)))
            for shape in line:
                left.pop(shape, None)
    order = {shape: i for i, shape in enumerate(shapes)}
    return sorted(found, key=lambda line: min(order[shape] for shape in line[1])), sorted(left)


def kinds(lengths: Collection[int], dtype: str, axis: str) -> dict[str, list[int]]:
    """The lengths of one figure by kind, each of which makes a line; in ascending order, the powers of two first.

    Kernels treat three kinds of N unlike, so one line through all of them zigzags. Powers of two fill their blocks. Other rows of whole
    16-byte vectors are all aligned. The rest start at any address. Where fewer than MIN_POINTS lengths are powers of two, they count as
    others; then so few of whole vectors count as the rest. M has no kinds, as it does not change how a row is read. Nor has a sweep of
    whole vectors in equal steps: its neighbours differ little, and a line through its powers of two alone would cross the others.
    """
    ordered = sorted(lengths)
    if len(ordered) > 2 and len({b - a for a, b in pairwise(ordered)}) == 1 and all(_aligned(length, dtype) for length in ordered):
        return {"": ordered}
    found: dict[str, list[int]] = {POWER: [], WHOLE: [], ANY: []}
    for length in ordered:
        found[POWER if axis == "M" or length & (length - 1) == 0 else WHOLE if _aligned(length, dtype) else ANY].append(length)
    if axis == "M":
        return {"": found[POWER]}
    if len(found[POWER]) < MIN_POINTS:
        found[WHOLE] = sorted(found.pop(POWER) + found[WHOLE])
        if len(found[WHOLE]) < MIN_POINTS:
            found[ANY] = sorted(found.pop(WHOLE) + found[ANY])
    found = {kind: members for kind, members in found.items() if members}
    return found if len(found) > 1 else {"": next(iter(found.values()))}


def _aligned(length: int, dtype: str) -> bool:
    """Whether each row begins at a 16-byte vector."""
    return length * DTYPES[dtype] % VECTOR_BYTES == 0


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
    """The backend that a ratio is over. Its axis is logarithmic around 1."""
    linear: bool = False
    """True for a ratio on an axis from 0: the fraction of copy."""

    def text(self, value: float) -> str:
        """The value beside a name."""
        return percent(value) if self.linear else f"{ratio(value)}x" if self.over else three_digits(value)


def bandwidth(rows: Sequence[Row]) -> Quantity:
    """The bandwidth in the unit that fits the rows, with the 20th and 80th percentile of its samples.

    As in the tables, cells whose tensors fit L2 have none; if that holds for all, it is the time.
    """
    if rows and all(row.in_l2 for row in rows if row.gbps):
        return Quantity("time (us), median", lambda row: row.median_us if row.timed else None, lambda row: row.ends, "95 % interval")
    unit, factor = bandwidth_unit([row.gbps for row in rows if row.gbps and not row.in_l2])

    def ends(row: Row) -> Ends | None:
        if not (row.gbps and row.median_us and not row.in_l2):
            return None
        low, high = (factor * row.gbps * row.median_us / (us or row.median_us) for us in (row.p80_us, row.p20_us))
        return low, high

    return Quantity(
        f"bandwidth ({unit}), median", lambda row: factor * row.gbps if row.gbps and not row.in_l2 else None, ends, "p20 to p80"
    )


def fraction(rows: Sequence[Row]) -> Quantity:
    """The fraction of copy with the 95 % interval of the ratio."""
    copies = {(row.run, row.unit, row.case): row for row in rows if row.grade == Grade.YARDSTICK}

    def value(row: Row) -> float | None:
        return row.of_copy if row.status == Status.OK and row.grade != Grade.YARDSTICK else None

    def ends(row: Row) -> Ends | None:
        if row.compute_bound and row.ends and row.median_us and (share := value(row)):
            low, high = row.ends
            return share * row.median_us / high, share * row.median_us / low
        copy = copies.get((row.run, row.unit, row.case))
        found = row.times_as_fast(copy) if copy and value(row) else None
        return (found.low, found.high) if found else None

    name = next((row.backend for row in copies.values()), "copy")
    return Quantity(f"fraction of {name}", value, ends, "95 % interval", name, linear=True)


def speedup(rows: Sequence[Row], over: str = "") -> Quantity:
    """The speed-up over a backend, by default the reference backend of the rows.

    It is the ratio of the medians, with its 95 % interval; over the reference backend it is the column `speedup`.

    Raises:
        UsageError: no row has the backend, or none is given and the rows have no reference backend.
    """
    timed = [row for row in rows if row.timed]
    names = tuple(dict.fromkeys(row.backend for row in timed))
    over = over or next((row.relative_to for row in rows if row.relative_to in names), "")
    if not over:
        raise UsageError(f"plot: the results have no reference backend; name one of them with --relative-to: {', '.join(names) or 'none'}")
    if over not in names:
        raise UsageError(f"--relative-to: {unknown(over, names, 'backend')}")
    base = {(row.run, row.unit, row.case): row for row in timed if row.backend == over}

    def value(row: Row) -> float | None:
        theirs = base.get((row.run, row.unit, row.case))
        if theirs is None or not theirs.median_us or not row.median_us or not row.timed:
            return None
        return row.speedup if row.relative_to == over and row.speedup else theirs.median_us / row.median_us

    def ends(row: Row) -> Ends | None:
        theirs = base.get((row.run, row.unit, row.case))
        found = row.times_as_fast(theirs) if theirs and row.backend != over else None
        return (found.low, found.high) if found else None

    return Quantity(f"speed-up over {over}", value, ends, "95 % interval", over)
