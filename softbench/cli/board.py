"""`softbench board`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softbench.cli.actions import note, warn
from softbench.cli.options import option
from softbench.cli.panels import OUTPUT, PanelCommand
from softbench.core.errors import ResultsError, UsageError
from softbench.core.text import count, printable

if TYPE_CHECKING:
    from softbench.report.board.model import BoardRun

PAGE_CELLS = 20_000
"""Without an option the newest runs have a page, as long as they have at most so many cells together. So a board is written in minutes:
a page takes some milliseconds a cell."""

PAGES = "Write the page of softbench report for each run, or for none."


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand)(board)


def board(
    places: Annotated[
        list[Path] | None, typer.Argument(metavar="[DIR]...", help="Folders of results, or CSVs.", show_default="results")
    ] = None,
    out: Annotated[Path, option(OUTPUT, "The folder of the site.", "-o", "--out", "--output", metavar="DIR")] = Path("board"),
    title: Annotated[str, option(OUTPUT, "The title of the site.")] = "softbench board",
    threshold: Annotated[
        float | None, option(OUTPUT, "Changes of fewer percent are not shown.", default="5, the gate's margin", metavar="PERCENT")
    ] = None,
    pages: Annotated[
        bool | None, option(OUTPUT, PAGES, "--pages/--no-pages", default=f"of the newest runs, up to {PAGE_CELLS} cells")
    ] = None,
) -> None:
    """Write a static site of many runs: the fastest backends of each operation on each card, their history, and what changed.

    Changes have the verdicts of softbench compare, between a run and the run before on that card. Open index.html, or publish the folder:
    links are relative, and the site needs no network. A file that cannot be read is named and left out.
    """
    from softbench.cli.output import command_line
    from softbench.report.board import site
    from softbench.report.board.model import MARGIN, collect

    if threshold is not None and not 0 <= threshold < math.inf:
        raise UsageError(f"--threshold: must be a percentage from 0, not {threshold:g}")
    site.check_folder(out)
    places = places or [Path("results")]
    made, problems = collect(places, MARGIN if threshold is None else threshold / 100)
    warn(problems)
    if not made.groups:
        raise ResultsError(f"{', '.join(map(str, places))}: no run with a result; softbench run writes them")
    with_page = _with_page(made.runs, pages)
    for one in with_page:
        _write_page(one, out)
    index = site.write(made, out, title, problems, command_line(sys.argv[1:]))
    left_out = f"; {count(len(problems), 'file')} could not be read, or only in part" if problems else ""
    note(f"{count(len(made.runs), 'run')}, {len(with_page)} with a page{left_out}")
    typer.echo(printable(str(index)))


def _with_page(runs: Sequence[BoardRun], pages: bool | None) -> list[BoardRun]:
    """The runs whose page is written: all, none, or the newest that are small enough together."""
    if pages is not None:
        return [*runs] if pages else []
    newest = runs[::-1]
    return [run for run, size in zip(newest, accumulate(run.cells for run in newest), strict=True) if size <= PAGE_CELLS]


def _write_page(run: BoardRun, out: Path) -> None:
    from softbench.report.board.model import card_of
    from softbench.report.board.site import page_name
    from softbench.report.page.document import write
    from softbench.report.page.source import read_source
    from softbench.results.csv import read_csv
    from softbench.results.select import apart

    file, target = run.found.file, out / page_name(run)
    target.parent.mkdir(parents=True, exist_ok=True)
    (rows,) = (part for part in apart(read_csv(file)[0]) if (card_of(part), part[0].unit) == (run.card, run.unit))
    write([read_source(file, rows)], target, f"softbench report {file.name}")
