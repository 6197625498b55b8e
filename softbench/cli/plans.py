"""The plan of a run, printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from softbench.cli import verbosity

if TYPE_CHECKING:
    from softbench.plan.plan import IsStored, Plan


LISTED = 100
"""Cases of a plan that are listed without `--verbose`."""


def show_plan(plan: Plan, seconds: float, resumed: str, stored: IsStored) -> None:
    """Print the cases of a plan and its time; `resumed` is the run that it continues."""
    from softbench.cli import output
    from softbench.core.text import count, duration, few, size
    from softbench.ops.registry import operation
    from softbench.report import answer, tables

    available, left = [info.name for info in plan.infos if info.able], plan.left(stored)
    cases = [*left]
    hidden = 0 if verbosity.verbose() or len(cases) <= LISTED else len(cases) - LISTED
    pairs = [
        (
            *(case.key, f"up to {size(operation(case.op).largest_bytes(case))} a tensor"),
            plan.too_large(case)
            or ("takes turns: memory holds the tensors of one backend at a time" if plan.takes_turns(case, len(available)) else ""),
        )
        for case in cases[: len(cases) - hidden]
    ]
    if hidden:
        large = sum(not cells for cells in left.values())
        pairs.append(
            (f"and {count(hidden, 'more case')}", "", "--verbose shows each" + (f"; {large} of all are too large" if large else ""))
        )
    unable = [info for info in plan.infos if not info.able]
    folded = len(unable) > answer.FEW and not verbosity.verbose()
    output.show(tables.facts(pairs if folded else pairs + [tables.info(info) for info in unable]), output.console())
    if folded:
        typer.echo(f"unavailable: {few([info.name for info in unable])}; the reasons: --verbose")
    settings = plan.settings
    adaptive = settings.rounds < settings.max_rounds
    rounds = f"{settings.rounds} to {settings.max_rounds} rounds" if adaptive else count(settings.rounds, "round")
    backends = f"{count(len(available), 'backend')} ({', '.join(available)})"
    if resumed:
        cells, more = sum(plan.left().values()), sum(left.values())
        what = f"{resumed}: {count(cells - more, 'cell')} stored, {count(more, 'cell')} of {count(len(left), 'case')} and {backends} left"
    else:
        what = f"{count(len(plan.cases), 'case')} x {backends} = {count(len(plan.cases) * len(available), 'cell')}"
    typer.echo(f"{what}, {rounds}, {count(settings.processes, 'process set')}, on {plan.device_name}: about {duration(seconds)}")
