"""Draws the figures of results: lines over N or M, rows of points, or one bar per backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from softbench.core.errors import ResultsError
from softbench.report import curves, dots, style
from softbench.report.slices import slices
from softbench.report.style import COLOURS, FORMATS
from softbench.results import by_backend
from softbench.results.rows import Row

__all__ = ["COLOURS", "FORMATS", "backends", "write"]


def write(runs: Sequence[tuple[Path, Sequence[Row]]], out: Path) -> list[Path]:
    """Draw every shape with a bandwidth: lines over N or M where at least three shapes make a line, else a row per backend.

    Several runs are overlaid: the first solid, the next dashed, dotted. With several figures, each file's name has the
    direction, the dtype and what is fixed: `out-forward-bf16-M4096.png`. A backend looks the same in all of them.

    Returns:
        The files.

    Raises:
        UsageError: a format that is not png, svg or pdf.
        ResultsError: nothing to draw, or the file cannot be written.
    """
    style.check_format(out, "-o")
    rows = [row for _, run in runs for row in run]
    found = slices(rows)
    if not found:
        raise ResultsError("no cell has a bandwidth, so there is nothing to draw")
    import matplotlib

    matplotlib.use("Agg")
    styles, sources = style.styles(rows), style.sources(runs)
    files: list[Path] = []
    for what in found:
        file = out if len(found) == 1 else out.with_name(f"{out.stem}-{what.name}{out.suffix}")
        same = sum(other.name == what.name for other in found[: found.index(what)])
        file = file.with_name(f"{file.stem}-{same + 1}{file.suffix}") if same else file
        draw = curves.figure if what.axis else dots.figure
        files.append(style.saved(draw([run for _, run in runs], what, styles, sources), file, "-o"))
    return files


def backends(run: Sequence[Row], out: Path) -> Path:
    """Draw one bar per backend: the mean fraction of copy over the cells of a direction, best first.

    Raises:
        UsageError, ResultsError: as `write`.
    """
    style.check_format(out, "-o")
    costs = {name: cost for name, cost in by_backend.by_backend(run).items() if cost.of_copy}
    directions = list(dict.fromkeys(direction for cost in costs.values() for direction in cost.of_copy))
    if not directions:
        raise ResultsError("no cell has a fraction of copy, so there is nothing to draw")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    titles = {row.of_pass: f"{row.op} {row.direction}" for row in run}
    size = (7 * len(directions), 1.5 + 0.22 * len(costs))
    figure, axes = pyplot.subplots(1, len(directions), figsize=size, squeeze=False, layout="constrained")
    for panel, direction, colour in zip(axes[0], directions, COLOURS, strict=False):
        bars = sorted((cost.of_copy[direction], name) for name, cost in costs.items() if direction in cost.of_copy)
        drawn = panel.barh([style.plain(name) for _, name in bars], [fraction for fraction, _ in bars], color=colour)
        panel.bar_label(drawn, fmt="{:.0%}", padding=2, fontsize=7)
        panel.tick_params(axis="y", labelsize=7)
        panel.set_xlim(0, 1.1)
        panel.margins(y=0.01)
        panel.grid(axis="x", alpha=0.3)
        panel.set_title(style.plain(f"{titles[direction]}, {run[0].device}"))
        times = " by device times" if any(cost.by_device for cost in costs.values()) else ""
        means = "geometric mean over its measured cells, each at most 1"
        panel.set_xlabel(f"fraction of the same-bytes yardstick{times}\n{means}\nhigher is better")
    return style.saved(figure, out, "-o")
