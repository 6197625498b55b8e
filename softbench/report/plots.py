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
from softbench.core.text import count, unknown
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
    for name, some, note in sheets(panels):
        yield Drawing(name, curves.figure(data, some, quantities), note)


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


def write(runs: Runs, files: Sequence[Path], kind: str = "curves", over: str = "") -> list[Written]:
    """Draw the figures of a kind into each of the files, which differ in their suffix.

    Up to MOST panels are one file. Else each file's name says what it shows: `out-forward.png`. The cards of a run are overlaid as runs
    are; kinds that overlay none, and more cards than dashes, have figures for each card.

    Raises:
        UsageError: a format that is not in `style.FORMATS`; or as `drawings`.
        ResultsError: nothing to draw, or a file cannot be written.
    """
    for file in files:
        style.check_format(file, "-o")
    parts = [(file, some) for file, rows in runs for some in apart(rows)]
    if len(parts) > len(runs) and (len(parts) > len(style.DASHES) or (len(runs) == 1 and kind in ONE_FILE)):
        return [one for run, some in parts for one in write([(run, some)], [file_of(file, some) for file in files], kind, over)]
    written = []
    for drawing in drawings(parts or runs, kind, over):
        for number, file in enumerate(files):
            named = file.with_name(f"{file.stem}-{drawing.name}{file.suffix}") if drawing.name else file
            written.append(Written(style.saved(drawing.figure, named, "-o"), "" if number else drawing.note))
        drawing.figure.clear()
    return written


def targets(out: Path | None, formats: Sequence[str], default: Path, kind: str = KINDS[0]) -> list[Path]:
    """The files of some formats, such as `png`: `out` without a suffix gets that of each.

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
