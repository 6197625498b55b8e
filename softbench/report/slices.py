"""Decides which figures show the cells of a run: lines over N, lines over M, or one line per backend."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from softbench.core.case import pass_name
from softbench.results.rows import Row

Shape = tuple[int, int, str]
"""M, N, and the shape of an N-D case, which is a point of no line."""
MIN_POINTS = 3  # fewer points make no line
PANELS = 4  # cases of one figure without lines


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
        op = re.sub(r"[(),=]+", "-", self.op).rstrip("-")
        return f"{pass_name(op, self.direction, '-')}-{self.dtype}{fixed}"

    def of(self, rows: Sequence[Row]) -> list[Row]:
        """The rows of these shapes."""
        shapes = set(self.shapes)
        return [row for row in rows if _group(row) == (self.op, self.direction, self.dtype) and shape(row) in shapes]


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
