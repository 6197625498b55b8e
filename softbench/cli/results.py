"""`softbench show`, `plot` and `compare`, which read results files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softbench.cli.actions import read
from softbench.cli.options import ResultsFile
from softbench.cli.panels import PanelCommand
from softbench.core.errors import UsageError
from softbench.core.text import one_line, printable


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (show, plot, compare):
        app.command(cls=PanelCommand)(command)


def show(
    file: ResultsFile,
    long: Annotated[bool, typer.Option("--long", help="One line per cell: latency, spread, samples, build, error over bound.")] = False,
    costs: Annotated[bool, typer.Option("--costs", help="One line per backend: build, host time, mean fraction of copy.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="With --costs: as a Markdown table.")] = False,
) -> None:
    """Show the table of a results file."""
    from softbench.cli import output
    from softbench.report import listing, tables
    from softbench.results.by_backend import by_backend

    rows, console = read(file), output.console()
    if markdown:
        typer.echo(listing.markdown(by_backend(rows)))
    elif costs:
        output.show(listing.costs(by_backend(rows)), console)
    else:
        output.show(tables.cells(rows) if long else tables.results(rows, console), console)


def plot(
    files: Annotated[list[Path], typer.Argument(help="One or several results CSVs; several are overlaid.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="out.png, .svg or .pdf.", show_default="FILE with .png")] = None,
    costs: Annotated[bool, typer.Option("--costs", help="One bar per backend: its mean fraction of copy.")] = False,
) -> None:
    """Plot bandwidth and fraction of copy over N or M; shapes that make no line have a row per backend.

    Hollow points are doubtful. Of more than nine backends, the best, torch and compile have a colour; the others are grey.
    """
    if costs and len(files) > 1:
        raise UsageError("plot --costs: draws one file at a time")
    runs = [(file, read(file)) for file in files]
    from softbench.report import plots

    target = out or files[0].with_suffix(".png")
    for written in [plots.backends(runs[0][1], target)] if costs else plots.write(runs, target):
        typer.echo(printable(str(written)))


def compare(a: ResultsFile, b: ResultsFile) -> None:
    """Compare two results files cell by cell: the ratio of their bandwidths, marked if it is beyond the noise of both."""
    from softbench.cli import output
    from softbench.report import tables
    from softbench.results.compare import pairs, summary

    compared = pairs(read(a), read(b))
    if not compared:
        raise UsageError(f"{a} and {b}: neither file has a cell with a result")
    output.show(tables.comparison(compared, (one_line(str(a)), one_line(str(b)))), output.console())
    typer.echo(summary(compared))
