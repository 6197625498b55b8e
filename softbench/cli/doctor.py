"""`softbench doctor`."""

from __future__ import annotations

import typer

from softbench.cli.actions import interruptible


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(doctor)


def doctor() -> None:
    """Check the requirements of a run: GPU, driver, torch, triton, compilers. Exit code 1 if something must be installed."""
    from softbench.cli import output
    from softbench.report import tables
    from softbench.run.doctor import examine, healthy

    with interruptible():
        findings = examine(deadline=120)
    output.show(tables.facts(findings), output.console())
    raise typer.Exit(0 if healthy(findings) else 1)
