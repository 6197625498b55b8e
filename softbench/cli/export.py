"""`softbench export`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from softbench.cli.actions import printed, read, results_file
from softbench.cli.panels import PanelCommand
from softbench.core.case import REFERENCE
from softbench.core.errors import UsageError

Format = StrEnum("Format", ["kernelbench", "kernelbot", "flashinfer"])


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand)(export)


def export(
    files: Annotated[list[Path], typer.Argument(help="Results CSVs of problems, each with its JSON beside it.")],
    to: Annotated[Format, typer.Option("--to", help="KernelBench's results and fast_p, kernelbot's lines, or FlashInfer's traces.")],
    backends: Annotated[list[str] | None, typer.Option("--backends", help="The solutions, by name or shell pattern. Repeatable.")] = None,
    workloads: Annotated[
        Path | None, typer.Option("--workloads", metavar="FILE", help="A definition's workloads, whose identifiers the traces get.")
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", "--output", metavar="FILE|-", help="The file to write.")] = Path("-"),
) -> None:
    """Write results of problems in the format of another evaluator, for its boards and tools."""
    from softbench.report import exports
    from softbench.results.select import select

    if workloads and to is not Format.flashinfer:
        raise UsageError(f"--workloads: {to} has no workloads; --to flashinfer has")
    wanted = [part for one in backends or () for part in one.split(",")]
    found = {}
    for file in map(results_file, files):
        rows = read(file)
        chosen = select(rows, wanted)
        found[file] = [*chosen, *(row for row in rows if row.backend == REFERENCE and row not in chosen)]
    texts = {Format.kernelbench: exports.kernelbench, Format.kernelbot: exports.kernelbot}
    text = exports.flashinfer(found, workloads) if to is Format.flashinfer else texts[to](found)
    printed(text, out, "-o")
