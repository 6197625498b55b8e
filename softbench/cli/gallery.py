"""`softbench gallery`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softbench.cli.actions import note, read, results_file
from softbench.cli.options import option
from softbench.cli.panels import OUTPUT, PanelCommand
from softbench.core.errors import ResultsError, UsageError
from softbench.core.text import one_line

File = Annotated[Path | None, typer.Argument(metavar="FILE", help="A results CSV or folder; - is stdin.", show_default="none")]
Plot = Annotated[Path | None, option(OUTPUT, "Draw the strategies of FILE as bars: .png, .svg, .pdf or .webp.", metavar="PATH")]
Markdown = Annotated[bool, option(OUTPUT, "Print a Markdown table.", "--markdown", default=False)]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand)(gallery)


def gallery(file: File = None, plot: Plot = None, markdown: Markdown = False) -> None:
    """List one operation as it is written in each language: lines of code, and in FILE, build time and share of the speed of copy.

    Each strategy is one file of kernels/gallery, which can be read by itself and copied as a plugin. To measure all that can run here:
    softbench run --config gallery. The command softbench list says how to install the others.
    """
    from softbench.cli import output
    from softbench.report import gallery as report

    if file is None:
        if plot is not None or markdown:
            raise UsageError(f"gallery: {'--plot' if plot else '--markdown'} shows results; name the CSV of softbench run --config gallery")
        output.show(report.catalog(), output.console())
        return
    rows = read(results_file(file))
    try:
        rungs = report.ladder(rows)
    except ResultsError as error:
        raise ResultsError(f"{one_line(str(file))}: {error}") from None
    typer.echo(report.as_markdown(rungs)) if markdown else output.show(report.as_table(rungs, rows), output.console())
    if plot is not None:
        note(f"wrote {report.write(rungs, rows, plot)}")
