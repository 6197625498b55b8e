"""Draws one row per backend and one panel per shape, for shapes that make no line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from softbench.core.outcome import FAILURES, Grade, Status
from softbench.core.text import bandwidth_unit, percent
from softbench.report import matrix, style
from softbench.report.slices import Slice, shape as shape_of
from softbench.report.style import DARK, OTHER, Style
from softbench.results.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_INCHES = 0.19
PANEL_INCHES = 3.1


def figure(runs: Sequence[Sequence[Row]], what: Slice, styles: Mapping[str, Style], sources: Mapping[int, str]) -> Figure:
    """A figure with the best backend first; the yardstick is a line in each panel. Hollow points are doubtful."""
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    kept = [what.of(rows) for rows in runs]
    every = [row for rows in kept for row in rows]
    drawn = {row.backend for row in every if row.gbps}
    names = [*style.ranked(every), *(name for name in styles if name not in drawn and any(row.backend == name for row in every))]
    lines = [(name, source) for name in names for source in sources if any(row.backend == name for row in kept[source])]
    height = 1.2 + ROW_INCHES * len(lines)
    size = (PANEL_INCHES * len(what.shapes), height)
    made, axes = pyplot.subplots(1, len(what.shapes), figsize=size, sharey=True, squeeze=False)
    made.subplots_adjust(wspace=0.06, top=1 - 0.7 / height, bottom=0.5 / height)
    unit, factor = bandwidth_unit([row.gbps for row in every if row.gbps])
    for panel, shape in zip(axes[0], what.shapes, strict=True):
        cells = [{row.backend: row for row in rows if shape == shape_of(row)} for rows in kept]
        _limits(panel, [factor * row.gbps for rows in cells for row in rows.values() if row.gbps])
        _panel(panel, [(styles.get(name, OTHER), cells[source].get(name)) for name, source in lines], factor)
        for row in (row for rows in cells for row in rows.values() if row.grade == Grade.YARDSTICK):
            panel.axvline(factor * (row.gbps or 0), color=DARK, linewidth=1)
        panel.set_title(shape[2] or f"M = {shape[0]}, N = {shape[1]}", fontsize=9)
        panel.set_xlabel(unit, fontsize=8)
    first = axes[0][0]
    texts = [style.label(name, [row for row in kept[source] if row.backend == name], sources[source]) for name, source in lines]
    first.set_yticks(range(len(lines)), texts, fontsize=7)
    first.set_ylim(len(lines) - 0.4, -0.6)
    for text, (name, _) in zip(first.get_yticklabels(), lines, strict=True):
        text.set_color(styles[name].colour if name in styles and styles[name].named else DARK)
    devices = " and ".join(dict.fromkeys(row.device for row in every))
    made.suptitle(style.plain(f"{what.op} {what.direction}, {what.dtype}, {devices}"), fontsize=10, y=1 - 0.15 / height)
    handles = [
        Line2D([], [], color=DARK, linewidth=1, label="yardstick"),
        Line2D([], [], color=DARK, marker="o", markersize=5, linewidth=1, label="median, p20 to p80; percentage of the yardstick"),
    ]
    if any(row.gbps and matrix.doubtful(row) for row in every):
        label = "doubtful: see the labels"
        handles.append(Line2D([], [], color=DARK, marker="o", markersize=5, linestyle="", markerfacecolor="white", label=label))
    made.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.05 / height), ncols=len(handles), frameon=False, fontsize=8)
    return made


def _limits(panel: Axes, values: Sequence[float]) -> None:
    """An axis with room for the percentages at its right end."""
    if style.crowded(values):
        panel.set_xscale("log")
        panel.set_xlim(min(values) / 2, max(values) * (max(values) / min(values)) ** 0.35)
    else:
        panel.set_xlim(0, 1.25 * max(values, default=1))


def _panel(panel: Axes, rows: Sequence[tuple[Style, Row | None]], factor: float) -> None:
    for line, (drawn, row) in enumerate(rows):
        if row is not None and row.gbps and row.median_us:
            face = "white" if matrix.doubtful(row) else drawn.colour
            low, high = (factor * row.gbps * row.median_us / (us or row.median_us) for us in (row.p80_us, row.p20_us))
            panel.plot([low, high], [line, line], color=drawn.colour, linewidth=1.2)
            marker = drawn.marker if drawn.named else "o"
            panel.plot(factor * row.gbps, line, marker=marker, color=drawn.colour, markerfacecolor=face, markersize=5)
            if row.of_copy:
                panel.text(0.985, line, percent(row.of_copy), transform=panel.get_yaxis_transform(), fontsize=6.5, ha="right", va="center")
        elif row is not None and row.status != Status.UNAVAILABLE:
            word = row.status if row.status != Status.OK else "no bandwidth"
            colour = style.COLOURS[1] if row.status in FAILURES else "0.5"
            panel.text(0.02, line, word, transform=panel.get_yaxis_transform(), fontsize=6.5, color=colour, va="center")
    panel.grid(alpha=0.25)
    panel.set_axisbelow(True)
    panel.tick_params(axis="x", labelsize=7)
    panel.tick_params(axis="y", length=0)
