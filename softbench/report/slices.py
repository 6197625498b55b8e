"""Decides which figures show the cells of a run, and which of their cells make a line."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from softbench.core.case import DTYPES, pass_name
from softbench.results.rows import Row

Shape = tuple[int, int, str]
"""M, N, and the shape of an N-D case, which is a point of no line."""
MIN_POINTS = 3  # fewer points make no line
PANELS = 4  # cases of one figure without lines


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
    groups: dict[tuple[str, str, str], dict[Shape, None]] = {}
    for row in rows:
        if row.gbps:
            groups.setdefault(_group(row), {})[shape(row)] = None
    found = []
    for group, shapes in groups.items():
        lines, rest = _lines(list(shapes))
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
    candidates: dict[tuple[str, int], list[Shape]] = {}
    plain = [shape for shape in shapes if not shape[2]]
    for M, N, _ in plain:
        candidates.setdefault(("N", M), []).append((M, N, ""))
    for M, N, _ in plain:
        candidates.setdefault(("M", N), []).append((M, N, ""))
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


KINDS = POWER, WHOLE, ANY = "powers of two", "other multiples of 16 bytes", "other lengths"
VECTOR_BYTES = 16  # of the widest load of a thread


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
