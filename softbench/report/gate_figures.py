"""Draws the gate's report as a forest plot, each cell's ratio with its interval over the band of the margin; and the power curve."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from softbench.core.errors import ResultsError
from softbench.gate.self_test import SelfTest
from softbench.gate.verdicts import GateReport, State
from softbench.report import style
from softbench.report.style import FAINT, INK, PAPER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_CELLS = 80  # of a legible figure; the cells furthest from 1 are drawn
COLOUR = {
    **dict.fromkeys((State.SLOWER, State.BROKEN, State.MISSING, State.FAILED), "#D55E00"),
    **{State.FASTER: "#009E73", State.CLOCK: "#E69F00", State.AMBIGUOUS: "#E69F00"},
}
CELL, LEVEL = "#56B4E9", "#0072B2"
"""The colours of a power curve: a cell, and all cells. All are of Okabe and Ito's palette, which colour-blind readers can tell apart."""
MARKER = {State.SLOWER: ">", State.FASTER: "<", State.CLOCK: "s", State.AMBIGUOUS: "s"}


def write(report: GateReport, out: Path) -> Path:
    """Draw the report's ratios into a file.

    Raises:
        UsageError: a format that is not in `style.FORMATS`.
        ResultsError: no cell has a ratio, or the file cannot be written.
    """
    style.check_format(out, "--plot")
    if all(verdict.ratio is None for verdict in report.verdicts):
        raise ResultsError(f"--plot {out}: no cell has a ratio, so there is nothing to draw")
    return style.saved(figure(report), out, "--plot")


@style.look()
def figure(report: GateReport) -> Figure:
    """The report's cells in its order: regressions first. A cell without a ratio has its state as a text.

    At most MAX_CELLS, which are those that fail, then those without a ratio, then those furthest from 1.

    Raises:
        ResultsError: no cell has a ratio.
    """
    drawn = list(report.verdicts)
    if all(verdict.ratio is None for verdict in drawn):
        raise ResultsError("no cell has a ratio, so there is nothing to draw")
    left_out = len(drawn) - MAX_CELLS
    if left_out > 0:
        by_interest = sorted(drawn, key=lambda v: (not v.fails, v.state in (State.SAME, State.UNMEASURED), -abs((v.ratio or math.inf) - 1)))
        kept = set(map(id, by_interest[:MAX_CELLS]))
        drawn = [verdict for verdict in drawn if id(verdict) in kept]
    made, axes = _panel(7.5, 1.3 + 0.2 * len(drawn))
    axes.grid(visible=False, axis="y")
    for row, verdict in enumerate(drawn):
        if verdict.ratio is None:
            axes.text(1, row, " no ratio", color=COLOUR.get(verdict.state, INK), va="center", fontsize=7.5, gid=f"verdict-{row}")
            continue
        ratio, margin = verdict.ratio, verdict.margin or report.rules.margin
        low, high = verdict.interval or (ratio, ratio)
        colour, marker = COLOUR.get(verdict.state, INK), MARKER.get(verdict.state, "o")
        axes.barh(row, margin + margin / (1 + margin), left=1 / (1 + margin), height=1, color=FAINT, zorder=0)
        axes.plot([low, high], [row, row], color=colour, linewidth=1.5)
        face = colour if verdict.gated else PAPER
        axes.plot(ratio, row, marker=marker, color=colour, markerfacecolor=face, markersize=5, gid=f"verdict-{row}")
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks(range(len(drawn)), [f"{v.cell.backend}  {v.cell.case}: {v.state}" for v in drawn], fontsize=7.5)
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    axes.set_xlabel("latency new / old, 95 % interval; grey: the margin; hollow: advisory; right is slower", fontsize=8)
    title = f"{report.what}: {report.summary.partition(':')[0]}" + (
        f" ({left_out} cells of least interest left out)" if left_out > 0 else ""
    )
    axes.set_title(title, fontsize=9, wrap=True)
    return made


def _panel(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many inches with one panel."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    panel = made.subplots()
    panel.tick_params(color=INK, labelcolor=INK)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid()
    return made, panel


def write_power(result: SelfTest, out: Path) -> Path:
    """Draw the power curve: the share found over the measured slowdown, with a point per cell and a lower bound per level.

    Raises:
        ResultsError: no slowdown was injected, or the file cannot be written.
    """
    if not result.power:
        raise ResultsError(f"--plot {out}: no slowdown was injected, so there is no curve to draw")
    return style.saved(_power_curve(result), out, "--plot")


@style.look()
def _power_curve(result: SelfTest) -> Figure:
    figure, axes = _panel(9, 5)
    axes.axvspan(0, 100 * result.margin, color=FAINT, label="the margin")
    xs, ys = zip(*[(100 * x, y) for x, y in result.points], strict=True)
    axes.plot(xs, ys, "o", color=CELL, markersize=3, alpha=0.5, label="a cell")
    levels = sorted(result.power, key=lambda level: level.measured)
    slowdowns, shares = [100 * level.measured for level in levels], [level.share for level in levels]
    to_lower_bound = [level.share - level.bounds[0] for level in levels]
    axes.errorbar(
        slowdowns,
        shares,
        yerr=[to_lower_bound, [0.0] * len(to_lower_bound)],
        fmt="o-",
        color=LEVEL,
        capsize=4,
        label="all cells, lower bound",
    )
    axes.set(xlabel="measured slowdown, %", ylabel="share found", ylim=(-0.03, 1.05), xlim=(0, None))
    axes.set_title(
        f"softbench gate on {result.reference}, {result.device_name}: {result.alarms} false alarms in {result.repetitions} A/A repetitions",
        fontsize=9,
    )
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)  # outside the axes, so that it hides no data
    return figure
