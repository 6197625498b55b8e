"""The figures of a page: a small SVG for each, with the colours of the page, with points that name their cell, and with its legend.

The policy of the page allows no `style` attribute, so that each property becomes a presentation attribute. A group `series-K-...` gets the
class `kK`, by which the legend hides it. A point gets `data-c`, the index of its cell in the page's data.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from softbench.core.outcome import Measured
from softbench.core.statistics import median_interval
from softbench.core.text import count
from softbench.report import style
from softbench.report.figure_data import Quantity, Slice, slices
from softbench.report.page.source import Source
from softbench.report.style import COLOURS, INK, LINE_COLOURS, OTHER, PAPER, Drawing, Style
from softbench.results.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FIRST = "bandwidth and fraction of copy"


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure of the page."""

    title: str
    """The shapes."""
    quantity: str
    svg: str
    """An `<svg>` element, safe to be put into the page: ElementTree wrote it."""
    legend: tuple[Entry, ...]
    """Empty for rows of points, which have the names beside them."""


def charts(sources: Sequence[Source]) -> list[Chart]:
    """Bandwidth with the fraction of copy, and device time, of all shapes. Several sources are overlaid."""
    from softbench.report import curves, dots

    runs = [source.rows for source in sources]
    rows = [row for run in runs for row in run]
    cells = {id(row): number for number, row in enumerate(rows)}  # two runs may have equal rows
    names = style.sources([(Path(source.name), source.rows) for source in sources])
    styles = style.styles(rows)
    found: list[Chart] = []
    for quantity, shown in _quantities(sources):
        for what in slices([row for row in rows if shown is None or shown.value(row)]):
            draw = curves.figure if what.axis else dots.figure
            drawing = draw(runs, what, styles, names, shown)
            if not drawing.points and not drawing.series:  # only the yardstick has a result
                continue
            numbers = {gid: cells[id(row)] for gid, row in drawing.points.items()}
            image = picture(drawing.figure, f"f{len(found)}-", numbers)
            found.append(Chart(_title(what, rows), quantity, image, legend(drawing, rows, styles) if what.axis else ()))
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
        return f"{first.of_pass} {what.dtype}, {what.fixed}"
    sizes = [shape or f"{M}x{N}" for M, N, shape in what.shapes]
    return f"{first.of_pass} {what.dtype}, {sizes[0]}" + (f" and {count(len(sizes) - 1, 'other shape')}" if len(sizes) > 1 else "")


SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
NUMBER = re.compile(r"-?\d+\.\d+")
SERIES = re.compile(r"series-(\d+)(?:-|$)")
REFERENCE = re.compile(r"url\(#([^)]+)\)")
OWN = {colour.lower(): f"var(--c{number})" for number, colour in enumerate(COLOURS)}
SCALE = 1.75
"""Pixels of the page for a point of the figure, where there is room."""
BROAD = 520
"""Points. A broader figure is scrolled on a small screen, as its text would be too small."""
NEEDLESS = {"font-family", "font", "stroke-miterlimit", "stroke-linejoin"}
"""Properties that the page's style sheet decides."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a legend, which is a button."""

    number: int
    """The class of its parts is `k` with this number."""
    name: str
    colour: str
    """The class of its colour."""


def picture(figure: Figure, prefix: str, cells: Mapping[str, int]) -> str:
    """A figure as the `<svg>` of the page; see `compact`."""
    return compact(as_svg(figure), prefix, cells)


