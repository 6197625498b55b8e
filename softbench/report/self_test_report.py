"""Renders the result of the gate's self-test: a table, and the power curve as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from softbench.core.errors import ResultsError
from softbench.core.text import count, margin, one_line
from softbench.gate.inference import proportion_bounds
from softbench.gate.self_test.analysis import SelfTest
from softbench.gate.sittings import SittingTest
from softbench.report import style
from softbench.report.style import COLOURS, FAINT

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def table(result: SelfTest) -> RenderableType:
    """The A/A repetitions first, then a line for each injected slowdown."""
    alarms_at_most = proportion_bounds(result.alarms, result.repetitions)[1]
    flagged_at_most = proportion_bounds(result.flagged, result.repetitions)[1]
    passed_at_least = proportion_bounds(result.passed, result.repetitions)[0]
    lines = [
        f"{result.reference} on {result.device_name}, margin {margin(result.margin)}, A/A repetitions of {count(result.cells, 'case')}",
        f"false alarms: {result.alarms} of {result.repetitions} A/A repetitions (at most {alarms_at_most:.2%}, with 95 % confidence); "
        f"a cell beyond the margin in the screening alone: {result.flagged} (at most {flagged_at_most:.2%})",
        f"ended with exit 0: {result.passed} of {result.repetitions} (at least {passed_at_least:.1%})",
        f"A/A ratios within 1 %: {result.within_1_percent} of {result.ratios} (calls over 10 us, all repetitions); "
        f"furthest: {result.furthest:.4f}",
        f"cells without a slowdown, called slower beside cells with one: {result.bystanders}",
    ]
    power = Table(show_edge=False, pad_edge=False)
    for name in ("injected", "measured", "least..most", "trials", "found", "share", "at least", "at most"):
        power.add_column(name, justify="right", no_wrap=True)
    for level in result.power:
        low, high = level.bounds
        between = f"{level.least:.1%}..{level.most:.1%}"
        shares = (f"{level.share:.3f}", f"{low:.3f}", f"{high:.3f}")
        power.add_row(f"{level.injected:.0%}", f"{level.measured:.1%}", between, str(level.trials), str(level.found), *shares)
    footnote = "measured: median over the cells; at least, at most: one-sided 95 % bounds, for trials that share cells and processes"
    return Group(*map(Text, lines), power, Text(footnote, style="dim"))


def sittings(result: SittingTest) -> RenderableType:
    """Each family's outcome, the false alarms, and the variance between sittings."""
    most = proportion_bounds(result.alarms, result.families)[1]
    lines = [
        *(one_line(outcome, 1000) for outcome in result.outcomes),
        f"{one_line(result.baseline)} on {result.device_name}: each file is an A/A family of one sitting",
        f"false alarms: {result.alarms} of {result.families} families (at most {most:.2%}, with 95 % confidence)",
        f"ended with exit 0: {result.passed} of {result.families}",
        f"standard deviation between sittings: {result.sitting_sd:.2%}; save all these runs in one baseline, so that the gate uses it",
    ]
    return Group(*map(Text, lines))


def plot(result: SelfTest, out: Path) -> Path:
    """Draw the power curve: the share found over the measured slowdown, with a point per cell and a lower bound per level.

    Raises:
        ResultsError: no slowdown was injected, or the file cannot be written.
    """
    if not result.power:
        raise ResultsError(f"--plot {out}: no slowdown was injected, so there is no curve to draw")
    return style.saved(_power_curve(result), out, "--plot")


@style.look()
def _power_curve(result: SelfTest) -> Figure:
    figure, ((axes,),) = style.subplots(1, 1, (9, 5), layout="constrained")
    axes.axvspan(0, 100 * result.margin, color=FAINT, label="the margin")
    xs, ys = zip(*[(100 * x, y) for x, y in result.points], strict=True)
    axes.plot(xs, ys, "o", color=COLOURS[5], markersize=3, alpha=0.5, label="a cell")
    levels = sorted(result.power, key=lambda level: level.measured)
    slowdowns, shares = [100 * level.measured for level in levels], [level.share for level in levels]
    to_lower_bound = [level.share - level.bounds[0] for level in levels]
    axes.errorbar(
        slowdowns,
        shares,
        yerr=[to_lower_bound, [0.0] * len(to_lower_bound)],
        fmt="o-",
        color=COLOURS[0],
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
