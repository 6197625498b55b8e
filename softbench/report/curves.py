"""Draws lines over N or M, and points over other shapes: the fraction of copy, the bandwidth or the speed-up.

One set of shapes has a large figure: the fraction of copy, and below it the bandwidth, with the names of the lines beside them. Several
have a small panel each, and one key. A backend has a line for each kind of length (`softbench.report.figure_data.kinds`).
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import nan
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from softbench.core.case import YARDSTICK
from softbench.core.outcome import Grade, Status
from softbench.core.text import count, few
from softbench.report import answer, axes, style
from softbench.report.figure_data import ANY, LEAP, POWER, WHOLE, Quantity, Slice, kinds, shape
from softbench.report.standings import standings
from softbench.report.style import DASHES, GREY, INK, MARKERS, OTHER, PAPER, Style
from softbench.results.columns import Row, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, HIGH, LOW = 5.4, 3.3, 1.6
"""Inches of the panels of a large figure: width, and the heights of the first and of the second."""
SMALL = (3.05, 1.8)
"""Inches of a small panel."""
GAP_ACROSS, GAP_DOWN = 0.72, 0.9
"""Inches between small panels: for the numbers of an axis, and for a title and an axis."""
TITLE = 46  # characters in a line of a small panel's title
LINE, LETTER = 0.15, 0.025  # inches of a title's line, and of a letter of a shape's name, which is oblique
BETWEEN = 0.17  # inches between the panels of a large figure
MEANING = {"N": "N, columns of a row", "M": "M, rows", "": ""}
LINES = {"": (1.8, "-"), POWER: (1.8, "-"), WHOLE: (0.8, "-"), ANY: (0.8, ":")}
"""Width and dash of the line of each kind of length. Where runs are overlaid, the dash is that of the run."""
ALIKE = 0.03
"""Of the axis from 0. Two lines lie on each other if half of their points are less apart."""
NEAR = 3  # times the largest bandwidth; a datasheet peak further away is left out, as is one of several devices
MANY = 30  # points of a line, from which they are small
MIN_ALIKE = 4  # values of lines that lie on each other, from which they are shown apart
LOWEST = 0.3  # fraction from which an axis is worth to be cut
ROOM = 0.06  # below the lines of a cut axis
DODGE = 0.7  # of the room of a shape that forms no line, over which its points are spread
ANSWERS = ("fastest", "speed-up", "of copy")
"""The lines of the answer that a figure has above it (`softbench.report.answer`)."""
BAR = 22  # points; the length of the mark of the yardstick at a shape that forms no line
Quantities = Callable[[Sequence[Row]], Sequence[Quantity]]
"""The quantities of some rows, the first of which a small panel shows."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One backend of one run, over the shapes of one panel."""

    backend: str
    label: str
    rows: list[Row]
    style: Style

    @property
    def yardstick(self) -> bool:
        return self.rows[0].grade == Grade.YARDSTICK


@dataclass(frozen=True, slots=True)
class Runs:
    """The rows of the runs that a figure overlays, and how their backends look."""

    rows: Sequence[Mapping[Slice, Sequence[Row]]]
    """The rows of each run by panel."""
    styles: Mapping[str, Style]
    sources: Mapping[int, str]
    """What a label says about each run."""

    def of(self, *panels: Slice) -> list[Row]:
        """The rows of these panels."""
        return [row for run in self.rows for what in panels for row in run.get(what, ())]

    def curves(self, *panels: Slice) -> list[Curve]:
        """The backends of each run in these panels: the yardstick first, then the grey ones, the best one last, so that it lies on top."""
        found = []
        order = {name: place for place, name in enumerate(style.ranked(self.of(*panels)))}
        for source, run in enumerate(self.rows):
            some = [row for what in panels for row in run.get(what, ())]
            for name, rows in grouped(some, lambda row: row.backend).items():
                own = self.styles.get(name, OTHER)
                if rows[0].grade == Grade.YARDSTICK:
                    own = Style(INK, "" if all(what.axis for what in panels) else "_", "-", named=True)
                if len(self.sources) > 1:
                    marker = MARKERS[source % len(MARKERS)] if own.marker and own.named else own.marker
                    own = Style(own.colour, marker, DASHES[source % len(DASHES)], own.named)
                found.append(Curve(name, style.label(name, rows, self.sources[source]), rows, own))
        return sorted(found, key=lambda curve: (not curve.yardstick, curve.style.named, -order.get(curve.backend, len(order))))


