"""`softbench run`."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softbench.cli import options, verbosity
from softbench.cli.actions import interruptible, measure, note, show_table, try_file, warn, wrote_to_stdout
from softbench.cli.options import option
from softbench.cli.panels import OUTPUT, RUN_EPILOG, WHERE, PanelCommand
from softbench.cli.plans import show_plan
from softbench.core.errors import NotMeasurableError, SoftbenchError, UsageError
from softbench.core.text import unknown
from softbench.plan.declare import HOW_LONG, RARE

if TYPE_CHECKING:
    from softbench.results.writer import Run
    from softbench.run.fleet.fleet import How
    from softbench.run.request import RunRequest


Quick = Annotated[bool, option(HOW_LONG, "A short run: three short rounds and, without --N, at most six N.", "--quick", default=False)]
Output = Annotated[Path, option(WHERE, "Folder of the results.", "-o", "--output")]
Report = Annotated[
    bool, option(WHERE, "Also write the results as an HTML page, DIR/latest.html; see softbench report.", "--report", default=False)
]
Resume = Annotated[bool, option(WHERE, "Continue the newest interrupted run of these settings in that folder.", "--resume", default=False)]
RetryFailed = Annotated[
    bool,
    option(
        WHERE,
        "As --resume, also of a finished run: measure the cases again in which a cell is failed, timeout or oom.",
        "--retry-failed",
        default=False,
    ),
]
DryRun = Annotated[
    bool,
    option(WHERE, "Show the cells and the estimated time; measure nothing. With --resume: what is left.", "--dry-run", default=False),
]
Shard = Annotated[
    str | None,
    option(
        RARE,
        "Measure one part of the cases, such as 2/8, for a matrix of tasks; softbench merge puts the parts together.",
        metavar="I/N",
    ),
]
Ray = Annotated[
    str | None,
    option(
        RARE,
        "Measure on all GPUs of a Ray cluster: its address, or auto; needs softbench[ray].",
        metavar="auto|ADDRESS",
    ),
]
Spread = Annotated[
    str | None,
    option(RARE, "shard deals the cases to the cards of a model; replicate measures everything on every card.", default="shard"),
]
Force = Annotated[bool, option(RARE, "Deal cases to cards of one model that are more than 2 % apart.", "--force")]
Verbose = Annotated[
    bool,
    option(
        OUTPUT,
        "Also print each case's progress, every phase, and why backends are unavailable.",
        "-v",
        "--verbose",
        default=False,
    ),
]
Json = Annotated[
    Path | None,
    option(WHERE, "Write the run document, or the plan of --dry-run, as JSON; - is stdout, without the table.", metavar="FILE|-"),
]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand, epilog=RUN_EPILOG)(run)


@options.takes(command="run", after={"devices": "device", "quick": "processes"})
def run(
    *,
    quick: Quick = False,
    output: Output = Path("results"),
    report: Report = False,
    resume: Resume = False,
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
    shard: Shard = None,
    devices: options.Devices = None,
    ray: Ray = None,
    spread: Spread = None,
    force: Force = False,
    quiet: options.Quiet = False,
    verbose: Verbose = False,
    json: Json = None,
    **given: Any,
) -> None:
    """Check and time every backend on every shape; write a table, DIR/latest.csv and DIR/latest.json.gz.

    Without shapes, a GPU runs the sweep of Triton's fused-softmax tutorial (M=4096, N=256:6272:128, fp32), a CPU a short one.
    """
    from softbench.run.request import requested

    verbosity.choose(quiet=quiet, verbose=verbose)
    command = sys.argv[1:]
    request = requested(given, command, output=output, quick=quick, resume=resume, shard=shard, retry_failed=retry_failed)
    try_file(json)
    several = _cards(devices, ray, spread, force, given["device"])
    if dry_run:
        _dry_run(request, json) if several is None else _dry_run_of_cards(several, request, json)
        return
    from softbench.run.quiet import not_measurable
    from softbench.run.run import exit_code

    show = partial(_show, json=json if str(json) == "-" else None)  # a file may be on the full disk too
    measured = measure(request, show=show, several=several)
    _report(measured, json, page=report)
    rows = measured.rows()
    code = exit_code(rows)
    if not code and (text := not_measurable(rows)):
        note(text, error=True)
        code = NotMeasurableError.exit_code
    raise typer.Exit(code)


def _cards(devices: str | None, ray: str | None, spread: str | None, force: bool, device: str | None) -> How | None:
    """How a run uses several cards; None if it uses one.

    Raises:
        UsageError: options that contradict each other.
    """
    given = [f"--{name} {value}" for name, value in (("device", device), ("devices", devices), ("ray", ray)) if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)}: give one of them")
    if devices is None and ray is None:
        if spread is not None or force:
            raise UsageError(f"--{'force' if spread is None else 'spread'} goes with --devices or --ray: a run on one card deals nothing")
        return None
    from softbench.run.fleet.cards import LocalCards
    from softbench.run.fleet.fleet import SPREADS, How
    from softbench.run.fleet.ray_cards import RayCards

    chosen = SPREADS[0] if spread is None else spread
    if chosen not in SPREADS:
        raise UsageError(f"--spread: {unknown(chosen, SPREADS, 'spread')}")
    cards = partial(RayCards, ray) if ray is not None else (lambda request: LocalCards(devices or ""))
    return How(cards, chosen, force)


SHOWN_SECONDS = 0.1
"""Phases of a run that took less are not named."""


def _report(measured: Run, json: Path | None, *, page: bool) -> None:
    """Print the table (or the JSON) on stdout, and the names of the files on stderr; if quiet, failures and the answer."""
    if page:
        _page(measured)
    if verbosity.quiet():
        _report_quietly(measured, json)
        return
    _show(measured, json)
    logs = f"; logs of failed workers are in {measured.log}" if measured.log.exists() else ""
    note(f"wrote {measured.csv} and {measured.json}{logs}")
    if spent := measured.header.get("seconds"):
        phases = spent if verbosity.verbose() else _phases(spent)
        longest = sorted(((seconds, phase) for phase, seconds in phases.items() if phase != "wall"), reverse=True)
        shown = [f"{phase} {seconds:.1f} s" for seconds, phase in longest if seconds >= SHOWN_SECONDS or verbosity.verbose()]
        note(f"took {spent['wall']:.1f} s: {', '.join(shown)}")


def _phases(spent: Mapping[str, float]) -> dict[str, float]:
    """The seconds of requests, by the phase that `--timeout` names."""
    from softbench.run.pace import PHASE

    phases: dict[str, float] = defaultdict(float)
    for request, seconds in spent.items():
        phases["import" if PHASE.get(request) == "load" else PHASE.get(request, request)] += seconds
    return phases


def _page(measured: Run) -> None:
    """Write the page of the results. An error is printed and does not change the exit code, because the results are on disk."""
    from softbench.cli.report import write_page

    try:
        note(f"wrote {write_page(measured)}")
    except (OSError, SoftbenchError) as error:
        note(f"--report: {error}", error=True)


def _report_quietly(measured: Run, json: Path | None) -> None:
    from softbench.cli import output
    from softbench.report import tables

    rows = measured.rows()
    for line in tables.failures(rows):
        note(line, error=True)
    if not wrote_to_stdout(measured.document, json):
        console = output.console(log_width=output.TABLE_WIDTH)
        output.show(tables.answers(rows, console), console)


def _show(measured: Run, json: Path | None) -> None:
    """Print the table, then write the JSON, which may fail; JSON on stdout replaces the table."""
    if str(json) != "-":
        show_table(measured)
    wrote_to_stdout(measured.document, json)


def _dry_run(request: RunRequest, json: Path | None) -> None:
    """Print the plan of a run, or of what is left of the interrupted run that it would continue."""
    from softbench.plan.estimate import run_seconds
    from softbench.plan.plan import nothing_stored
    from softbench.run import run

    plan, found = run.dry_run(request), None
    for text in plan.lost:
        note(text, error=True)
    warn(plan.notes)
    if request.resume:
        found, told = run.interrupted_run(request, plan)
        for text, loss in told[1:] if found else told:
            note(text, error=loss)
    stored, name = (found.has, found.name) if found else (nothing_stored, "")
    seconds = run_seconds(plan, stored=stored)
    if not wrote_to_stdout(lambda: plan.document(seconds, name, stored), json):
        show_plan(plan, seconds, name, stored)


def _dry_run_of_cards(several: How, request: RunRequest, json: Path | None) -> None:
    """Print the plan of the whole sweep, and what each card would measure of it."""
    from softbench.core.text import count, duration, few
    from softbench.plan.estimate import run_seconds
    from softbench.plan.plan import nothing_stored
    from softbench.run.fleet import fleet
    from softbench.run.fleet.doctor import Notes

    with interruptible():
        hands = fleet.dry_run(several, request, Notes(note))
    if request.resume:
        note("this is the whole sweep, without what an interrupted run has")
    seconds = [run_seconds(replace(hand.plan, cases=hand.cases)) for hand in hands]
    names = ", ".join(dict.fromkeys(hand.plan.device_name for hand in hands))
    plan = replace(hands[0].plan, device_name=f"{count(len(hands), 'card')} ({names})")
    cards = [
        {"card": hand.name, "unit": hand.plan.unit, "estimate_s": round(own, 3), "cases": [case.key for case in hand.cases]}
        for hand, own in zip(hands, seconds, strict=True)
    ]
    if wrote_to_stdout(lambda: {**plan.document(max(seconds)), "cards": cards}, json):
        return
    show_plan(plan, max(seconds), "", nothing_stored)
    for hand, own in zip(hands, seconds, strict=True):
        keys = [case.key for case in hand.cases]
        what = f": {', '.join(keys) if verbosity.verbose() else few(keys)}" if keys else ""
        typer.echo(f"{hand.name} ({hand.plan.unit}): {count(len(keys), 'case')}, about {duration(own)}{what}")
