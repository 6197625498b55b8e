"""The figures of a page as SVG, each with its legend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from softbench.core.outcome import Measured
from softbench.core.statistics import median_interval
from softbench.core.text import count
from softbench.report import style
from softbench.report.page import svg
from softbench.report.page.source import Source
from softbench.report.page.svg import Entry
from softbench.report.quantities import Quantity
from softbench.report.slices import Slice, slices
from softbench.results.rows import Row

FIRST = "bandwidth and fraction of copy"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the page."""

    title: str
    """The shapes."""
    quantity: str
    svg: str
    """An `<svg>` element, safe to be put into the page: ElementTree wrote it."""
    legend: tuple[Entry, ...]
    """Empty for rows of points, which have the names beside them."""


def figures(sources: Sequence[Source]) -> list[Figure]:
    """Bandwidth with the fraction of copy, and device time, of all shapes. Several sources are overlaid."""
    from softbench.report import curves, dots

    runs = [source.rows for source in sources]
    rows = [row for run in runs for row in run]
    cells = {id(row): number for number, row in enumerate(rows)}  # two runs may have equal rows
    names = style.sources([(Path(source.name), source.rows) for source in sources])
    styles = style.styles(rows)
    found: list[Figure] = []
    for quantity, shown in _quantities(sources):
        for what in slices([row for row in rows if shown is None or shown.value(row)]):
            draw = curves.figure if what.axis else dots.figure
            drawing = draw(runs, what, styles, names, shown)
            if not drawing.points and not drawing.series:  # only the yardstick has a result
                continue
            numbers = {gid: cells[id(row)] for gid, row in drawing.points.items()}
            picture = svg.picture(drawing.figure, f"f{len(found)}-", numbers)
            found.append(Figure(_title(what, rows), quantity, picture, svg.legend(drawing, rows, styles) if what.axis else ()))
    return found


def _quantities(sources: Sequence[Source]) -> Iterator[tuple[str, Quantity | None]]:
    """The quantities that the results have. None stands for bandwidth and fraction of copy."""
    yield FIRST, None
    if any(row.device_us for source in sources for row in source.rows):
        yield "device time", _device_time(sources)


def _device_time(sources: Sequence[Source]) -> Quantity:
    """The median device time, with the 95 % interval of the median where the samples are known."""
    ends = {}
    for row, record in ((row, source.records.get((row.backend, row.case))) for source in sources for row in source.rows):
        if record and isinstance(record.outcome, Measured):
            ends[id(row)] = median_interval(record.outcome.profile.device_us)
    return Quantity("device time (us), median", lambda row: row.device_us, lambda row: ends.get(id(row)), "95 % interval")


def _title(what: Slice, rows: Sequence[Row]) -> str:
    first = what.of(rows)[0]
    if what.axis:
        return f"{first.of_pass} {what.dtype}, " + (f"N = {first.N}" if what.axis == "M" else f"M = {first.M}")
    sizes = [shape or f"{M}x{N}" for M, N, shape in what.shapes]
    return f"{first.of_pass} {what.dtype}, {sizes[0]}" + (f" and {count(len(sizes) - 1, 'other shape')}" if len(sizes) > 1 else "")
