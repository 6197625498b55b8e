"""`softbench doctor`."""

from __future__ import annotations

import typer

from softbench.cli import options
from softbench.cli.actions import interruptible, note
from softbench.cli.panels import PanelCommand


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand)(doctor)


def doctor(devices: options.Devices = None) -> None:
    """Check the requirements of a run: GPU, driver, torch, triton, compilers. Exit code 1 if something must be installed.

    With --devices, also compare the cards: copy on each card alone, then on all at once.
    """
    from softbench.cli import output
    from softbench.report import tables
    from softbench.run.doctor import examine, healthy
    from softbench.run.fleet import doctor as fleet_doctor

    with interruptible():
        findings = examine(deadline=120)
        if devices is not None:
            findings += fleet_doctor.examine(devices, note)
    output.show(tables.facts(findings), output.console())
    raise typer.Exit(0 if healthy(findings) else 1)
