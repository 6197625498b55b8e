"""Draws lines over N or M: the bandwidth, and below it the fraction of copy; or the speed-up. Lines have their names beside them.

A backend has a line for each kind of length (`softbench.report.figure_data.kinds`). Of one run, kinds differ in dash and width. If
several runs or cards are overlaid, kinds differ in width alone: each run has a dash, and a marker unless two backends share a colour.
Where named lines lie on each other, the lower ones are wider and have larger points: each shows as a border of its colour. No point
is moved.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan
from statistics import median
from typing import TYPE_CHECKING

from softbench.core.outcome import Grade
from softbench.core.text import few
from softbench.report import axes, style
from softbench.report.figure_data import ANY, FRACTION, WHOLE, Quantity, Slice, bandwidth, kinds
from softbench.report.style import DASHES, GREY, INK, MARKERS, OTHER, PAPER, Drawing, Style
from softbench.results.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_INCHES = (3.2, 2.2)
WIDTH_INCHES = 5.6
NEAR = 3  # times the largest bandwidth; a datasheet peak further away is left out, as is one of several devices
PEAK = Style(GREY, "", "--", named=False)
MEANING = {"N": "N, columns of a row", "M": "M, rows"}
OTHER_DASH = {WHOLE: ":", ANY: "--"}
"""The dash of a kind of length that is not the first of its figure."""
WIDTHS, SIZES = (1.5, 0.9), (4.5, 3.5)
"""Widths of lines and sizes of points: of the first kind, and of the others."""
OVERLAID_WIDTHS = (2.0, 1.1, 0.5)
"""Widths of lines of each kind, where runs are overlaid."""
ALIKE = 0.015  # of the axis; two lines whose points differ by less, in half of their places, lie on each other
DEEPEST = 3
MANY = 300
"""Points of a line, up to which each has a part of its own. More parts would take minutes."""
LEAP = 8
"""The largest factor between two places that a line of a kind joins. What lies between is another kind's."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One backend of one run."""

    number: int
    """Its place in `Drawing.series`."""
    rows: list[Row]
    style: Style
    label: str

    overlaid: bool = False
    """True if there are several runs; then the dash is that of the run for every kind of length."""

    def dash(self, number: int, kind: str) -> str:
        """The dash of a kind of length, the first of which has the number 0."""
        return OTHER_DASH[kind] if number and self.style.dash == "-" and not self.overlaid else self.style.dash

    def width(self, number: int) -> float:
        """The width of its line of a kind of length."""
        return OVERLAID_WIDTHS[number] if self.overlaid else WIDTHS[number > 0]

    @property
    def yardstick(self) -> bool:
        return self.rows[0].grade == Grade.YARDSTICK


