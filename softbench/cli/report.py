"""`softbench report`, and the page of `softbench run --report`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softbench.cli.actions import note, read, results_file, try_file
from softbench.cli.panels import PanelCommand
from softbench.core.errors import UsageError
from softbench.core.files import replace_file
from softbench.core.text import printable

if TYPE_CHECKING:
    from softbench.results.writer import Run

LATEST = Path("results") / "latest.csv"
MOST = 2  # files of a page


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand)(report)


def report(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="One results CSV or folder, or two to compare.",
            show_default="results/latest.csv",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", "--output", help="The HTML file.", show_default="the last FILE with .html")
    ] = None,
    gate: Annotated[
        Path | None, typer.Option("--gate", help="The JSON of softbench gate, whose verdicts the page shows.", metavar="FILE")
    ] = None,
) -> None:
    """Write the results as one HTML page: curves, winners, cells down to their samples, and errors. It needs no network.

    Samples come from the JSON beside each CSV. Two files are compared. softbench board shows many runs, and how they changed.
    If two cards measured one cell, each card has a page.
    """
    from softbench.cli.output import command_line
    from softbench.gate.run_files import read_report
    from softbench.report.page.document import check_name, write
    from softbench.report.page.source import names, read_source
    from softbench.results.select import apart, file_of

    files = files or [LATEST]
    if "-" in map(str, files):
        raise UsageError("report -: reads files only, because the samples lie beside the CSV; name the file")
    if len(files) > MOST:
        raise UsageError(
            f"report: takes one file, or two to compare, and not {len(files)}; of many runs: softbench board, softbench history"
        )
    files = [results_file(file) for file in files]
    target = out or files[-1].with_suffix(".html")
    if str(target) == "-":
        raise UsageError("report -o -: writes a file only; name it")
    check_name(target, "-o")
    parts = [(file, some, name) for file, name in zip(files, names(files), strict=True) for some in apart(read(file))]
    if len(parts) > len(files) > 1:
        raise UsageError("report: a file holds several cards; give it alone for a page of each, or run: softbench compare A B")
    found = [read_source(*part) for part in parts]
    verdicts = read_report(gate) if gate else None
    pages = [(found, target)] if len(parts) == len(files) else [([one], file_of(target, one.rows)) for one in found]
    for _, page in pages:
        try_file(page, flag="-o")
    for one in found:
        if one.missing:
            note(f"{one.missing}; the page has no samples of it")
    for sources, page in pages:
        write(sources, page, command_line(sys.argv[1:]), verdicts)
        typer.echo(printable(str(page)))


def write_page(measured: Run) -> Path:
    """Write the page of a run beside its CSV, and as `latest.html` if the run is `latest`."""
    from softbench.report.page.document import html
    from softbench.report.page.source import Source
    from softbench.results.select import apart

    records = {(record.backend, record.case.identity): record for record in measured.records()}
    rows = measured.rows()
    if len(apart(rows)) > 1:
        raise UsageError(f"the run has several cards; for a page of each: softbench report {measured.csv}")
    text = html([Source(measured.csv.name, rows, measured.header, records)], str(measured.header.get("command", "softbench run")))
    page, latest = measured.csv.with_suffix(".html"), measured.folder / "latest.csv"
    replace_file(page, text)
    if latest.is_file() and latest.read_bytes() == measured.csv.read_bytes():
        replace_file(latest.with_suffix(".html"), text)
    return page
