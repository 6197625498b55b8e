"""The figures of a page as SVG, each with its legend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from softbench.core.case import CaseKey
from softbench.core.text import count
from softbench.report import curves, dots, style
from softbench.report.page import svg
from softbench.report.page.source import Source
from softbench.report.quantities import Quantity
from softbench.report.slices import Slice, slices
from softbench.report.style import Drawing
from softbench.results.rows import Row

FIRST = "bandwidth and fraction of copy"
DEVICE = Quantity("device time (us), median", lambda row: row.device_us)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a legend, which is a button."""

    number: int
    """The class of its parts is `k` with this number."""
    name: str
    colour: str
    """The class of its colour."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the page."""

    title: str
    """The shapes."""
    quantity: str
    svg: str
    """An `<svg>` element, safe to be put into the page: ElementTree wrote it."""
    legend: tuple[Entry, ...]


def figures(sources: Sequence[Source]) -> list[Figure]:
    """Bandwidth with the fraction of copy, and device time, of all shapes. Several sources are overlaid."""
    runs = [source.rows for source in sources]
    rows = [row for run in runs for row in run]
    cells = {(source, row.backend, row.case): number for number, (source, row) in enumerate(_numbered(runs))}
    names = style.sources([(Path(source.name), source.rows) for source in sources])
    styles = style.styles(rows)
    found: list[Figure] = []
    for quantity, shown in _quantities(rows):
        for what in slices([row for row in rows if shown is None or shown.value(row)]):
            draw = curves.figure if what.axis else dots.figure
            drawing = draw(runs, what, styles, names, shown)
            numbers = {gid: _number(row, runs, cells) for gid, row in drawing.points.items()}
            picture = svg.compact(style.as_svg(drawing.figure), f"f{len(found)}-", numbers)
            found.append(Figure(_title(what, rows), quantity, picture, legend(drawing, backends_of(drawing), styles)))
    return found


def _numbered(runs: Sequence[Sequence[Row]]) -> Iterator[tuple[int, Row]]:
    return ((number, row) for number, run in enumerate(runs) for row in run)


def _number(row: Row, runs: Sequence[Sequence[Row]], cells: Mapping[tuple[int, str, CaseKey], int]) -> int:
    """The index of a row's cell in the page's data."""
    source = next(number for number, run in enumerate(runs) if run[0].run == row.run or len(runs) == 1)
    return cells[source, row.backend, row.case]


def _quantities(rows: Sequence[Row]) -> Iterator[tuple[str, Quantity | None]]:
    yield FIRST, None
    if any(row.device_us for row in rows):
        yield "device time", DEVICE


def backends_of(drawing: Drawing) -> dict[int, str]:
    """The backend of each series that has points."""
    return {int(found[1]): row.backend for gid, row in drawing.points.items() if (found := svg.SERIES.match(gid))}


def legend(drawing: Drawing, backends: Mapping[int, str], styles: Mapping[str, style.Style]) -> tuple[Entry, ...]:
    """The legend of a drawing: the backends with a colour first, and the grey ones."""
    entries = []
    for number, label in drawing.series.items():
        if number in backends:
            own = styles.get(backends[number], style.OTHER)
            colour = f"c{style.LINE_COLOURS.index(own.colour)}" if own.named else "ci" if backends[number] not in styles else "cx"
            entries.append(Entry(number, label.replace(r"\$", "$"), colour))
    return tuple(sorted(entries, key=lambda entry: entry.colour == "cx"))


def _title(what: Slice, rows: Sequence[Row]) -> str:
    first = what.of(rows)[0]
    if what.axis:
        return f"{first.of_pass} {what.dtype}, " + (f"N = {first.N}" if what.axis == "M" else f"M = {first.M}")
    sizes = list(dict.fromkeys(row.case.size for row in what.of(rows)))
    return f"{first.of_pass} {what.dtype}, {sizes[0]}" + (f" and {count(len(sizes) - 1, 'other shape')}" if len(sizes) > 1 else "")
