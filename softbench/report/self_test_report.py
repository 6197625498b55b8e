"""The self-test's result for people: a table, and the power curve as a figure."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from softbench.core.errors import ResultsError
from softbench.gate.inference import proportion_bounds
from softbench.gate.self_test.analysis import SelfTest
from softbench.report.plots import COLOURS


def table(found: SelfTest) -> RenderableType:
    """Families first, then a line for each planted slowdown."""
    bound = proportion_bounds(found.alarms, found.families)[1]
    alone = proportion_bounds(found.flagged, found.families)[1]
    passed = proportion_bounds(found.passed, found.families)[0]
    lines = [
        f"{found.base} on {found.device_name}, margin {found.margin:.1%}, families of {found.cells} cases",
        f"false alarms: {found.alarms} of {found.families} families (at most {bound:.2%} of families, with 95 % confidence); "
        f"before confirmation {found.flagged} (at most {alone:.2%})",
        f"ended with exit 0: {found.passed} of {found.families} (at least {passed:.1%})",
        f"A/A ratios within 1 %: {found.alike} of {found.ratios} (calls over 10 us, each family's), the furthest {found.furthest:.4f}",
        f"cells beside planted ones called slower: {found.beside}",
    ]
    power = Table(show_edge=False, pad_edge=False)
    for name in ("planted", "realised", "least..most", "trials", "found", "share", "at least", "at most"):
        power.add_column(name, justify="right", no_wrap=True)
    for level in found.power:
        low, high = level.bounds
        between = f"{level.least:.1%}..{level.most:.1%}"
        shares = (f"{level.share:.3f}", f"{low:.3f}", f"{high:.3f}")
        power.add_row(f"{level.planted:.0%}", f"{level.realised:.1%}", between, str(level.trials), str(level.found), *shares)
    told = "realised: as measured, the median of the cells; bounds are one-sided at 95 %, of trials that share cells and processes"
    return Group(*map(Text, lines), power, Text(told, style="dim"))


def plot(found: SelfTest, out: Path) -> Path:
    """The power curve: the share found over the realised slowdown, each planted cell a point, each level with its lower bound.

    Raises:
        ResultsError: nothing was planted, or the file cannot be written.
    """
    if not found.power:
        raise ResultsError(f"--plot {out}: nothing was planted, so there is no curve to draw")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    axes.axvspan(0, 100 * found.margin, color="0.92", label="the margin")
    xs, ys = zip(*[(100 * x, y) for x, y in found.points], strict=True)
    axes.plot(xs, ys, "o", color=COLOURS[5], markersize=3, alpha=0.5, label="a cell")
    levels = sorted(found.power, key=lambda level: level.realised)
    realised, shares = [100 * level.realised for level in levels], [level.share for level in levels]
    below = [level.share - level.bounds[0] for level in levels]
    axes.errorbar(realised, shares, yerr=[below, [0.0] * len(below)], fmt="o-", color=COLOURS[0], capsize=4, label="all cells, lower bound")
    axes.set(xlabel="realised slowdown, %", ylabel="share found", ylim=(-0.03, 1.05), xlim=(0, None))
    axes.set_title(
        f"softbench gate on {found.base}, {found.device_name}: {found.alarms} false alarms in {found.families} families", fontsize=9
    )
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)  # outside: it hides no data
    axes.grid(alpha=0.3)
    try:
        figure.savefig(out, dpi=150)
    except OSError as error:
        raise ResultsError(f"--plot {out}: cannot be written: {error.strerror}") from None
    finally:
        pyplot.close(figure)
    return out
