"""Draws the figures of results: `drawings` makes those of a kind, and `write` puts them into files.

A figure is a `softbench.report.style.Drawing`: a Matplotlib figure, and what its parts show. `curves` draws lines over N or M, and `dots`
rows of points for shapes that make no line; the speed-up is drawn by both. `heatmap` draws which backend is fastest. `costs_figure` draws
one bar per backend. `softbench.report.gate_figures` draws a gate's report, and `softbench.report.page.trend` many runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from softbench.core.errors import ResultsError, UsageError
from softbench.core.text import unknown
from softbench.report import curves, dots, heatmap, style
from softbench.report.figure_data import Quantity, groups, slices, speedup
from softbench.report.style import COLOURS, Drawing
from softbench.results.costs import by_backend
from softbench.results.rows import Row
from softbench.results.select import apart, file_of

KINDS = ("curves", "heatmap", "speedup", "costs")
ONE_FILE = ("heatmap", "costs")
"""Kinds that overlay no runs."""

BAR_INCHES, PANEL_INCHES = 0.19, 3.2
NAME_INCHES = 0.055  # of a character
Runs = Sequence[tuple[Path, Sequence[Row]]]
"""Each run with the path that names it."""


def drawings(runs: Runs, kind: str = "curves", over: str = "") -> Iterator[Drawing]:
    """The figures of a kind that together show every shape. `over` is the backend of speed-ups, by default the reference backend.

    Several runs are overlaid: the first solid, the next dashed, dotted. A backend has one colour in all figures.

    Raises:
        UsageError: a kind that overlays no runs has several, or no cell has the backend `over`.
        ResultsError: there is nothing to draw.
    """
    rows = [row for _, run in runs for row in run]
    if kind in ONE_FILE and len(runs) > 1:
        raise UsageError(f"plot --kind {kind}: draws one file at a time")
    if kind == "costs":
        yield costs_figure(rows)
        return
    styles = style.styles(rows)
    if kind == "heatmap":
        if not (found := groups(rows)):
            raise ResultsError("no cell has a time, so there is nothing to draw")
        yield from (heatmap.figure(rows, group, styles) for group in found)
        return
    shown = speedup(rows, over) if kind == "speedup" else None
    shapes = slices([row for row in rows if _drawn(row, shown)])
    if not shapes:
        raise ResultsError(f"no cell has a {'speed-up' if shown else 'bandwidth'}, so there is nothing to draw")
    sources = style.sources(runs)
    for what in shapes:
        draw = curves.figure if what.axis else dots.figure
        yield draw([run for _, run in runs], what, styles, sources, shown)


def _drawn(row: Row, shown: Quantity | None) -> bool:
    """True if the row makes a point, and not only the line at 1."""
    return shown is None or (row.backend != shown.over and shown.value(row) is not None)


def write(runs: Runs, files: Sequence[Path], kind: str = "curves", over: str = "") -> list[Path]:
    """Draw the figures of a kind into each of the files, which differ in their suffix.

    With several figures, each file's name has the direction, the dtype and what is fixed: `out-forward-bf16-M4096.png`. The cards of a
    run are overlaid as runs are; kinds that overlay none, and more cards than dashes, have figures for each card.

    Returns:
        The files.

    Raises:
        UsageError: a format that is not png, svg or pdf; or as `drawings`.
        ResultsError: nothing to draw, or a file cannot be written.
    """
    for file in files:
        style.check_format(file, "-o")
    parts = [(file, some) for file, rows in runs for some in apart(rows)]
    if len(parts) > len(runs) and (len(parts) > len(style.DASHES) or (len(runs) == 1 and kind in ONE_FILE)):
        return [name for run, some in parts for name in write([(run, some)], [file_of(file, some) for file in files], kind, over)]
    found = list(drawings(parts or runs, kind, over))
    names = [drawing.name for drawing in found]
    written = []
    for i, drawing in enumerate(found):
        name = f"-{drawing.name}" if len(found) > 1 else ""
        name += f"-{names[:i].count(drawing.name) + 1}" if drawing.name in names[:i] else ""
        written += [style.saved(drawing.figure, file.with_name(f"{file.stem}{name}{file.suffix}"), "-o") for file in files]
    return written


def targets(out: Path | None, formats: Sequence[str], default: Path, kind: str = KINDS[0]) -> list[Path]:
    """The files of the formats `png`, `svg` or `pdf`: `out` without a suffix gets that of each.

    Without formats the suffix of `out` decides. Without `out`, files are beside `default`, as png if no format is given. The name of a kind
    that is not the first is in their names.

    Raises:
        UsageError: an unknown format, or one that the suffix of `out` contradicts.
    """
    known = tuple(suffix.removeprefix(".") for suffix in style.FORMATS)
    for name in formats:
        if name not in known:
            raise UsageError(f"--format: {unknown(name, known, 'format')}")
    if out is None:
        kinds = "" if kind == KINDS[0] else f"-{kind}"
        return [default.with_name(f"{default.stem}{kinds}.{name}") for name in formats or ("png",)]
    if not formats:
        style.check_format(out, "-o")
        return [out]
    if out.suffix not in style.FORMATS:
        return [out.with_name(f"{out.name}.{name}") for name in dict.fromkeys(formats)]
    if set(formats) != {out.suffix.removeprefix(".")}:
        raise UsageError(f"-o {out} --format {','.join(formats)}: contradict each other; give -o {out.with_suffix('')}, or no --format")
    return [out]


@style.look()
def costs_figure(rows: Sequence[Row]) -> Drawing:
    """A panel per direction, best backend first: the mean fraction of copy over its cells.

    Raises:
        ResultsError: no cell has a fraction.
    """
    costs = {name: cost for name, cost in by_backend(rows).items() if cost.of_copy}
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
