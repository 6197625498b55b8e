"""The command line of `softbench inspect` and `softbench list`; `softbench.cli.main` has the other commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softbench.cli.options import DeviceOption, PluginOption, SeedOption, TimeoutOption, read, try_json, wrote_to_stdout
from softbench.core.errors import UsageError
from softbench.plugins.source import ALL


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the program."""
    app.command()(inspect)
    app.command(name="list")(list_backends)


def inspect(
    backend: Annotated[str, typer.Argument(help="A name, as softbench list has it.")],
    M: Annotated[int, typer.Option("--M", help="Rows.", min=1)] = 4096,
    N: Annotated[int, typer.Option("--N", help="Columns.", min=1)] = 4096,
    dtype: Annotated[str, typer.Option(help="fp32, fp16 or bf16.")] = "fp32",
    direction: Annotated[str, typer.Option(help="forward, backward or both.")] = "forward",
    show: Annotated[str, typer.Option(help="source, wrapper, ttir, ttgir, llir, ptx, sass, report, several; all or none.")] = "source",
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="DIR", help="Write every piece of code as a file there.")] = None,
    device: DeviceOption = None,
    seed: SeedOption = None,
    timeout: TimeoutOption = None,
    plugin: PluginOption = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE|-", help="Write all of it as JSON there; - is stdout, alone.")] = None,
) -> None:
    """Show the code generated for one case and its facts: sources, Triton's stages, PTX, SASS, registers, spills, grids, bytes.

    Of a call's kernels on a GPU it tells grid, block, registers, spills, shared memory and bytes moved.
    """
    from softbench.cli import output as terminal
    from softbench.core.case import Case
    from softbench.plan import sweep
    from softbench.plan.flags import from_flags
    from softbench.plan.settings import Settings
    from softbench.report import listing
    from softbench.run import inspect as inspecting

    flags = from_flags({"device": device, "seed": seed, "timeout": timeout, "plugins": plugin})
    dtypes, directions = sweep.parse_dtypes(dtype, "--dtype"), sweep.parse_directions(direction, "--direction")
    if len(dtypes) + len(directions) != 2:
        raise UsageError("softbench inspect looks at one case: give one --dtype and one --direction")
    kinds = inspecting.kinds(show)
    try_json(json)
    if out is not None:
        inspecting.make_folder(out)  # before any work
    with terminal.ending():
        found = inspecting.inspect(Settings.from_sources({}, flags), backend, Case(M, N, dtypes[0], directions[0]))
    if not wrote_to_stdout(found.document, json):
        console = terminal.console()
        terminal.show(listing.inspection(found, kinds, color=console.is_terminal), console)
    if out is not None:
        for file in inspecting.write(found, out):
            typer.echo(f"softbench: wrote {file}", err=True)
    elif told := listing.others(inspecting.left_out(found, kinds)):
        typer.echo(f"softbench: {told}", err=True)


def list_backends(
    pattern: Annotated[str, typer.Argument(help="all (but extras), a name, or a pattern: 'compile:*', '*'.")] = "all",
    long: Annotated[bool, typer.Option("--long", help="What each is, what it costs, when to pick it.")] = False,
    costs: Annotated[Path | None, typer.Option(metavar="FILE", help="A results CSV for --long. [results/h200/strategies.csv]")] = None,
    plugin: PluginOption = None,
    device: DeviceOption = None,
    load: Annotated[bool, typer.Option("--load", help="Import plugins too, each in a process of its own: this runs their code.")] = False,
) -> None:
    """List the backends: where they come from, and whether they can run here. Plugins are read, not run, unless --load."""
    from softbench.cli import output as terminal
    from softbench.plan.flags import from_flags
    from softbench.plan.settings import Settings
    from softbench.plugins import select as registry
    from softbench.report import listing
    from softbench.results import by_backend as costing
    from softbench.run import run as runner

    known = costing.by_backend(read(costs)) if costs else costing.committed() if long else {}
    flags = from_flags({"plugins": plugin, "device": device})
    with terminal.ending():
        infos = runner.infos(Settings.from_sources({}, flags), load=load)
    found = registry.matching(infos, pattern)
    terminal.show(listing.guide(found, known) if long else listing.backends(found), terminal.console())
    if pattern == ALL and (extras := [info for info in infos if info.extra]):
        typer.echo(listing.extras(extras))