@style.look()
def figure(
    runs: Sequence[Sequence[Row]], what: Slice, styles: Mapping[str, Style], sources: Mapping[int, str], shown: Quantity | None = None
) -> Drawing:
    """The lines of bandwidth, and in a second panel of the fraction of copy if there is one; or the lines of `shown`.

    The named backends have colours, and the others are grey. Hollow points are doubtful.
    """
    quantities = [shown] if shown else [bandwidth([row for rows in runs for row in what.of(rows)]), FRACTION]
    first = quantities[0]
    every = _curves(runs, what, styles, sources)
    curves = [curve for curve in every if any(map(first.value, curve.rows))]
    failed = [f"{curve.label} ({lost})" for curve in every if (lost := style.lost(curve.rows))]
    curves = [curve for curve in curves if not (first.over and curve.rows[0].backend == first.over)]
    rows = [row for curve in curves for row in curve.rows if first.value(row)]
    if not any(map(quantities[-1].value, rows)):
        quantities.pop()
    heights = PANEL_INCHES[: len(quantities)]
    made, lines = style.subplots(
        len(heights), 1, (WIDTH_INCHES, sum(heights)), sharex=True, height_ratios=heights, gridspec_kw={"hspace": 0.07}
    )
    panels: list[Axes] = [panel for (panel,) in lines]
    named = [curve for curve in curves if curve.style.named or curve.yardstick]
    places = sorted({getattr(row, what.axis) for row in rows})
    lengths = kinds(places, what.dtype, what.axis)
    points: dict[str, Row] = {}
    peak = None if shown else _peak(rows, [value for curve in named for row in curve.rows if (value := first.value(row))], first)
    for number, (panel, quantity) in enumerate(zip(panels, quantities, strict=True)):
        values = [value for curve in named for row in curve.rows if (value := quantity.value(row))]
        if quantity.over:
            panel.set_yscale("log")
            axes.ratios(panel.yaxis, panel.set_ylim, values)
        else:
            axes.amounts(panel, [*values, *([peak] if peak and not number else [])], least=1.08 if number else 0)
        depths = _depths([curve for curve in named if curve.style.named], what.axis, quantity, panel)
        for curve in curves:
            points |= _draw(panel, f"series-{curve.number}-p{number}", curve, what.axis, quantity, lengths, depths.get(curve.number, 0))
        panel.set_ylabel(quantity.label)
        if number or quantity.over:
            panel.axhline(1, color=INK, linewidth=1, zorder=1.9)
    _missing(panels[0], named, what.axis)
    axes.places(panels[-1], places)
    if not shown:
        _shade_l2(panels[0], {getattr(row, what.axis) for row in rows if row.in_l2}, places)
    panels[0].set_title(title(what, rows))
    panels[-1].set_xlabel(MEANING[what.axis])
    _name(panels, curves, what.axis, first, lengths, peak, failed)
    return Drawing(what.name, made, {curve.number: curve.label for curve in curves}, points)


def title(what: Slice, rows: Sequence[Row]) -> str:
    """What the figure shows, and on which device."""
    return f"{what.op} {what.direction}, {what.dtype}, {what.fixed}, {style.devices(rows)}"


def _curves(runs: Sequence[Sequence[Row]], what: Slice, styles: Mapping[str, Style], sources: Mapping[int, str]) -> list[Curve]:
    """The backends of each run that have rows, in the order of their numbers."""
    numbers, found = style.numbers([row for rows in runs for row in rows]), []
    overlaid, colours = len(sources) > 1, [one.colour for one in styles.values() if one.named]
    marked = overlaid and len(set(colours)) == len(colours)  # a colour shows the backend without its marker
    for source, rows in enumerate(map(what.of, runs)):
        for name, number in numbers.items():
            some = sorted((row for row in rows if row.backend == name), key=lambda row: int(getattr(row, what.axis)))
            if some:
                own = styles.get(name, OTHER)
                dash = DASHES[source % len(DASHES)] if overlaid else own.dash
                marker = MARKERS[source % len(MARKERS)] if marked and own.named else own.marker
                yardstick = some[0].grade == Grade.YARDSTICK
                styled = Style(INK, "", dash, named=False) if yardstick else Style(own.colour, marker, dash, own.named)
                found.append(Curve(source * len(numbers) + number, some, styled, style.label(name, some, sources[source]), overlaid))
    return found


def _draw(
    panel: Axes, gid: str, curve: Curve, axis: str, shown: Quantity, lengths: Mapping[str, Sequence[int]], depth: int
) -> dict[str, Row]:
    """A line for each kind of length, thin across missing points. Then its points, of which the doubtful ones are hollow."""
    own, by_place = curve.style, {getattr(row, axis): row for row in curve.rows}
    values = {place: value for place, row in by_place.items() if (value := shown.value(row))}
    over_others = 2 + own.named - 0.1 * depth
    for number, (kind, members) in enumerate(lengths.items()):
        dash = curve.dash(number, kind)
        width = curve.width(number) * (1 if own.named else 0.7) + (0.8 if number else 1.3) * depth
        for part, xs in enumerate(_stretches([place for place in members if place in by_place], first=number == 0)):
            ys = [values.get(place, nan) for place in xs]
            name = f"{gid}-line-{number}" + (f"-{part}" if part else "")
            panel.plot(xs, ys, color=own.colour, linestyle=dash, linewidth=width, zorder=over_others, gid=name)
            known = [i for i, y in enumerate(ys) if y == y]
            for left, right in pairwise(known):
                if right > left + 1:  # a thin line joins what a missing point parts
                    panel.plot([xs[left], xs[right]], [ys[left], ys[right]], color=own.colour, linewidth=0.5, zorder=over_others)
    if own.named or curve.yardstick:
        if shown.over:
            _intervals(panel, curve, axis, shown)
        else:
            _bands(panel, curve, axis, shown, lengths)
    return _points(panel, gid, curve, values, by_place, lengths, depth)