def as_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element: no background, text as text, INK as `currentColor`, PAPER as `var(--paper)`."""
    import matplotlib

    text = StringIO()
    with style.look(), matplotlib.rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the page's font has it
        if figure.get_layout_engine():
            figure.draw_without_rendering()  # places the panels
        box = figure.get_tightbbox().padded(0.05)  # "tight" would draw the figure twice
        figure.savefig(text, format="svg", bbox_inches=box, metadata={"Date": None})
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return svg.replace(INK, "currentColor").replace(PAPER, "var(--paper)")


def compact(text: str, prefix: str, cells: Mapping[str, int]) -> str:
    """The figure's `<svg>` for the page.

    Args:
        text: what `as_svg` returned.
        prefix: what makes its ids unique in the page.
        cells: the index of the cell of each point, by the id of its group.
    """
    root = ElementTree.fromstring(text.replace("\ufffe", "?").replace("\uffff", "?"))  # XML does not allow these two
    needed = _references(root)
    names = {old: f"{prefix}{number}" for number, old in enumerate(sorted(needed))}
    for element in root.iter():
        _mend(element, names, cells)
    _flatten(root)
    for name in ("height", "version"):
        root.attrib.pop(name, None)
    width = float(root.get("viewBox", "").split()[2])
    root.set("width", f"{SCALE * width:.0f}")
    if width > BROAD:
        root.set("class", "broad")
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")


def _references(root: Element) -> set[str]:
    found = set()
    for element in root.iter():
        for value in element.attrib.values():
            found.update(REFERENCE.findall(value))
        if href := element.get(f"{XLINK}href"):
            found.add(href.removeprefix("#"))
    return found


def _mend(element: Element, names: Mapping[str, str], cells: Mapping[str, int]) -> None:
    """Rewrite one element's name, style, id, references and numbers."""
    element.tag = element.tag.removeprefix(SVG)
    element.tail = None
    if element.tag != "text" and element.text and not element.text.strip():
        element.text = None
    element.attrib.update(_style(element.attrib.pop("style", "")))
    if href := element.attrib.pop(f"{XLINK}href", ""):
        element.set("href", f"#{names[href.removeprefix('#')]}")
    own = element.attrib.pop("id", "")
    if own in names:
        element.set("id", names[own])
    if series := SERIES.match(own):
        element.set("class", f"k{series[1]}")
    if own in cells:
        element.set("data-c", str(cells[own]))
    for name in ("d", "x", "y", "transform", "points", "width", "height"):
        if (value := element.get(name)) is not None:
            element.set(name, NUMBER.sub(_short, " ".join(value.split())))
    if reference := element.get("clip-path"):
        element.set("clip-path", REFERENCE.sub(lambda found: f"url(#{names[found[1]]})", reference))


def _style(text: str) -> dict[str, str]:
    """The properties of a style as attributes, with the colours of the page."""
    pairs = (part.partition(":") for part in text.split(";") if part.strip())
    found = {name.strip(): value.strip() for name, _, value in pairs if name.strip() not in NEEDLESS}
    return {name: OWN.get(value, value) for name, value in found.items()}


def _short(number: re.Match[str]) -> str:
    """A number with two decimals, without needless zeros."""
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".") or "0"


def _flatten(parent: Element) -> None:
    """Remove invisible shapes and empty groups, and replace a group without attributes by its children."""
    kept: list[Element] = []
    for child in list(parent):
        _flatten(child)
        invisible = child.tag == "path" and child.get("fill") == "none" and not {"stroke", "id"} & child.attrib.keys()
        if invisible or (child.tag in ("g", "defs") and not len(child)):
            continue
        if child.tag == "g" and len(child) == 1 and child[0].tag == "g" and not child.attrib.keys() & child[0].attrib.keys():
            child.attrib |= child[0].attrib
            child[:] = list(child[0])
        kept += list(child) if child.tag == "g" and not child.attrib else [child]
    parent[:] = kept


def legend(drawing: Drawing, rows: Sequence[Row], styles: Mapping[str, Style]) -> tuple[Entry, ...]:
    """The legend of a drawing of these rows: the backends with a colour first, then the grey ones."""
    names = list(style.numbers(rows))
    entries = []
    for number, label in drawing.series.items():
        own = styles.get(backend := names[number % len(names)], OTHER)
        colour = f"c{LINE_COLOURS.index(own.colour)}" if own.named else "cx" if backend in styles else "ci"
        entries.append(Entry(number, label, colour))
    return tuple(sorted(entries, key=lambda entry: entry.colour == "cx"))
