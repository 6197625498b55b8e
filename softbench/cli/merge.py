"""`softbench merge`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softbench.cli.actions import note, read, reject_input
from softbench.cli.panels import PanelCommand
from softbench.core.errors import ResultsError, UsageError
from softbench.core.files import not_written, replace_file, replacing
from softbench.core.text import one_line, printable

if TYPE_CHECKING:
    from softbench.results.merge import Part


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand)(merge)


def merge(
    files: Annotated[list[Path], typer.Argument(help="Results CSVs, each with its JSON beside it.")],
    out: Annotated[Path, typer.Option("-o", "--out", "--output", help="The merged CSV; its JSON is written beside it.")],
) -> None:
    """Merge shards of a sweep, or one sweep measured by several cards, into one results file with all raw samples.

    A cell that two files have of one card is refused, and so are runs with other settings.
    """
    from softbench.results.csv import digest_of, to_csv
    from softbench.results.document import beside, write_packed
    from softbench.results.merge import merged, notes
    from softbench.results.records import record_of_line
    from softbench.results.rows import rows_of_run

    if out.suffix != ".csv":
        raise UsageError(f"-o {out}: the file must end in .csv")
    reject_input(out, "-o")
    parts = [_part(file) for file in files]
    header, cells = merged(parts)
    for text in notes(parts):
        note(text)
    table = to_csv(rows_of_run((record_of_line(cell.line) for cell in cells), header)).encode()
    try:
        with replacing(beside(out), durable=True) as file:
            write_packed(file, header, (cell.line for cell in cells), digest_of(table))
        replace_file(out, table, durable=True)
    except OSError as error:
        raise not_written(f"-o {out}", error) from None
    typer.echo(printable(str(out)))


def _part(file: Path) -> Part:
    """A run from its files.

    Raises:
        ResultsError: the JSON is missing, damaged or of another run.
    """
    from softbench.plan.deal import parse_shard
    from softbench.results.document import beside_required, stream
    from softbench.results.merge import CellLine, Part
    from softbench.results.records import line_of_record, records_of

    rows, path = read(file, ("run",)), beside_required(file)
    document = stream(path)
    try:
        if document["run"] != rows[0].run:
            raise ResultsError(f"{file}: is of {rows[0].run}, but {path.name} is of {one_line(str(document['run']), 60)}")
        for source in (document, *(document.get("merged") or ())):
            if shard := source.get("shard"):
                parse_shard(str(shard), "shard")
            dict(source.get("fingerprint") or {})
        found = records_of(document, path)
        cells = [CellLine(record.backend, record.case, record.unit, line_of_record(record)) for record in found]
        del document["cells"]
        if unknown := {cell.unit for cell in cells} - {one["unit"] for one in document.get("units", ())}:
            raise ResultsError(f"{file}: does not say which card measured {unknown.pop() or 'its cells'}; measure it again")
        part = Part(one_line(str(file)), document, cells)
        _ = part.about, list(document["backends"])
    except ResultsError:
        raise  # the file is not damaged
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, UsageError) as error:
        raise ResultsError(f"{path}: header is damaged: {type(error).__name__}: {one_line(str(error), 120)}") from None
    return part