@style.look()
def figure(runs: Runs, panels: Sequence[Slice], quantities: Quantities) -> Figure:
    """One panel of shapes with the names of the lines beside it, or a sheet of small panels with a key below."""
    return _large(runs, panels[0], quantities) if len(panels) == 1 else _sheet(runs, panels, quantities)


def _large(runs: Runs, what: Slice, quantities: Quantities) -> Figure:
    rows, curves = runs.of(what), runs.curves(what)
    shown = quantities(rows)
    made = style.canvas()
    panels: list[Axes] = []
    top = 0.0
    for number, (quantity, height) in enumerate(zip(shown, (HIGH, LOW), strict=False)):
        panels.append(panel := style.panel(made, 0, top, WIDE, height, sharex=panels[0] if panels else None))
        if number:
            _draw(panel, curves, what, replace(quantity, ends=lambda _: None), second=True)
        else:
            far = _draw(panel, curves, what, quantity, zoomed=len(shown) > 1, below=next(iter(shown[1:]), None))
        panel.set_ylabel(quantity.label)
        panel.tick_params(axis="x", labelsize=7.5, labelbottom=number == len(shown) - 1)
        top += height + BETWEEN
    panels[-1].set_xlabel(MEANING[what.axis])
    key = _beside(panels[0], curves, what, shown[0], far)
    answered = _answer(runs, rows)
    style.head(made, f"{_title(what)}, {style.devices(rows)}", answered, up=0.0 if answered else 0.12)  # above the word median
    _below(made, top + (0.45 if what.axis else 0.8), runs, [what], shown[0], key)
    return made


