"""Draws what each backend costs: time over that of copy, host time, the first call, and memory. In each panel, left is better."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import TYPE_CHECKING

from softbench.core.case import CaseKey
from softbench.core.errors import ResultsError
from softbench.core.outcome import Grade
from softbench.core.text import count
from softbench.report import axes, colours, style
from softbench.report.style import INK, PAPER
from softbench.results.columns import Row, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_INCHES, LINE_INCHES, GAP_INCHES = 1.9, 0.19, 0.3


@dataclass(frozen=True, slots=True)
class Cost:
    """A column of the figure."""

    label: str
    of: Callable[[Row], float | None]
    """The cost of a cell."""
    one: bool = False
    """True for a ratio, whose axis has a line at 1."""
    builds: bool = False
    """True for the time of a build, which a cache makes short."""


@style.look()
def figure(rows: Sequence[Row]) -> Figure:
    """A row for each backend with a result, by the median time over copy's. A line reaches from the least to the most of its cells.

    Raises:
        ResultsError: no cell has a cost.
    """
    by_backend = grouped((row for row in rows if row.timed and row.grade != Grade.YARDSTICK), lambda row: row.backend)
    every = {cost: {name: values for name, some in by_backend.items() if (values := _values(cost, some))} for cost in _costs(rows)}
    found = {cost: values for cost, values in every.items() if values}
    if not found:
        raise ResultsError("no cell has a cost, so there is nothing to draw")
    first = next(iter(found.values()))
    names = sorted(by_backend, key=lambda name: median(first[name]) if name in first else inf)
    made = style.canvas()
    height = LINE_INCHES * (len(names) + 1)
    for number, (cost, of_backend) in enumerate(found.items()):
        panel = style.panel(made, number * (PANEL_INCHES + GAP_INCHES), 0, PANEL_INCHES, height)
        panel.set_ylim(len(names), -1)
        panel.set_yticks(range(len(names)), [style.label(name, ()) for name in names] if not number else [], fontsize=7.5)
        panel.tick_params(axis="y", length=0)
        panel.set_title(cost.label, fontsize=8.5, loc="left")
        cached = {name for name, some in by_backend.items() if all(row.build_cache != "cold" for row in some)} if cost.builds else set()
        _column(panel, cost, names, of_backend, cached)
    cells = max(map(len, by_backend.values()))
    answer = f"Median of up to {count(cells, 'cell')} of a backend, with the least and the most; left is better."
    style.head(made, f"costs of each backend, {style.devices(rows)}", answer, up=0.25)
    handles = [axes.sign("cold builds", marker="o"), axes.sign("cached, or nothing to compile", marker="o", markerfacecolor=PAPER)]
    style.foot(made, height + 0.4, handles if any(cost.builds for cost in found) else [], [])
    return made


def _costs(rows: Sequence[Row]) -> list[Cost]:
    least: dict[CaseKey, int] = {}  # of the memory that backends allocate in each case, which is that of the outputs
    for row in rows:
        if row.timed and row.peak_bytes:
            least[row.case] = min(row.peak_bytes, least.get(row.case, row.peak_bytes))

    def memory(row: Row) -> float | None:
        return row.peak_bytes / least[row.case] if row.peak_bytes else None

    return [
        Cost("time of a call over copy's", lambda row: 1 / row.of_copy if row.of_copy else None, one=True),
        Cost("host time of a call (us)", lambda row: row.host_us),
        Cost("prepare and first call (s)", lambda row: row.build_s, builds=True),
        Cost("peak memory over the least", memory, one=True),
    ]


def _values(cost: Cost, rows: Sequence[Row]) -> list[float]:
    return [value for row in rows if (value := cost.of(row))]


def _column(panel: Axes, cost: Cost, names: Sequence[str], found: Mapping[str, Sequence[float]], cached: Collection[str]) -> None:
    """One cost of all backends. The points of `cached` ones are hollow."""
    panel.set_xscale("log")
    every = [value for values in found.values() for value in values]
    if cost.one:
        axes.ratios(panel.xaxis, panel.set_xlim, every)
        panel.axvline(1, color=INK, linewidth=0.9)
    else:
        low, high = min(every) / 1.5, max(every) * 1.5
        panel.set_xlim(low, high)
        axes.powers(panel.xaxis, low, high)
    panel.tick_params(axis="x", labelsize=7)
    for line, name in enumerate(names):
        if values := found.get(name):
            own = colours.look(name)
            panel.plot([min(values), max(values)], [line, line], color=own.light, linewidth=1)
            face = PAPER if name in cached else own.light
            panel.plot(median(values), line, marker="o", color=own.light, markersize=4.5, markerfacecolor=face)
