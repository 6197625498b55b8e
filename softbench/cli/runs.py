"""`softbench runs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softbench import __version__
from softbench.cli.actions import note, try_file, warn, wrote_to_stdout
from softbench.cli.options import option
from softbench.cli.panels import OUTPUT, PanelCommand
from softbench.core.errors import ResultsError
from softbench.core.text import count, printable

if TYPE_CHECKING:
    from softbench.core.json import JsonObject
    from softbench.results.runs import CellCounts, FoundRun, Unfinished

Folders = Annotated[list[Path] | None, typer.Argument(metavar="DIR", help="Folders of results, or CSVs.", show_default="results")]
Json = Annotated[Path | None, option(OUTPUT, "Write the list as JSON; - is stdout, without the table.", metavar="FILE|-")]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand)(runs)


def runs(folders: Folders = None, json: Json = None) -> None:
    """List the runs in a folder and below it, the newest first: file, start, card, cells, failures, operation and backends.

    Runs that have not finished come before, with the command that continues them. Files that cannot be read have a line on stderr.
    """
    from softbench.cli import output
    from softbench.report import listing
    from softbench.results import runs as results

    places = folders or [Path("results")]
    try_file(json)
    found, problems = results.find(places)
    left, more = results.unfinished(places)
    journals = {(one.file.parent, one.run) for one in left}
    counted: list[tuple[FoundRun, CellCounts]] = []
    for one in reversed(found):
        if (one.file.parent, one.run) in journals:
            continue
        try:
            counted.append((one, results.cell_counts(one.file)))
        except ResultsError as error:
            problems.append(str(error))
    problems += more
    if wrote_to_stdout(lambda: _document(counted, left, problems), json):
        return
    shown = ", ".join(printable(str(place)) for place in places)
    if counted or left:
        numbers = [count(len(counted), "run"), *([f"{len(left)} unfinished"] if left else [])]
        typer.echo(f"{shown}: {', '.join(numbers)}; newest first, times in UTC")
        output.show(listing.runs(counted, left, places), output.console())
    elif not problems:
        note(f"{shown}: no results; softbench run writes them there, or into the folder of --output")
    warn(problems)


def _document(counted: list[tuple[FoundRun, CellCounts]], left: list[Unfinished], problems: list[str]) -> JsonObject:
    finished = [
        {
            **{"file": str(one.file), "run": one.run, "started": one.started, "cards": [*tally.cards]},
            **{"command": one.command, "commit": one.commit, "cells": tally.cells, "backends": [*tally.backends]},
            **{"operations": [*tally.operations], "directions": [*tally.directions], "dtypes": [*tally.dtypes]},
            **{"status": dict(tally.status), "labels": dict(tally.labels)},
        }
        for one, tally in counted
    ]
    unfinished = [
        {
            **{"file": str(one.file), "run": one.run, "started": one.started, "device": one.device, "command": one.command},
            **{"stored": one.stored, "planned": one.planned, "running": one.running, "resume": one.resume},
        }
        for one in left
    ]
    return {"softbench": __version__, "runs": finished, "unfinished": unfinished, "unreadable": problems}
