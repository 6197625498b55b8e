"""Draws lines over N or M: the bandwidth, and below it the fraction of copy. Lines have their names beside them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2, nan
from typing import TYPE_CHECKING, Any

from softbench.core.outcome import Grade
from softbench.core.text import bandwidth_unit, count
from softbench.report import matrix, style
from softbench.report.slices import Slice
from softbench.report.style import DARK, DASHES, GREY, OTHER, Style
from softbench.results.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABEL = 0.155  # inches between two labels
PANEL_INCHES = (3.6, 2.7)
NEAR = 3  # times the largest bandwidth; a datasheet peak further away is left out, as is one of several devices
SHORT = 8  # points; the axis of a sweep with so few has a tick at each
MEANING = {"N": "N, columns of a row", "M": "M, rows"}


@dataclass(frozen=True, slots=True)
class Curve:
    """One backend of one run."""

    rows: list[Row]
    style: Style
    label: str

    @property
    def yardstick(self) -> bool:
        return self.rows[0].grade == Grade.YARDSTICK


def figure(runs: Sequence[Sequence[Row]], what: Slice, styles: Mapping[str, Style], sources: Mapping[int, str]) -> Figure:
    """A figure with the lines of the named backends in colour and the others in grey. Hollow points are doubtful."""
    from matplotlib import pyplot

    drawn = [curve for source, rows in enumerate(runs) for curve in _curves(what.of(rows), what.axis, styles, source, sources)]
    shown = [row for curve in drawn for row in curve.rows if row.gbps]
    fractions = any(row.of_copy for row in shown if row.grade != Grade.YARDSTICK)
    heights = PANEL_INCHES if fractions else PANEL_INCHES[:1]
    made, axes = pyplot.subplots(
        len(heights), 1, figsize=(8, sum(heights)), sharex=True, squeeze=False, height_ratios=heights, gridspec_kw={"hspace": 0.06}
    )
    panels: list[Axes] = list(axes[:, 0])
    unit, factor = bandwidth_unit([row.gbps for row in shown if row.gbps])
    named = [curve for curve in drawn if curve.style.named or curve.yardstick]
    for curve in drawn:
        _draw(panels[0], curve, what.axis, {row.case: factor * row.gbps for row in curve.rows if row.gbps}, band=curve in named)
        if fractions and not curve.yardstick:
            _draw(panels[1], curve, what.axis, {row.case: row.of_copy for row in curve.rows if row.of_copy and row.gbps}, band=False)
    _missing(panels[0], named, what.axis)
    values = [factor * row.gbps for curve in named for row in curve.rows if row.gbps]
    peaks = {factor * row.gbps / row.of_peak for row in shown if row.of_peak and row.gbps}
    peak = max(peaks) if peaks and max(peaks) < min(1.01 * min(peaks), NEAR * max(values)) else None
    _axes(panels, [*values, *([peak] if peak else [])], sorted({getattr(row, what.axis) for row in shown}))
    first, fixed = shown[0], "N" if what.axis == "M" else "M"
    devices = " and ".join(dict.fromkeys(row.device for row in shown))
    panels[0].set_title(style.plain(f"{what.op} {what.direction}, {what.dtype}, {fixed} = {getattr(first, fixed)}, {devices}"))
    panels[0].set_ylabel(f"bandwidth ({unit}), median")
    if fractions:
        panels[1].set_ylabel("fraction of the yardstick")
        panels[1].axhline(1, color=DARK, linewidth=1)
    panels[-1].set_xlabel(MEANING[what.axis])
    _names(panels[0], named, what.axis, factor, peak)
    _key(panels[-1], [row for curve in named for row in curve.rows], [curve for curve in drawn if curve not in named], shown)
    return made


def _curves(rows: Sequence[Row], axis: str, styles: Mapping[str, Style], source: int, sources: Mapping[int, str]) -> list[Curve]:
    by_name: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: getattr(row, axis)):
        by_name.setdefault(row.backend, []).append(row)
    found = []
    for name, some in by_name.items():
        if any(row.gbps for row in some):
            own = styles.get(name, OTHER)
            dash = DASHES[source % len(DASHES)] if len(sources) > 1 else own.dash
            if some[0].grade == Grade.YARDSTICK:
                own = Style(DARK, "", dash, named=False)
            found.append(Curve(some, Style(own.colour, own.marker, dash, own.named), style.label(name, some, sources[source])))
    return found


def _draw(panel: Axes, curve: Curve, axis: str, values: Mapping[Any, float], *, band: bool) -> None:
    """A line that is thin across missing points, and with hollow points where the figure is doubtful."""
    own, xs = curve.style, [getattr(row, axis) for row in curve.rows]
    ys = [values.get(row.case, nan) for row in curve.rows]
    wide = 1.5 if own.named else 1.0
    panel.plot(xs, ys, color=own.colour, linestyle=own.dash, linewidth=wide, zorder=2 + own.named)
    known = [i for i, y in enumerate(ys) if y == y]
    for left, right in pairwise(known):
        if right > left + 1:  # a thin line joins what a missing point parts
            panel.plot([xs[left], xs[right]], [ys[left], ys[right]], color=own.colour, linewidth=0.5, zorder=2)
    if not own.named:
        if not curve.yardstick:
            panel.plot(xs, ys, color=own.colour, marker=own.marker, linestyle="", markersize=3, zorder=2)
    else:
        for doubtful in (False, True):
            points = [y if matrix.doubtful(row) == doubtful else nan for row, y in zip(curve.rows, ys, strict=True)]
            face = "white" if doubtful else own.colour
            panel.plot(xs, points, color=own.colour, marker=own.marker, linestyle="", markersize=5, markerfacecolor=face, zorder=4)
    if band:
        low, high = (
            [y * row.median_us / us if row.median_us and (us := getattr(row, end)) else y for row, y in zip(curve.rows, ys, strict=True)]
            for end in ("p80_us", "p20_us")
        )
        panel.fill_between(xs, low, high, color=own.colour, alpha=0.13, linewidth=0)


def _missing(panel: Axes, named: Sequence[Curve], axis: str) -> None:
    """A cross at the bottom for each cell of a named backend that has no bandwidth."""
    stacked: dict[int, int] = {}
    for curve in named:
        for row in curve.rows:
            if not row.gbps:
                place = getattr(row, axis)
                y = 0.025 + 0.035 * stacked.get(place, 0)
                stacked[place] = stacked.get(place, 0) + 1
                panel.plot(place, y, marker="x", color=curve.style.colour, markersize=5, transform=panel.get_xaxis_transform())


def _axes(panels: Sequence[Axes], values: Sequence[float], places: Sequence[int]) -> None:
    """Scales and ticks. A sweep over a wide range has powers of two; a short one has a tick at each value."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    short = len(places) <= SHORT
    wide = places[-1] >= (4 if short else 32) * places[0]
    for panel in panels:
        panel.grid(alpha=0.3)
        if wide:
            panel.set_xscale("log", base=2)
        panel.set_ylim(bottom=0)
    if style.crowded(values):
        for panel in panels:
            panel.set_ylim(auto=True)
            panel.set_yscale("log")
    else:
        panels[0].set_ylim(0, 1.05 * max(values))
        panels[-1].set_ylim(top=max(panels[-1].get_ylim()[1], 1.08))  # the yardstick's line stays inside
    if short or wide:
        powers = [2**i for i in range(int(log2(places[0])), int(log2(places[-1])) + 1) if 2**i >= places[0]]
        axis = panels[-1].xaxis
        axis.set_major_locator(FixedLocator(ticks(places if short else powers, wide=wide)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(StrMethodFormatter("{x:.0f}"))


def ticks(values: Sequence[int], *, wide: bool, apart: float = 0.07) -> list[int]:
    """The values that have room for their text: powers of two first, at least `apart` of the axis from each other."""
    at = {value: log2(value) if wide else float(value) for value in values}
    room = apart * (max(at.values()) - min(at.values()))
    chosen: list[int] = []
    for value in sorted(values, key=lambda value: (value & (value - 1) != 0, -value)):
        if all(abs(at[value] - at[other]) >= room for other in chosen):
            chosen.append(value)
    return sorted(chosen)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Ascending places near the wanted ones (ascending, from 0 to 1), at least `gap` apart and within 0 and 1 if there is room."""
    clusters: list[tuple[float, int]] = []

    def centre(total: float, number: int) -> float:
        half = gap * (number - 1) / 2
        return min(max(total / number, half), max(1 - half, half))

    for place in wanted:
        clusters.append((place, 1))
        while len(clusters) > 1:
            (low, before), (high, after) = clusters[-2:]
            if centre(high, after) - centre(low, before) >= gap * (before + after) / 2:
                break
            clusters[-2:] = [(low + high, before + after)]
    return [centre(total, number) + gap * (i - (number - 1) / 2) for total, number in clusters for i in range(number)]


def _names(panel: Axes, named: Sequence[Curve], axis: str, factor: float, peak: float | None) -> None:
    """The name of each line right of the axes, joined with the line's last point."""
    labels: list[tuple[float, tuple[float, float], Style, str]] = []
    inside = panel.transData + panel.transAxes.inverted()
    right = panel.get_xlim()[1]
    if peak:
        panel.axhline(peak, color="0.6", linewidth=1, linestyle="--")
        labels.append((inside.transform((right, peak))[1], (right, peak), Style("0.6", "", "--", named=False), "datasheet peak"))
    for curve in named:
        last = [row for row in curve.rows if row.gbps][-1]
        point = (getattr(last, axis), factor * (last.gbps or 0))
        labels.append((inside.transform(point)[1], point, curve.style, curve.label))
    labels.sort(key=lambda item: item[0])
    height = panel.get_window_extent().height / panel.figure.dpi
    for y, (_, point, own, text) in zip(spread([item[0] for item in labels], LABEL / height), labels, strict=True):
        panel.plot([1.035, 1.075], [y, y], color=own.colour, linestyle=own.dash, linewidth=1.3, transform=panel.transAxes, clip_on=False)
        panel.plot(1.055, y, color=own.colour, marker=own.marker or None, markersize=5, transform=panel.transAxes, clip_on=False)
        arrow = {"arrowstyle": "-", "color": own.colour, "linewidth": 0.6, "alpha": 0.5, "shrinkA": 0, "shrinkB": 2}
        panel.annotate("", point, (1.035, y), textcoords=panel.transAxes, arrowprops=arrow, annotation_clip=False)
        panel.text(1.085, y, text, transform=panel.transAxes, fontsize=8.5, va="center")


def _key(panel: Axes, named: Sequence[Row], others: Sequence[Curve], shown: Sequence[Row]) -> None:
    """Below the axes: the signs that the figure has, and the names of the grey lines, best first."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=DARK, alpha=0.2, linewidth=0, label="p20 to p80")]
    if any(row.gbps and matrix.doubtful(row) for row in named):
        handles.append(Line2D([], [], color=DARK, marker="o", linestyle="", markerfacecolor="white", label="doubtful: see the labels"))
    if any(not row.gbps for row in named):
        handles.append(Line2D([], [], color=DARK, marker="x", linestyle="", label="no result"))
    if others:
        handles.append(Line2D([], [], color=GREY, marker=".", label=count(len(others), "other backend")))
    below = (0.5, -0.52 / PANEL_INCHES[-1])
    panel.legend(handles=handles, loc="upper center", bbox_to_anchor=below, ncols=len(handles), frameon=False, fontsize=8.5)
    if others:
        best = style.ranked(shown)
        names = sorted(dict.fromkeys(curve.rows[0].backend for curve in others), key=best.index)
        text = "\n".join(textwrap.wrap("grey, best first: " + ", ".join(names), 128, break_on_hyphens=False))
        panel.annotate(style.plain(text), (0, 0), (0, -60), "axes fraction", "offset points", fontsize=7, color="0.35", va="top")
