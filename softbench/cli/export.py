"""`softbench export`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from softbench.cli.actions import printed, read, results_file
from softbench.cli.panels import PanelCommand
from softbench.core.case import REFERENCE, YARDSTICK
from softbench.core.errors import ResultsError, UsageError

Format = StrEnum("Format", ["kernelbench", "kernelbot", "flashinfer", "github-action-benchmark", "bencher", "pytorch-hud"])


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand)(export)


def export(
    files: Annotated[list[Path], typer.Argument(help="Results CSVs; those of problems with their JSON.")],
    to: Annotated[Format, typer.Option("--to", help=f"The format: {', '.join(Format)}.")],
    backends: Annotated[list[str] | None, typer.Option("--backends", help="The backends, by name or shell pattern. Repeatable.")] = None,
    workloads: Annotated[
        Path | None, typer.Option("--workloads", metavar="FILE", help="A definition's workloads, whose identifiers the traces get.")
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", "--output", metavar="FILE|-", help="The file to write.")] = Path("-"),
) -> None:
    """Write results in the format of another tool.

    Of problems: KernelBench's results and fast_p, kernelbot's lines, or FlashInfer's traces. Of all cells: the values for
    github-action-benchmark (customSmallerIsBetter), Bencher (--adapter json), or the HUD of PyTorch.
    """
    from softbench.report import exports, trackers
    from softbench.results.select import select

    if workloads and to is not Format.flashinfer:
        raise UsageError(f"--workloads: {to} has no workloads; --to flashinfer has")
    wanted = [part for one in backends or () for part in one.split(",")]
    found, tracker = {}, to.value in trackers.FORMATS
    for file in map(results_file, files):
        rows = read(file)
        chosen = select(rows, wanted)
        found[file] = (
            chosen if tracker else [*chosen, *(row for row in rows if row.backend.partition(":")[0] == REFERENCE and row not in chosen)]
        )
    others = (YARDSTICK,) if tracker else (YARDSTICK, REFERENCE)
    if not any(row.backend.partition(":")[0] not in others and (row.timed or not tracker) for rows in found.values() for row in rows):
        what = "no cell was right and timed" if tracker else "no cell of a solution"
        raise ResultsError(f"export {' '.join(map(str, found))}: {what}, so there is nothing to export; see: softbench show")
    if tracker:
        printed(trackers.text([row for rows in found.values() for row in rows], to.value), out, "-o")
        return
    texts = {Format.kernelbench: exports.kernelbench, Format.kernelbot: exports.kernelbot}
    text = exports.flashinfer(found, workloads) if to is Format.flashinfer else texts[to](found)
    printed(text, out, "-o")
