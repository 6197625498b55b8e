"""Draws one row per backend and one panel per shape, for shapes that make no line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from softbench.core.outcome import FAILURES, Grade, Status
from softbench.report import axes, figure_data, style
from softbench.report.figure_data import Quantity, Slice, shape as shape_of
from softbench.report.style import INK, OTHER, PAPER, Drawing, Style
from softbench.results.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_INCHES = 0.19
HEAD_INCHES = 0.75  # of a title and an axis
SHORT = 14  # lines; panels of more are side by side
PANEL_INCHES = 2.3


@style.look()
def figure(
    runs: Sequence[Sequence[Row]], what: Slice, styles: Mapping[str, Style], sources: Mapping[int, str], shown: Quantity | None = None
) -> Drawing:
    """The best backend first, by bandwidth or by `shown`; the yardstick is a line in each panel. Hollow points are doubtful."""
    kept = [what.of(rows) for rows in runs]
    every = [row for rows in kept for row in rows]
    shown = shown or figure_data.bandwidth(every)
    drawn = {row.backend for row in every if row.gbps}
    names = [*style.ranked(every), *(name for name in styles if name not in drawn and any(row.backend == name for row in every))]
    lines = [(name, source) for name in names for source in sources if any(row.backend == name for row in kept[source])]
    lines = [line for line in lines if line[0] != shown.over]
    places = style.numbers([row for rows in runs for row in rows])
    numbers = {(name, source): source * len(places) + places[name] for name, source in lines}
    across = len(what.shapes) if len(lines) > SHORT else min(2, len(what.shapes))
    down = -(-len(what.shapes) // across)
    height = down * (HEAD_INCHES + ROW_INCHES * len(lines)) + 0.35
    made, grid = style.subplots(down, across, (1 + PANEL_INCHES * across, height), sharey=True)
    gap = HEAD_INCHES / (ROW_INCHES * max(1, len(lines)))  # none if only the yardstick has a bandwidth
    made.subplots_adjust(wspace=0.09, hspace=gap, top=1 - 0.6 / height, bottom=0.4 / height)
    panels = [panel for line in grid for panel in line]
    for panel in panels[len(what.shapes) :]:
        panel.set_visible(False)
    points: dict[str, Row] = {}
    for number, (panel, shape) in enumerate(zip(panels, what.shapes, strict=False)):
        cells = [{row.backend: row for row in rows if shape == shape_of(row)} for rows in kept]
        values = [value for rows in cells for row in rows.values() if row.backend != shown.over and (value := shown.value(row))]
        _limits(panel, values, shown)
        for line, key in enumerate(lines):
            if row := cells[key[1]].get(key[0]):
                gid = f"series-{numbers[key]}-p{number}-point-0"
                if _point(panel, line, styles.get(key[0], OTHER), row, shown, gid):
                    points[gid] = row
        for row in (row for rows in cells for row in rows.values() if row.grade == Grade.YARDSTICK):
            panel.axvline(shown.value(row) or 0, color=INK, linewidth=1)
        if shown.over:
            panel.axvline(1, color=INK, linewidth=1, linestyle="--")
        panel.tick_params(axis="x", labelsize=7.5)
        panel.tick_params(axis="y", length=0)
        in_l2 = not shown.over and any(row.in_l2 for rows in cells for row in rows.values())
        panel.set_title((shape[2] or f"M = {shape[0]}, N = {shape[1]}") + " (fits L2)" * in_l2, fontsize=9)
        panel.set_xlabel(shown.label, fontsize=8)
    labels = {key: style.label(key[0], [row for row in kept[key[1]] if row.backend == key[0]], sources[key[1]]) for key in lines}
    panels[0].set_ylim(len(lines) - 0.4, -0.6)
    for first, *_ in grid:
        first.set_yticks(range(len(lines)), labels.values(), fontsize=7.5)
    made.suptitle(f"{what.op} {what.direction}, {what.dtype}, {style.devices(every)}", fontsize=10, y=1 - 0.1 / height)
    made.legend(handles=_key(every, shown), loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, frameon=False, fontsize=8)
    return Drawing(what.name, made, {numbers[key]: label for key, label in labels.items()}, points)


def _key(rows: Sequence[Row], shown: Quantity) -> list[object]:
    """The entries of the legend."""
    handles = [axes.sign("yardstick", linestyle="-")] if any(row.grade == Grade.YARDSTICK for row in rows) else []
    beside = "speed-up" if shown.over else "percentage of the yardstick"
    handles.append(axes.sign(f"median, {shown.spread}; {beside}", marker="o", linestyle="-"))
    if any(row.gbps and row.doubtful for row in rows):
        handles.append(axes.sign("doubtful: see the labels", marker="o", markerfacecolor=PAPER))
    return handles


def _limits(panel: Axes, values: Sequence[float], shown: Quantity) -> None:
    """An axis with room for the numbers at its right end."""
    if shown.over:
        panel.set_xscale("log")
        axes.ratios(panel.xaxis, lambda low, high: panel.set_xlim(low, high * (high / low) ** 0.3), values)
    elif axes.crowded(values):
        panel.set_xscale("log")
        low, high = min(values) / 2, max(values) * (max(values) / min(values)) ** 0.35
        panel.set_xlim(low, high)
        axes.powers(panel.xaxis, low, high)
    else:
        panel.set_xlim(0, 1.25 * max(values, default=1))


def _point(panel: Axes, line: int, drawn: Style, row: Row, shown: Quantity, gid: str) -> bool:
    """The point of one backend, or the word of its status. True if there is a point."""
    across = panel.get_yaxis_transform()
    value = shown.value(row)
    if value is not None:
        low, high = shown.ends(row) or (value, value)
        panel.plot([low, high], [line, line], color=drawn.colour, linewidth=1.2)
        face = PAPER if row.doubtful else drawn.colour
        marker = drawn.marker if drawn.named else "o"
        panel.plot(value, line, marker=marker, color=drawn.colour, markerfacecolor=face, markersize=4.5, gid=gid)
        panel.text(0.985, line, figure_data.number_text(shown, row), transform=across, fontsize=6.5, ha="right", va="center")
    elif row.status != Status.UNAVAILABLE:
        word = row.status if row.status != Status.OK else "no bandwidth"
        weight = "bold" if row.status in FAILURES else "normal"  # a colour would be too pale for text of this size
        panel.text(0.02, line, word, transform=across, fontsize=6.5, fontweight=weight, va="center")
    return value is not None
