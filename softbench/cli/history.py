"""`softbench history`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from softbench.cli.actions import note, warn, write_text
from softbench.cli.options import option
from softbench.cli.panels import OUTPUT, PanelCommand
from softbench.core.errors import UsageError
from softbench.core.text import count, printable


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand)(history)


def history(
    target: Annotated[str, typer.Argument(help="A backend, an operation, a function, or the file of a plugin; or a shell pattern.")],
    places: Annotated[
        list[Path] | None, typer.Argument(metavar="[DIR]...", help="Folders of results, or CSVs.", show_default="results")
    ] = None,
    out: Annotated[Path, option(OUTPUT, "The page.", "-o", "--out", "--output", metavar="FILE")] = Path("history.html"),
    threshold: Annotated[float, option(OUTPUT, "Changes of fewer percent are none.", metavar="PERCENT")] = 3.0,
) -> None:
    """Show the time of one target over the commits of stored results, as an HTML page; print the commits that changed it.

    softbench history softmax.py results/bisect
    """
    from softbench.cli.output import command_line
    from softbench.report.board.history import collect, page

    if not 0 <= threshold < 1000:
        raise UsageError(f"--threshold: must be a percentage from 0, not {threshold:g}")
    made, problems = collect(target, places or [Path("results")], threshold / 100)
    warn(problems)
    write_text(out, page(made, command_line(sys.argv[1:])), "-o")
    changes = [*made.changes()]
    told = "" if changes else f"; no commit is faster or slower than the one before by {threshold:g} % or more"
    note(f"{count(len(made.cases), 'case')}, {count(len(made.commits), 'commit')}{told}")
    for change in changes:
        typer.echo(printable(f"{change.commit} is {change.text}"))
    typer.echo(printable(str(out)))
