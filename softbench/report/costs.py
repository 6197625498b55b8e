"""Draws one bar per backend: its mean fraction of copy."""

from __future__ import annotations

from collections.abc import Sequence

from softbench.core.errors import ResultsError
from softbench.report import style
from softbench.report.style import COLOURS, Drawing
from softbench.results import by_backend
from softbench.results.rows import Row

BAR_INCHES, PANEL_INCHES = 0.19, 3.2
NAME_INCHES = 0.055  # of a character


@style.look()
def figure(rows: Sequence[Row]) -> Drawing:
    """A panel per direction, best backend first: the mean fraction of copy over its cells.

    Raises:
        ResultsError: no cell has a fraction.
    """
    costs = {name: cost for name, cost in by_backend.by_backend(rows).items() if cost.of_copy}
    passes = list(dict.fromkeys(name for cost in costs.values() for name in cost.of_copy))
    if not passes:
        raise ResultsError("no cell has a fraction of copy, so there is nothing to draw")
    titles = {row.of_pass: f"{row.op} {row.direction}" for row in rows}
    numbers = style.numbers(rows)
    names = NAME_INCHES * max(len(style.label(name, ())) for name in costs)
    size = ((PANEL_INCHES + names) * len(passes), 1.5 + BAR_INCHES * len(costs))
    made, (panels,) = style.subplots(1, len(passes), size, layout="constrained")
    for number, (panel, of_pass) in enumerate(zip(panels, passes, strict=True)):
        bars = sorted((cost.of_copy[of_pass], name) for name, cost in costs.items() if of_pass in cost.of_copy)
        colour = COLOURS[number % len(COLOURS)]
        drawn = panel.barh([style.label(name, ()) for _, name in bars], [fraction for fraction, _ in bars], color=colour)
        for bar, (_, name) in zip(drawn, bars, strict=True):
            bar.set_gid(f"series-{numbers[name]}-p{number}-point-0")
        panel.bar_label(drawn, fmt="{:.0%}", padding=2, fontsize=7.5)
        panel.tick_params(axis="y", labelsize=7.5)
        panel.set_xlim(0, 1.1)
        panel.margins(y=0.01)
        panel.grid(visible=False, axis="y")
        panel.set_title(titles[of_pass])
    times = " by device times" if any(cost.by_device for cost in costs.values()) else ""
    means = "geometric mean over its measured cells, each at most 1; higher is better"
    made.supxlabel(f"fraction of the same-bytes yardstick{times}, {rows[0].device}\n{means}", fontsize=8.5)
    return Drawing("", made, {numbers[name]: style.label(name, ()) for name in costs})
