"""`softbench list`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from softbench.cli import options
from softbench.cli.actions import interruptible, read
from softbench.cli.panels import OUTPUT, PanelCommand


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(name="list", cls=PanelCommand)(list_backends)


@options.takes("plugins", "device", own_first=True)
def list_backends(
    pattern: Annotated[
        str, typer.Argument(help="all (without extras), a name, or a pattern: 'compile:*', '*'.", autocompletion=options.BACKENDS)
    ] = "all",
    long: Annotated[
        bool, typer.Option("--long", help="For each backend a summary, its costs, and when to choose it.", rich_help_panel=OUTPUT)
    ] = False,
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A results CSV whose costs --long shows.",
            show_default="results/h200/strategies.csv",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Also extras, Dynamo's backends for its own tests, and those whose package does not fit PyTorch any more.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    ops: Annotated[
        bool, typer.Option("--ops", help="List the operations, each with its passes and its backends.", rich_help_panel=OUTPUT)
    ] = False,
    load: Annotated[bool, typer.Option("--load", help="Load plugins too, each in its own process; this runs their code.")] = False,
    **given: Any,
) -> None:
    """List the backends with their sources, and whether they can run here. Plugins are read and not run, unless --load."""
    from softbench.cli import output
    from softbench.ops.registry import names, operation
    from softbench.plan.settings import Settings, from_flags
    from softbench.plugins.select import matching, not_loaded
    from softbench.plugins.source import ALL
    from softbench.report import listing
    from softbench.results.costs import by_backend, committed
    from softbench.run import run

    costs_by_backend = by_backend(read(costs)) if costs else committed() if long else {}
    flags = from_flags(given)
    with interruptible():
        infos = run.infos(Settings.from_sources({}, flags), load=load)
    pattern = "*" if every and pattern == ALL else pattern
    matched = matching(infos, pattern)
    hidden = [info for info in matched if info.hidden and info.name != pattern and not every]
    matched = [info for info in matched if info not in hidden]
    if ops:
        output.show(listing.operations([operation(name) for name in names()], matched), output.console())
        return
    selected = list(dict.fromkeys([*matched, *not_loaded(infos)]))
    output.show(listing.guide(selected, costs_by_backend) if long else listing.backends(selected), output.console())
    if pattern == ALL and (extras := [info for info in infos if info.extra and not info.hidden]):
        typer.echo(listing.extras(extras))
    if hidden:
        typer.echo(listing.hidden(hidden))
