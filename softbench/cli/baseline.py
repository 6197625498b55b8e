"""`softbench baseline`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from softbench.cli.actions import warn
from softbench.cli.options import BASELINES, GATE_EPILOG, Folder, Mismatch
from softbench.cli.panels import PanelCommand
from softbench.core.errors import SoftbenchError, UsageError

RunsArgument = Annotated[list[Path], typer.Argument(help="Results CSVs of runs on one machine; their processes add up.")]

commands = typer.Typer(
    help="Baselines of the gate: what several processes measured on one machine, in a readable file.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.add_typer(commands, name="baseline")


@commands.command(cls=PanelCommand, epilog=GATE_EPILOG)
def save(
    files: RunsArgument,
    name: Annotated[str, typer.Option(help="What to call it; the file is FOLDER/NAME.json.")],
    folder: Folder = BASELINES,
    force: Annotated[bool, typer.Option("--force", help="Replace a baseline of that name.")] = False,
) -> None:
    """Save runs (5 processes at least, 10 recommended) as a baseline: softbench baseline save results/latest.csv --name h200."""
    from softbench.gate import baselines, run_files

    file, warnings = baselines.save([run_files.read(path) for path in files], name, folder, force=force)
    warn(warnings)
    typer.echo(file)


@commands.command(name="list", cls=PanelCommand)
def list_baselines(folder: Folder = BASELINES) -> None:
    """List the baselines, and which of them cannot be read."""
    from softbench.cli import output
    from softbench.gate import baselines
    from softbench.report import gate_report, tables

    found: list[Any] = []
    for file in baselines.saved(folder):
        try:
            found.append((file.stem, baselines.open_baseline(str(file), folder)))
        except SoftbenchError as error:
            found.append((file.stem, str(error)))
    if not found:
        raise UsageError(f"{folder}: no baselines; save one with: softbench baseline save results/latest.csv --name NAME")
    output.show(tables.facts(gate_report.baselines(found)), output.console())


@commands.command(cls=PanelCommand)
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A saved baseline, or a file.")], folder: Folder = BASELINES
) -> None:
    """Show a baseline: where it was measured, and each cell's figure with its spread between processes."""
    from softbench.cli import output
    from softbench.gate import baselines
    from softbench.report import gate_report

    output.show(gate_report.baseline(baselines.open_baseline(name, folder)), output.console())


@commands.command(cls=PanelCommand, epilog=GATE_EPILOG)
def promote(
    candidate: Annotated[str, typer.Argument(metavar="NAME|FILE", help="The baseline that becomes the one to hold runs against.")],
    name: Annotated[str, typer.Argument(help="The name it takes; what had it is kept as NAME.previous.")],
    allow_env_mismatch: Mismatch = None,
    folder: Folder = BASELINES,
) -> None:
    """Give a saved baseline a name, after a change that is meant to stay. The name's former baseline is kept as NAME.previous."""
    from softbench.gate import baselines

    file, previous, warnings = baselines.promote(candidate, name, folder, allow_env_mismatch or [])
    warn(warnings + ([f"the former one is {previous}"] if previous else []))
    typer.echo(file)
