"""`softbench doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softbench import __version__
from softbench.cli import options
from softbench.cli.actions import interruptible, note, try_file, wrote_to_stdout
from softbench.cli.panels import OUTPUT, PanelCommand
from softbench.core.json import JsonObject


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand)(doctor)


def doctor(
    devices: options.Devices = None,
    json: Annotated[Path | None, options.option(OUTPUT, "Write the findings as JSON; - is stdout.", metavar="FILE|-")] = None,
) -> None:
    """Check the requirements of a run: GPU, driver, torch, triton, compilers. Exit code 1 if something must be installed.

    With --devices, also compare the cards: copy on each card alone, then on all at once.
    """
    from softbench.cli import output
    from softbench.report import tables
    from softbench.run.doctor import examine, healthy
    from softbench.run.fleet import doctor as fleet_doctor

    try_file(json)
    with interruptible():
        findings = examine(deadline=120)
        if devices is not None:
            findings += fleet_doctor.examine(devices, note)
    well = healthy(findings)

    def document() -> JsonObject:
        found = [dict(zip(("name", "state", "text"), finding, strict=True)) for finding in findings]
        return {"softbench": __version__, "healthy": well, "findings": found}

    if not wrote_to_stdout(document, json):
        output.show(tables.facts(findings), output.console())
    raise typer.Exit(0 if well else 1)
