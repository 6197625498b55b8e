"""`softbench inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from softbench.cli import options
from softbench.cli.actions import interruptible, note, try_file, wrote_to_stdout
from softbench.cli.options import option
from softbench.cli.panels import OUTPUT, PanelCommand


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand)(inspect)


@options.takes("device", "seed", "timeout", "plugins", case=True)
def inspect(
    backend: Annotated[str, typer.Argument(help="A name from softbench list.", autocompletion=options.BACKEND)],
    show: Annotated[str, option(OUTPUT, "source, wrapper, ttir, ttgir, llir, ptx, sass, report, several; all or none.")] = "source",
    out: Annotated[Path | None, option(OUTPUT, "Write all code into this folder.", "-o", "--out", "--output", metavar="DIR")] = None,
    json: Annotated[Path | None, option(OUTPUT, "Write everything as JSON; - is stdout, without the code.", metavar="FILE|-")] = None,
    **given: Any,
) -> None:
    """Show the code that a backend generates for one case: sources, Triton's stages, PTX and SASS.

    For each kernel of a call on a GPU it shows grid, block, registers, spills, shared memory and bytes moved.
    """
    from softbench.cli import output
    from softbench.plan.settings import Settings, from_flags
    from softbench.report import listing
    from softbench.run import inspect as inspections

    given, solutions = options.with_solutions(given)
    given["plugins"] = [*(given["plugins"] or ()), *solutions]
    flags = from_flags({name: given[name] for name in ("device", "seed", "timeout", "plugins")})
    case = options.case_of(given, "softbench inspect shows one case")
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
