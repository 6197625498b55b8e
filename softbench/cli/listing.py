"""`softbench list`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softbench.cli import options
from softbench.cli.actions import interruptible, read
from softbench.cli.panels import OUTPUT, PanelCommand


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(name="list", cls=PanelCommand)(list_backends)


def list_backends(
    pattern: Annotated[str, typer.Argument(help="all (but extras), a name, or a pattern: 'compile:*', '*'.")] = "all",
    long: Annotated[bool, typer.Option("--long", help="What each is, what it costs, when to pick it.", rich_help_panel=OUTPUT)] = False,
    costs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A results CSV for --long.", show_default="results/h200/strategies.csv", rich_help_panel=OUTPUT),
    ] = None,
    plugin: options.Plugin = None,
    device: options.Device = None,
    load: Annotated[bool, typer.Option("--load", help="Load plugins too, each in its own process: this runs their code.")] = False,
) -> None:
    """List the backends: where they come from, and whether they can run here. Plugins are read, not run, unless --load."""
    from softbench.cli import output
    from softbench.plan.flags import from_flags
    from softbench.plan.settings import Settings
    from softbench.plugins.select import matching
    from softbench.plugins.source import ALL
    from softbench.report import listing
    from softbench.results.by_backend import by_backend, committed
    from softbench.run import run

    known = by_backend(read(costs)) if costs else committed() if long else {}
    flags = from_flags({"plugins": plugin, "device": device})
    with interruptible():
        infos = run.infos(Settings.from_sources({}, flags), load=load)
    found = matching(infos, pattern)
    output.show(listing.guide(found, known) if long else listing.backends(found), output.console())
    if pattern == ALL and (extras := [info for info in infos if info.extra]):
        typer.echo(listing.extras(extras))