def _points(
    panel: Axes,
    gid: str,
    curve: Curve,
    values: Mapping[int, float],
    rows: Mapping[int, Row],
    lengths: Mapping[str, Sequence[int]],
    depth: int,
) -> dict[str, Row]:
    """A part for each point, with its row. Many points have few parts: the full and the hollow ones of each kind of length."""
    own = curve.style
    single = len(values) <= MANY
    kinds_of = {place: number for number, members in enumerate(lengths.values()) for place in members}
    groups: dict[tuple[str, bool, int], list[int]] = {}
    for number, place in enumerate(sorted(values)):
        kind = kinds_of[place]
        hollow = own.named and rows[place].doubtful
        part = f"point-{number}" if single else f"points-{kind}" + "-hollow" * hollow
        groups.setdefault((f"{gid}-{part}", hollow, kind), []).append(place)
    for (name, hollow, kind), places in groups.items():
        panel.plot(
            places,
            [values[place] for place in places],
            color=own.colour,
            marker=own.marker or ".",
            linestyle="",
            zorder=3.5 + own.named - 0.1 * depth,
            gid=name,
            markersize=SIZES[kind > 0] + 2.2 * depth if own.named else 3 if own.marker else 1,
            markerfacecolor=PAPER if hollow else own.colour,
            markeredgewidth=1,
        )
    return {name: rows[places[0]] for (name, _, _), places in groups.items()} if single else {}


def _intervals(panel: Axes, curve: Curve, axis: str, shown: Quantity) -> None:
    """The interval of each point."""
    found = [(getattr(row, axis), *ends) for row in curve.rows if shown.value(row) and (ends := shown.ends(row))]
    if found:
        places, lows, highs = zip(*found, strict=True)
        panel.vlines(places, lows, highs, colors=curve.style.colour, linewidth=1, zorder=2)


def _bands(panel: Axes, curve: Curve, axis: str, shown: Quantity, lengths: Mapping[str, Sequence[int]]) -> None:
    """The spread of the samples around each line."""
    ends = {getattr(row, axis): found for row in curve.rows if (found := shown.ends(row))}
    for number, members in enumerate(lengths.values()):
        for xs in _stretches([place for place in members if place in ends], first=number == 0):
            lows, highs = [ends[x][0] for x in xs], [ends[x][1] for x in xs]
            if len(xs) == 1:
                panel.plot([*xs, *xs], [*lows, *highs], color=curve.style.colour, alpha=0.4, linewidth=1, zorder=1)
            panel.fill_between(xs, lows, highs, color=curve.style.colour, alpha=0.12, linewidth=0, zorder=1)


def _stretches(places: Sequence[int], *, first: bool) -> list[list[int]]:
    """The places that a line joins: all of the first kind, and else those without a leap between them."""
    found: list[list[int]] = []
    for place in places:
        if found and (first or place <= LEAP * found[-1][-1]):
            found[-1].append(place)
        else:
            found.append([place])
    return found


def _depths(curves: Sequence[Curve], axis: str, shown: Quantity, panel: Axes) -> dict[int, int]:
    """How many later lines lie on each line, at most DEEPEST."""
    found = [{getattr(row, axis): value for row in curve.rows if (value := shown.value(row))} for curve in curves]
    depths = {}
    for i, curve in enumerate(curves):
        above = 0
        for later, other in zip(curves[i + 1 :], found[i + 1 :], strict=True):
            if later.style.colour == curve.style.colour:  # the same backend of another run, which a border of its colour would not show
                continue
            common = [axes.apart(panel, value, other[place]) for place, value in found[i].items() if place in other]
            above += bool(common) and median(common) < ALIKE
        depths[curve.number] = min(above, DEEPEST)
    return depths


