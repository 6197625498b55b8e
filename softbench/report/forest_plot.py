"""Draws the gate's forest plot: each cell's ratio with its interval, over the band of the margin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from softbench.core.errors import ResultsError
from softbench.gate.verdicts import GateReport, State
from softbench.report import style
from softbench.report.style import COLOURS, FAINT, INK, PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CELLS = 80  # of a legible figure; the cells furthest from 1 are drawn
COLOUR = {State.SLOWER: COLOURS[1], State.FASTER: COLOURS[2], State.AMBIGUOUS: COLOURS[4]}
MARKER = {State.SLOWER: ">", State.FASTER: "<", State.AMBIGUOUS: "s"}


def check(out: Path) -> None:
    """Raise UsageError if the file's suffix is not a supported format."""
    style.check_format(out, "--plot")


def write(report: GateReport, out: Path) -> Path:
    """Draw the report's ratios into a file.

    Raises:
        UsageError: a format that is not png, svg or pdf.
        ResultsError: no cell has a ratio, or the file cannot be written.
    """
    check(out)
    if all(verdict.ratio is None for verdict in report.verdicts):
        raise ResultsError(f"--plot {out}: no cell has a ratio, so there is nothing to draw")
    return style.saved(figure(report), out, "--plot")


@style.look()
def figure(report: GateReport) -> Figure:
    """The report's ratios, in its order: regressions first. At most MAX_CELLS, which are those that fail, then those furthest from 1.

    Raises:
        ResultsError: no cell has a ratio.
    """
    drawn = [verdict for verdict in report.verdicts if verdict.ratio is not None]
    if not drawn:
        raise ResultsError("no cell has a ratio, so there is nothing to draw")
    left_out = len(drawn) - MAX_CELLS
    if left_out > 0:
        furthest = sorted(drawn, key=lambda v: (not v.fails, -abs((v.ratio or 1) - 1)))[:MAX_CELLS]
        drawn = [verdict for verdict in drawn if verdict in furthest]
    made, ((axes,),) = style.subplots(1, 1, (7.5, 1.3 + 0.2 * len(drawn)), layout="constrained")
    axes.grid(visible=False, axis="y")
    for row, verdict in enumerate(drawn):
        ratio, margin = verdict.ratio or 1.0, verdict.margin or report.rules.margin
        low, high = verdict.interval or (ratio, ratio)
        colour, marker = COLOUR.get(verdict.state, INK), MARKER.get(verdict.state, "o")
        axes.barh(row, margin + margin / (1 + margin), left=1 / (1 + margin), height=1, color=FAINT, zorder=0)
        axes.plot([low, high], [row, row], color=colour, linewidth=1.5)
        face = colour if verdict.gated else PAPER
        axes.plot(ratio, row, marker=marker, color=colour, markerfacecolor=face, markersize=5, gid=f"verdict-{row}")
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks(range(len(drawn)), [f"{v.cell.backend}  {v.cell.case}" for v in drawn], fontsize=7.5)
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    axes.set_xlabel("latency new / old, 95 % interval; grey: the margin; hollow: advisory; right is slower", fontsize=8)
    title = f"{report.what}: {report.summary.partition(':')[0]}" + (f" ({left_out} cells nearest 1 left out)" if left_out > 0 else "")
    axes.set_title(title, fontsize=9, wrap=True)
    return made
