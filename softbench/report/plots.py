"""Draws the figures of results: `drawings` makes those of a kind, and `write` puts them into files.

`curves` draws lines over N or M and points over other shapes. `heatmap` draws which backend is fastest, and `cost_figure` what each costs.
`softbench.report.gate_figures` draws a gate's report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from softbench.core.errors import ResultsError, UsageError
from softbench.core.text import count
from softbench.report import cost_figure, curves, heatmap, style
from softbench.report.figure_data import Group, Quantity, Slice, bandwidth, by_slice, fraction, groups, pass_of, slices, speedup
from softbench.results.columns import Row, grouped
from softbench.results.select import apart, file_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("curves", "bandwidth", "heatmap", "speedup", "costs")
ONE_FILE = ("heatmap", "costs")
"""Kinds that overlay no runs."""
MOST = 16
"""Panels of a file. If there are more, each pass has a file; then each dtype of it."""
Runs = Sequence[tuple[Path, Sequence[Row]]]
"""Each run with the path that names it."""
P = TypeVar("P", Slice, Group)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure, and what its file is called."""

    name: str
    """What the figure shows of the results, such as `forward-bf16`; empty if one figure shows all."""
    figure: Figure
    note: str = ""
    """What is left out; empty if nothing is."""


@dataclass(frozen=True, slots=True)
class Written:
    """A file, and what it leaves out."""

    file: Path
    note: str = ""


def drawings(runs: Runs, kind: str = "curves", over: str = "") -> Iterator[Drawing]:
    """The figures of a kind. `over` is the backend of speed-ups, by default the reference backend. Several runs are overlaid.

    Raises:
        UsageError: a kind that overlays no runs has several, or no cell has the backend `over`.
        ResultsError: there is nothing to draw.
    """
    rows = [row for _, run in runs for row in run]
    if kind in ONE_FILE and len(runs) > 1:
        raise UsageError(f"plot --kind {kind}: draws one file at a time")
    if kind == "costs":
        yield Drawing("", cost_figure.figure(rows))
        return
    if kind == "heatmap":
        if not (maps := groups(rows)):
            raise ResultsError("no cell has a time, so there is nothing to draw")
        for name, several, note in sheets(maps):
            yield Drawing(name, heatmap.figure(rows, several), note)
        return
    shown = speedup(rows, over) if kind == "speedup" else None
    drawn = [row for row in rows if shown is None or (row.backend != shown.over and shown.value(row))]
    panels = slices(drawn)
    if not panels:
        names = ", ".join(dict.fromkeys(str(file) for file, _ in runs))
        what = "speed-up and a bandwidth" if shown else "bandwidth"
        raise ResultsError(
            f"{names}: no cell has a {what}, so there is nothing to draw; --kind heatmap draws the fastest, and --kind costs host times"
        )

    def quantities(some: Sequence[Row]) -> list[Quantity]:
        if shown:
            return [shown]
        found = [] if kind == "bandwidth" else [found for found in [fraction(some)] if any(map(found.value, some))]
        return [*found, bandwidth(some)]

    data = curves.Runs([by_slice(panels, run) for _, run in runs], style.styles(rows), style.sources(runs))
    absent = "no cell has a fraction of copy: the bandwidth is drawn" if kind == "curves" and len(quantities(drawn)) == 1 else ""
    for name, some, note in sheets(panels):
        yield Drawing(name, curves.figure(data, some, quantities), "; ".join(filter(None, (absent, note))))


def sheets(panels: Sequence[P]) -> Iterator[tuple[str, list[P], str]]:
    """The panels of each file with the file's part of the name, and what is left out. Only the largest panels of a dtype are drawn."""
    if len(panels) <= MOST:
        yield "", list(panels), ""
        return
    for name, some in grouped(panels, pass_of).items():
        if len(some) <= MOST:
            yield name, some, ""
            continue
        for dtype, parts in grouped(some, lambda panel: panel.dtype).items():
            largest = sorted(parts, key=lambda panel: -panel.size)[:MOST]
            left = len(parts) - len(largest)
            note = f"{count(left, 'further panel')} of {name} {dtype} left out; --M, --N and --shape select others" if left else ""
            yield f"{name}-{dtype}", [panel for panel in parts if panel in largest], note


def write(runs: Runs, file: Path, kind: str = "curves", over: str = "") -> list[Written]:
    """Draw the figures of a kind into a file.

    Up to MOST panels are one file. With more there are several, and each file's name says what it shows: `out-forward.png`. The cards of a
    run are overlaid as runs are; kinds that overlay none, and more cards than dashes, have figures for each card.

    Raises:
        UsageError: a format that is not in `style.FORMATS`; or as `drawings`.
        ResultsError: nothing to draw, or a file cannot be written.
    """
    style.check_format(file, "-o")
    parts = [(run, some) for run, rows in runs for some in apart(rows)]
    if len(parts) > len(runs) and (len(parts) > len(style.DASHES) or (len(runs) == 1 and kind in ONE_FILE)):
        return [one for run, some in parts for one in write([(run, some)], file_of(file, some), kind, over)]
    written = []
    for drawing in drawings(parts or runs, kind, over):
        named = file.with_name(f"{file.stem}-{drawing.name}{file.suffix}") if drawing.name else file
        written.append(Written(style.saved(drawing.figure, named, "-o"), drawing.note))
        drawing.figure.clear()
    return written


def target(out: Path | None, results: Path, kind: str) -> Path:
    """The file of a figure: `out`, else a png beside the results, with the name of a kind that is not the first.

    Raises:
        UsageError: a format that is not in `style.FORMATS`, or results of stdin, which have no name.
    """
    if out is None and str(results) == "-":
        raise UsageError("plot -: name the picture with -o")
    if out is None:
        return results.with_name(f"{results.stem}{'' if kind == KINDS[0] else f'-{kind}'}.png")
    style.check_format(out, "-o")
    return out
