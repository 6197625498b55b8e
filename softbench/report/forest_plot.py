"""Draws the gate's forest plot: each cell's ratio with its interval, over the band of the margin."""

from __future__ import annotations

from pathlib import Path

from softbench.core.errors import ResultsError
from softbench.gate.verdicts import GateReport, State
from softbench.report import style
from softbench.report.style import COLOURS

MAX_CELLS = 80  # of a legible figure; the cells furthest from 1 are drawn
COLOUR = {State.SLOWER: COLOURS[1], State.FASTER: COLOURS[2], State.AMBIGUOUS: COLOURS[4]}


def check(out: Path) -> None:
    """Raise UsageError if the file's suffix is not a supported format."""
    style.check_format(out, "--plot")


def write(report: GateReport, out: Path) -> Path:
    """Draw the report's ratios, in its order: regressions first.

    Raises:
        UsageError: a format that is not png, svg or pdf.
        ResultsError: no cell has a ratio, or the file cannot be written.
    """
    check(out)
    drawn = [verdict for verdict in report.verdicts if verdict.ratio is not None]
    if not drawn:
        raise ResultsError(f"--plot {out}: no cell has a ratio, so there is nothing to draw")
    left_out = len(drawn) - MAX_CELLS
    if left_out > 0:
        furthest = sorted(drawn, key=lambda v: (not v.fails, -abs((v.ratio or 1) - 1)))[:MAX_CELLS]
        drawn = [verdict for verdict in drawn if verdict in furthest]
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 1.5 + 0.22 * len(drawn)), layout="constrained")
    for row, verdict in enumerate(drawn):
        ratio, margin = verdict.ratio or 1.0, verdict.margin or report.rules.margin
        low, high = verdict.interval or (ratio, ratio)
        colour = COLOUR.get(verdict.state, "0.35")
        axes.barh(row, margin + margin / (1 + margin), left=1 / (1 + margin), height=1, color="0.92", zorder=0)
        axes.plot([low, high], [row, row], color=colour, linewidth=1.5)
        axes.plot(ratio, row, marker="o", color=colour, fillstyle="full" if verdict.gated else "none")
    axes.axvline(1, color="0.35", linewidth=1)
    axes.set_yticks(range(len(drawn)), [style.plain(f"{v.cell.backend}  {v.cell.case}") for v in drawn], fontsize=7)
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    axes.set_xlabel("latency new / old, 95 % interval; grey: the margin; hollow: advisory; right is slower")
    title = f"{report.what}: {report.summary.partition(':')[0]}" + (f" ({left_out} cells nearest 1 left out)" if left_out > 0 else "")
    axes.set_title(style.plain(title), fontsize=9, wrap=True)
    return style.saved(figure, out, "--plot")
