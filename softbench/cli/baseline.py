"""`softbench baseline`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from softbench.cli.actions import note, warn
from softbench.cli.options import BASELINES, GATE_EPILOG, Folder
from softbench.cli.panels import LineGroup, PanelCommand
from softbench.core.errors import SoftbenchError
from softbench.core.text import printable

RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE|NAME...", help="Results CSVs of runs on one machine, or a baseline to add runs to; their processes add up."
    ),
]

commands = typer.Typer(
    cls=LineGroup,
    help="Baselines of the gate: process medians from one machine, in a readable file.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.add_typer(commands, name="baseline")


@commands.command(cls=PanelCommand, epilog=GATE_EPILOG)
def save(
    files: RunsArgument,
    name: Annotated[str, typer.Option(help="Name of the baseline; the file is FOLDER/NAME.json.")],
    folder: Folder = BASELINES,
    force: Annotated[bool, typer.Option("--force", help="Replace a baseline of that name.")] = False,
    allow_busy: Annotated[bool, typer.Option("--allow-busy", help="Also save runs that ended with exit code 5.")] = False,
) -> None:
    """Save runs (at least 5 processes, 10 recommended) as a baseline: softbench baseline save results/latest.csv --name h200."""
    from softbench.gate import baselines

    parts = [baselines.open_baseline(str(path), folder) for path in files]
    for path in [] if allow_busy else files:
        baselines.reject_not_measurable(path)
    file, warnings = baselines.save(parts, name, folder, force=force)
    warn(warnings)
    typer.echo(printable(str(file)))


@commands.command(name="list", cls=PanelCommand)
def list_baselines(folder: Folder = BASELINES) -> None:
    """List the baselines. A file that cannot be read is shown as broken. Without a baseline, the commands that save one are printed."""
    from softbench.cli import output
    from softbench.gate import baselines
    from softbench.gate.unpaired import RECOMMENDED_BASE
    from softbench.report import gate_report, tables

    listed: list[Any] = []
    for file in baselines.saved(folder):
        try:
            listed.append((file.stem, baselines.open_baseline(str(file), folder)))
        except SoftbenchError as error:
            listed.append((file.stem, str(error)))
    if not listed:
        save = ["softbench", "baseline", "save", "results/latest.csv", "--name", "NAME"]
        save += [] if folder == BASELINES else ["--folder", str(folder)]
        measure = f"softbench run --processes {RECOMMENDED_BASE}"
        note(f"no baselines in {folder}; measure and save one with: {measure} && {shlex.join(save)}")
        return
    output.show(tables.facts(gate_report.baselines(listed)), output.console())


@commands.command(cls=PanelCommand)
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A saved baseline, or a file.")], folder: Folder = BASELINES
) -> None:
    """Show a baseline: its environment, and each cell's median with its spread between processes."""
    from softbench.cli import output
    from softbench.gate import baselines
    from softbench.report import gate_report

    output.show(gate_report.baseline(baselines.open_baseline(name, folder)), output.console())