def _sheet(runs: Runs, panels: Sequence[Slice], quantities: Quantities) -> Figure:
    across = 2 if len(panels) <= 4 else 3 if len(panels) <= 9 else 4
    made = style.canvas()
    every = runs.of(*panels)
    several, yardstick = len({what.op for what in panels}) > 1, False
    titles = [textwrap.wrap(_title(what, op=several), TITLE, break_on_hyphens=False) for what in panels]
    title = LINE * (max(map(len, titles)) - 1)
    longest = max((len(name) for what in panels if not what.axis for name in _names(what)), default=0)
    step = SMALL[1] + GAP_DOWN + title + LETTER * longest
    without = 0
    for number, what in enumerate(panels):
        line, column = divmod(number, across)
        rows = runs.of(what)
        (quantity, *_) = quantities(rows)
        yardstick |= not quantity.linear and quantity.over != YARDSTICK
        without += sum(bool(row.gbps) and not quantity.value(row) and row.grade != Grade.YARDSTICK for row in rows if quantity.linear)
        panel = style.panel(made, column * (SMALL[0] + GAP_ACROSS), title + line * step, *SMALL)
        _draw(panel, runs.curves(what), what, quantity)
        panel.set_ylabel(quantity.label, fontsize=7.5)
        panel.set_xlabel(what.axis, fontsize=7.5, labelpad=0)
        panel.tick_params(labelsize=6.5)
        panel.set_title("\n".join(titles[number]), fontsize=8.5, loc="left", fontweight="bold", pad=15)
        panel.annotate(
            "" if len(runs.sources) > 1 else answer.leader(standings(rows)),
            (0, 1),
            (0, 4),
            "axes fraction",
            "offset points",
            fontsize=7.5,
            annotation_clip=False,
        )
    ops = few(list(dict.fromkeys(what.op.partition("(")[0] for what in panels)))
    shown = quantities(every)[0]
    style.head(made, f"{ops}: {shown.label}, {style.devices(every)}", _answer(runs, every), up=0.4)
    best = style.ranked(every)
    curves = [curve for curve in runs.curves(*panels) if curve.style.named and (not curve.yardstick or yardstick)]
    curves = [curve for curve in curves if curve.backend != shown.over or curve.yardstick]
    curves.sort(key=lambda curve: best.index(curve.backend) if curve.backend in best else len(best))
    key = [axes.sign(one.label, color=one.style.colour, marker=one.style.marker, linestyle=one.style.dash) for one in curves]
    _below(made, -(-len(panels) // across) * step - 0.25, runs, panels, shown, key, without)
    return made


def _title(what: Slice, *, op: bool = True) -> str:
    name = f"{what.direction} {what.dtype}" + (f", {what.fixed}" if what.axis else "")
    return f"{what.op} {name}" if op else name


def _draw(
    panel: Axes,
    curves: Sequence[Curve],
    what: Slice,
    shown: Quantity,
    *,
    zoomed: bool = False,
    second: bool = False,
    below: Quantity | None = None,
) -> list[Curve]:
    """The lines of one quantity with their intervals, its axes, and the shade of the shapes that fit L2.

    The `second` panel of a figure has the axis of the first one, which also reaches the places of the quantity `below`, and finer lines.

    Returns:
        The curves that lie far from 1 and are not drawn, because a `zoomed` axis shows those near 1 apart.
    """
    from matplotlib.lines import Line2D

    drawn = [curve for curve in curves if curve.backend != shown.over and any(map(shown.value, curve.rows))]
    rows = [row for curve in drawn for row in curve.rows if shown.value(row)]
    place = _places(what)
    _scale(panel, drawn, shown)
    far = _zoom(panel, drawn, shown) if zoomed else []
    drawn = [curve for curve in drawn if curve not in far]
    size, places = 0.75 if second else 1.0, sorted({place(row) for row in rows})
    if not (second and what.axis):  # the panels of a figure share the axis, and ticks at shapes are drawn by the last one
        every = [row for curve in curves for row in curve.rows] if below else []
        _axis(panel, what, sorted({*places, *(place(row) for row in every if below and below.value(row))}))
    _shade(panel, what, {place(row) for curve in curves for row in curve.rows if row.in_l2}, places)
    lengths = kinds({getattr(row, what.axis) for row in rows}, what.dtype, what.axis) if what.axis else {}
    shifts = {} if what.axis else _shifts(curves)
    for level, curve in enumerate(drawn):
        shift = shifts.get(curve.backend, 0.0)
        by_place = {place(row): row for row in curve.rows}
        for kind, members in lengths.items():
            width, dash = LINES[kind]
            width *= size * (1 if curve.style.named and not curve.yardstick else 0.5)
            for xs in _stretches([x for x in members if x in by_place], all_joined=kind in ("", POWER)):
                ys = [shown.value(by_place[x]) or nan for x in xs]
                dash = dash if curve.style.dash == "-" else curve.style.dash
                look: dict[str, Any] = {"color": curve.style.colour, "linestyle": dash, "linewidth": width}
                panel.add_line(Line2D(xs, ys, zorder=2 + level / 1000, **look))
        _points(panel, curve, {x + shift: row for x, row in by_place.items()}, shown, size, 3 + level / 1000)
    return far


def _shifts(curves: Sequence[Curve]) -> dict[str, float]:
    """How far the points of a shape that forms no line stand from its place, so that they stand beside each other, the best first."""
    named = list(dict.fromkeys(curve.backend for curve in reversed(curves) if curve.style.named and not curve.yardstick))
    return {name: DODGE * ((place + 0.5) / len(named) - 0.5) for place, name in enumerate(named)}


def _points(panel: Axes, curve: Curve, by_place: Mapping[float, Row], shown: Quantity, size: float, level: float) -> None:
    """The points with their intervals. Doubtful ones are hollow."""
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    own = curve.style
    known = {x: value for x, row in by_place.items() if (value := shown.value(row))}
    ends = {x: found for x, row in by_place.items() if own.named and x in known and (found := shown.ends(row))}
    if ends:
        bars = [((x, low), (x, high)) for x, (low, high) in ends.items()]
        panel.add_collection(LineCollection(bars, colors=own.colour, linewidth=0.9, alpha=0.55, zorder=level - 1), autolim=False)
    size *= (BAR if curve.yardstick else 2.6 if len(known) > MANY else 4.2) if own.named else 2.0
    for hollow in (False, True):
        xs = [x for x in known if (own.named and by_place[x].doubtful) == hollow]
        if xs and own.marker:
            point: dict[str, Any] = {
                "marker": own.marker,
                "markersize": size,
                "markeredgewidth": 0.8,
                "markerfacecolor": PAPER if hollow else own.colour,
            }
            panel.add_line(Line2D(xs, [known[x] for x in xs], color=own.colour, linestyle="", zorder=level, **point))


def _places(what: Slice) -> Callable[[Row], float]:
    """Where a row stands along the axis: at N or M, or at the place of its shape."""
    if what.axis:
        return lambda row: getattr(row, what.axis)
    order = {shape: float(place) for place, shape in enumerate(what.shapes)}
    return lambda row: order[shape(row)]


def _axis(panel: Axes, what: Slice, places: Sequence[float]) -> None:
    if what.axis:
        axes.places(panel, [int(place) for place in places], scale=WIDE / panel.get_window_extent().width * panel.figure.dpi)
        first, last = (places[0], places[-1]) if len(places) > 1 else (places[0] / 2, places[0] * 2)
        room = (last / first) ** 0.03 if panel.get_xscale() == "log" else 0.03 * (last - first)
        panel.set_xlim(*((first / room, last * room) if panel.get_xscale() == "log" else (first - room, last + room)))
        return
    names = _names(what)
    panel.set_xlim(-0.5, len(names) - 0.5)
    panel.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor", fontsize=6.5)
    panel.grid(visible=False, axis="x")


def _names(what: Slice) -> list[str]:
    return [text or f"{M}x{N}" for M, N, text in what.shapes]


def _scale(panel: Axes, drawn: Sequence[Curve], shown: Quantity) -> None:
    """The axis of the quantity, with a line at 1 or at the datasheet's bandwidth."""
    values = [value for curve in drawn if curve.style.named for row in curve.rows if (value := shown.value(row))]
    if shown.over and not shown.linear:
        panel.set_yscale("log")
        axes.ratios(panel.yaxis, panel.set_ylim, values)
    else:
        peak = None if shown.over else _peak([row for curve in drawn for row in curve.rows], values, shown)
        axes.amounts(panel, [*values, *([peak] if peak else [])], least=1.08 if shown.over else 0)
        if peak:
            panel.axhline(peak, color=GREY, linewidth=1, linestyle="--", zorder=1.9)
            where = panel.get_yaxis_transform()
            panel.annotate("datasheet peak", (1, peak), (-2, 2), where, "offset points", fontsize=6.5, ha="right")
    if shown.linear:
        panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
    if shown.over:
        panel.axhline(1, color=INK, linewidth=0.9, zorder=1.9)


def _zoom(panel: Axes, drawn: Sequence[Curve], shown: Quantity) -> list[Curve]:
    """Show the lines near 1 apart, if two lie on each other on an axis from 0, where 1 is a line too. Returns those further away."""
    named = [curve for curve in drawn if curve.style.named]
    lines = [(curve.backend, {row.case: value for row in curve.rows if (value := shown.value(row))}) for curve in named]
    even = (shown.over, dict.fromkeys({case for _, line in lines for case in line}, 1.0))
    alike: list[float] = []
    for (name, one), (another, other) in combinations([*lines, even], 2):
        apart = [abs(one[case] - other[case]) / panel.get_ylim()[1] for case in one.keys() & other.keys()]
        if name != another and apart and median(apart) < ALIKE:
            alike += [*one.values(), *other.values()]
    low = min(quantiles(alike, n=10)[0], 1.0) - ROOM if len(alike) >= MIN_ALIKE else 0.0
    if low < LOWEST or panel.get_yscale() != "linear":
        return []
    medians = {curve.label: median(value for row in curve.rows if (value := shown.value(row))) for curve in drawn}
    low = min([low, *(value - ROOM / 2 for value in medians.values() if value > low - ROOM)])
    panel.set_ylim(low, max(*alike, 1.0) + ROOM / 2)
    return [curve for curve in drawn if medians[curve.label] < low]


def _shade(panel: Axes, what: Slice, inside: Collection[float], places: Sequence[float]) -> None:
    """Shade the shapes whose tensors fit L2, up to halfway to the next place. Their bandwidth is not the memory's."""
    if not inside:
        return
    first, last = panel.get_xlim()
    beyond = [place for place in places if place > max(inside)]
    spans = [(first, (max(inside) + beyond[0]) / 2 if beyond else last)] if what.axis else [(place - 0.5, place + 0.5) for place in inside]
    for span in spans:
        panel.axvspan(*span, color=GREY, alpha=0.1, linewidth=0, zorder=0.5)


def _stretches(places: Sequence[int], *, all_joined: bool) -> list[list[int]]:
    """The places that a line joins: all, or those without a leap between them."""
    found: list[list[int]] = []
    for place in places:
        if found and (all_joined or place <= LEAP * found[-1][-1]):
            found[-1].append(place)
        else:
            found.append([place])
    return found


def _peak(rows: Sequence[Row], values: Sequence[float], shown: Quantity) -> float | None:
    """The datasheet's bandwidth, if the rows are of one device and it is not far above them."""
    peaks = [value / row.of_peak for row in rows if row.of_peak and (value := shown.value(row))]
    return max(peaks) if peaks and max(peaks) < min(1.01 * min(peaks), NEAR * max(values, default=0)) else None


def _beside(panel: Axes, curves: Sequence[Curve], what: Slice, shown: Quantity, far: Sequence[Curve]) -> list[Any]:
    """The name of each line with the median of its values. Names of lines below the axis stand at its lower end.

    Returns:
        The entries of a key for the lines that have no room.
    """
    place, ends, overlaid = _places(what), list[axes.End](), len({curve.style.dash for curve in curves}) > 1
    low, high = panel.get_ylim()
    for curve in curves:
        rows = [row for row in curve.rows if shown.value(row)]
        if not rows or curve.backend == shown.over or not curve.style.named:
            continue
        middle = median(shown.value(row) or 0 for row in rows)
        below = curve in far
        y = low + (middle - 1) * (high - low) / 100 if below else min(max(shown.value(rows[-1]) or 0, low), high)
        ends.append(axes.End(curve.label, place(rows[-1]), y, curve.style, number=shown.text(middle), joined=bool(what.axis) and not below))
    if far:
        panel.text(0.99, 0.015, "lines below this axis: see the bandwidth", transform=panel.transAxes, fontsize=6.5, ha="right")
    return [axes.entry(end) for end in axes.beside(panel, ends[::-1], long=overlaid)]


def _answer(runs: Runs, rows: Sequence[Row]) -> str:
    """Who is fastest, by how much, and how close to copy; empty for several runs, whose cells are not compared with each other."""
    if len(runs.sources) > 1:
        return ""
    return "\n".join(
        f"{line.name}: {line.text.removesuffix(', see below')}" for line in answer.lines(rows, standings(rows)) if line.name in ANSWERS
    )


def _below(made: Figure, top: float, runs: Runs, panels: Sequence[Slice], shown: Quantity, key: Sequence[Any], without: int = 0) -> None:
    """The key of the colours, the signs, and what has no line. `without`: cells that have a result, and no fraction of copy."""
    rows = runs.of(*panels)
    others = {curve.backend for curve in runs.curves(*panels) if not curve.style.named and any(map(shown.value, curve.rows))}
    handles = list(key)
    if others:
        handles.append(axes.sign(count(len(others), "other backend"), color=GREY, marker="."))
    if any(map(shown.ends, rows)):
        handles.append(axes.sign(shown.spread, marker="|", markersize=8))
    if any(row.doubtful and row.gbps for row in rows):
        handles.append(axes.sign("doubtful: see its labels", marker="o", markerfacecolor=PAPER))
    if any(row.in_l2 for row in rows):
        handles.append(axes.patch("shaded: the tensors fit L2"))
    lengths = {kind for what in panels if what.axis for kind in kinds({N for _, N, _ in what.shapes}, what.dtype, what.axis)}
    for kind in (POWER, WHOLE, ANY) if lengths - {""} else ():
        if kind in lengths:
            handles.append(axes.sign(f"N: {kind}", linestyle=LINES[kind][1], linewidth=LINES[kind][0]))
    lost = [f"{name}{_lost(some)}" for name, some in grouped(rows, lambda row: row.backend).items() if _lost(some)]
    texts = [f"No result: {', '.join(lost)}"] if lost else []
    if without:
        texts.append(
            f"Without a fraction of copy: {count(without, 'cell')}, where copy is doubtful or slower. --kind bandwidth shows them."
        )
    style.foot(made, top, handles, texts)


def _lost(rows: Sequence[Row]) -> str:
    """How many cells of a backend have no result, by status; empty if it was not available."""
    found = Counter(str(row.status) for row in rows if row.status not in (Status.OK, Status.UNAVAILABLE))
    return f" ({', '.join(f'{number} {status}' for status, number in found.items())})" if found else ""
