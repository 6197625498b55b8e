"""`softbench inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softbench.cli import options
from softbench.cli.actions import interruptible, note, try_file, wrote_to_stdout
from softbench.cli.panels import OUTPUT, WHAT, PanelCommand
from softbench.core.case import OPERATION
from softbench.core.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand)(inspect)


def inspect(
    backend: Annotated[str, typer.Argument(help="A name from softbench list.", autocompletion=options.BACKEND)],
    M: Annotated[int | None, typer.Option("--M", help="Rows.", min=1, rich_help_panel=WHAT, show_default="4096")] = None,
    N: Annotated[int | None, typer.Option("--N", help="Columns.", min=1, rich_help_panel=WHAT, show_default="4096")] = None,
    shape: Annotated[str | None, typer.Option(help="Shape in place of --M and --N: 8x16x1024x1024.", rich_help_panel=WHAT)] = None,
    dim: Annotated[str | None, typer.Option(help="The reduced dimension of --shape.", rich_help_panel=WHAT, show_default="-1")] = None,
    dtype: Annotated[str, typer.Option(help="fp32, fp16 or bf16.", rich_help_panel=WHAT, autocompletion=options.DTYPE)] = "fp32",
    direction: Annotated[
        str, typer.Option(help="forward, backward, both or fused.", rich_help_panel=WHAT, autocompletion=options.DIRECTION)
    ] = "forward",
    op: options.Operation = OPERATION,
    set: options.Parameters = None,
    show: Annotated[
        str, typer.Option(help="source, wrapper, ttir, ttgir, llir, ptx, sass, report, several; all or none.", rich_help_panel=OUTPUT)
    ] = "source",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", "--output", metavar="DIR", help="Write all code into this folder.", rich_help_panel=OUTPUT)
    ] = None,
    device: options.Device = None,
    seed: options.Seed = None,
    timeout: options.Timeout = None,
    plugin: options.Plugin = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE|-", help="Write everything as JSON; - is stdout, without the code.", rich_help_panel=OUTPUT)
    ] = None,
) -> None:
    """Show the code that a backend generates for one case: sources, Triton's stages, PTX and SASS.

    For each kernel of a call on a GPU it shows grid, block, registers, spills, shared memory and bytes moved.
    """
    from softbench.cli import output
    from softbench.plan import sweep
    from softbench.plan.flags import from_flags
    from softbench.plan.settings import Settings, with_axes
    from softbench.report import listing
    from softbench.run import inspect as inspections, operations

    flags = from_flags({"device": device, "seed": seed, "timeout": timeout, "plugins": plugin})
    extents = {"M": M and str(M), "N": N and str(N), "shape": shape, "dim": dim}
    axes = from_flags({**extents, "dtype": dtype, "direction": direction, "op": operations.name(op, set)})
    try:
        (case,) = sweep.cases([with_axes(sweep.Sweep((4096,), (4096,)), axes)], "cuda")
    except ValueError:
        raise UsageError("softbench inspect shows one case: give one --dtype, one --direction, and one --shape with one --dim") from None
    kinds = inspections.kinds(show)
    try_file(json)
    if out is not None:
        inspections.make_folder(out)
    with interruptible():
        inspection = inspections.inspect(Settings.from_sources({}, flags), backend, case)
    if not wrote_to_stdout(inspection.document, json):
        console = output.console()
        output.show(listing.inspection(inspection, kinds, color=console.is_terminal), console)
    if out is not None:
        for file in inspections.write(inspection, out):
            note(f"wrote {file}")
    elif others := listing.others(inspections.left_out(inspection, kinds)):
        note(others)