def _missing(panel: Axes, named: Sequence[Curve], axis: str) -> None:
    """A cross at the bottom for each cell of a named backend that has no result."""
    stacked: dict[int, int] = {}
    for curve in named:
        for row in curve.rows:
            if not row.gbps:
                place = getattr(row, axis)
                y = 0.025 + 0.04 * stacked.get(place, 0)
                stacked[place] = stacked.get(place, 0) + 1
                panel.plot(place, y, marker="x", color=curve.style.colour, markersize=4.5, transform=panel.get_xaxis_transform(), zorder=5)


def _shade_l2(panel: Axes, inside: Collection[int], places: Sequence[int]) -> None:
    """Shade the places whose tensors fit L2, up to halfway to the next place: their bandwidth is not the memory's."""
    if inside:
        first, last = panel.get_xlim()
        beyond = [place for place in places if place > max(inside)]
        end = (max(inside) + beyond[0]) / 2 if beyond else last
        panel.axvspan(first, end, color=GREY, alpha=0.1, linewidth=0, zorder=0.5, gid="l2")
        panel.set_xlim(first, last)
        panel.text(0.01, 0.02, "the tensors fit L2", transform=panel.transAxes, fontsize=6.5)


def _peak(rows: Sequence[Row], values: Sequence[float], shown: Quantity) -> float | None:
    """The datasheet's bandwidth, if the rows are of one device and it is not far above them."""
    peaks = [value / row.of_peak for row in rows if row.of_peak and (value := shown.value(row))]
    return max(peaks) if peaks and max(peaks) < min(1.01 * min(peaks), NEAR * max(values, default=0)) else None


def _name(
    panels: Sequence[Axes],
    curves: Sequence[Curve],
    axis: str,
    shown: Quantity,
    lengths: Mapping[str, Sequence[int]],
    peak: float | None,
    failed: Sequence[str],
) -> None:
    """The names of the lines, the legend with the signs, the names of the grey lines, and the `failed` labels."""
    rows = [row for curve in curves for row in curve.rows if shown.value(row)]
    best = style.ranked(rows)
    others = [curve for curve in curves if not (curve.style.named or curve.yardstick)]
    named = sorted(
        (curve for curve in curves if curve not in others), key=lambda curve: not curve.yardstick and best.index(curve.rows[0].backend)
    )
    ends = []
    for curve in named:
        last = [row for row in curve.rows if shown.value(row)][-1]
        ends.append(axes.End(curve.label, getattr(last, axis), shown.value(last) or 0, curve.style, f"series-{curve.number}"))
    if peak:
        panels[0].axhline(peak, color=GREY, linewidth=1, linestyle="--")
        ends.append(axes.End("datasheet peak", panels[0].get_xlim()[1], peak, PEAK, "peak"))
    overlaid = any(curve.overlaid for curve in curves)
    entries = [axes.entry(end) for end in axes.beside(panels[0], ends, long=overlaid)]
    of_named = [row for curve in named for row in curve.rows]
    entries += axes.signs(
        spread=shown.spread if any(map(shown.ends, rows)) else "",
        segment=bool(shown.over),
        doubtful=any(row.gbps and row.doubtful for row in of_named),
        missing=any(not row.gbps for row in of_named),
        others=len(others),
    )
    if len(lengths) > 1:
        for number, kind in enumerate(lengths):
            dash, wide = OTHER_DASH[kind] if number and not overlaid else "-", curves[0].width(number)
            entries.append(axes.sign(f"N: {kind}", linestyle=dash, linewidth=wide))
    axes.legend(panels[-1], entries, 0.42, long=overlaid)
    names = sorted(dict.fromkeys(curve.rows[0].backend for curve in others), key=best.index)
    texts = [f"grey, best first: {', '.join(names)}"] if others else []
    texts += [f"without any result: {few(failed)}"] if failed else []
    axes.texts_below(panels[-1], texts, -(-len(entries) // axes.PER_LINE))
