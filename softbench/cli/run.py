"""`softbench run`."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from softbench import __version__
from softbench.cli import fleet_options, options, verbosity
from softbench.cli.actions import interruptible, measure, note, show_table, try_file, warn, wrote_to_stdout
from softbench.cli.panels import PanelCommand
from softbench.core.errors import SoftbenchError
from softbench.core.text import printable

if TYPE_CHECKING:
    from softbench.plan.plan import Plan, Stored
    from softbench.results.store import Run
    from softbench.run.fleet.fleet import How
    from softbench.run.request import RunRequest


SETTINGS = (
    *("backends", "M", "N", "shape", "dim", "dtype", "direction", "set", "device", "threads", "rounds", "max_rounds", "precision"),
    *("processes", "seed", "relative_to", "timer", "l2", "profile", "judge", "timeout"),
)
"""The parameters of `run` that are settings as they are."""


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand, epilog=options.RUN_EPILOG)(run)


def run(
    backends: options.Backends = None,
    M: options.Rows = None,
    N: options.Columns = None,
    shape: options.Shapes = None,
    dim: options.Dims = None,
    dtype: options.Dtype = None,
    direction: options.Directions = None,
    op: options.Operations = None,
    set: options.Parameters = None,
    config: options.Config = None,
    device: options.Device = None,
    threads: options.Threads = None,
    rounds: options.Rounds = None,
    max_rounds: options.MaxRounds = None,
    precision: options.Precision = None,
    processes: options.Processes = None,
    seed: options.Seed = None,
    relative_to: options.RelativeTo = None,
    timer: options.Timer = None,
    l2: options.L2 = None,
    profile: options.Profile = None,
    judge: options.Judge = None,
    timeout: options.Timeout = None,
    plugin: options.Plugin = None,
    output: options.Output = Path("results"),
    report: options.Report = False,
    resume: options.Resume = False,
    dry_run: options.DryRun = False,
    shard: fleet_options.Shard = None,
    devices: fleet_options.Devices = None,
    ray: fleet_options.Ray = None,
    spread: fleet_options.Spread = None,
    force: fleet_options.Force = False,
    quick: options.Quick = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    json: options.RunJson = None,
) -> None:
    """Check and time every backend on every shape; write a table, DIR/latest.csv and DIR/latest.json.gz.

    Without shapes, a GPU runs the sweep of Triton's fused-softmax tutorial (M=4096, N=256:6272:128, fp32), a CPU a short one.
    """
    request = _request(dict(locals()))
    try_file(json)
    several = fleet_options.how(devices, ray, spread, force, device)
    if dry_run:
        _dry_run(request, json) if several is None else _dry_run_of_cards(several, request, json)
        return
    from softbench.run.run import exit_code

    show = partial(_show, json=json if str(json) == "-" else None)  # a file may be on the full disk too
    measured = measure(request, show=show, several=several)
    _report(measured, json, page=report)
    raise typer.Exit(exit_code(measured.records()))


def _request(given: dict[str, Any]) -> RunRequest:
    """The request from the parameters of `run`. Raises UsageError for a wrong one."""
    from softbench.cli.output import command_line
    from softbench.plan.config_file import load
    from softbench.plan.deal import parse_shard
    from softbench.plan.flags import from_flags
    from softbench.run.operations import names
    from softbench.run.request import RunRequest

    verbosity.choose(quiet=given["quiet"], verbose=given["verbose"])
    flags = from_flags({key: given[key] for key in SETTINGS} | {"op": names(given["op"]), "plugins": given["plugin"]})
    layer = load(given["config"], names) if given["config"] is not None else {}
    shard = parse_shard(given["shard"]) if given["shard"] is not None else None
    about = (given["quick"], given["output"], given["resume"], command_line(sys.argv[1:]), __version__, shard)
    return RunRequest(layer, flags, *about)


SHOWN_SECONDS = 0.1
"""Phases of a run that took less are not named."""


def _report(measured: Run, json: Path | None, *, page: bool) -> None:
    """Print the table (or the JSON) on stdout, and the names of the files on stderr; if quiet, failures and the CSV's name."""
    if page:
        _page(measured)
    if verbosity.quiet():
        _report_quietly(measured, json)
        return
    _show(measured, json)
    logs = f"; logs of failed workers are in {measured.log}" if measured.log.exists() else ""
    note(f"wrote {measured.csv} and {measured.json}{logs}")
    if spent := measured.header.get("seconds"):
        phases = sorted(((seconds, phase) for phase, seconds in spent.items() if phase != "wall"), reverse=True)
        note(
            f"took {spent['wall']:.1f} s: "
            + ", ".join(f"{phase} {seconds:.1f} s" for seconds, phase in phases if seconds >= SHOWN_SECONDS or verbosity.verbose())
        )


def _page(measured: Run) -> None:
    """Write the page of the results. An error is printed and does not change the exit code, because the results are on disk."""
    from softbench.cli.report import write_page

    try:
        note(f"wrote {write_page(measured)}")
    except (OSError, SoftbenchError) as error:
        note(f"--report: {error}", error=True)


def _report_quietly(measured: Run, json: Path | None) -> None:
    from softbench.report import tables

    for line in tables.failures(measured.rows()):
        note(line, error=True)
    if not wrote_to_stdout(measured.document, json):
        typer.echo(printable(str(measured.csv)))


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

    plan, found, text = run.dry_run(request), None, ""
    if request.resume:
        found, text = run.interrupted_run(request, plan)
    warn([*plan.notes, *([text] if text and not found else [])])
    stored, name = (found.has, found.name) if found else (nothing_stored, "")
    seconds = run_seconds(plan, stored=stored)
    if not wrote_to_stdout(lambda: plan.document(seconds, name, stored), json):
        _show_plan(plan, seconds, name, stored)


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
    _show_plan(plan, max(seconds), "", nothing_stored)
    for hand, own in zip(hands, seconds, strict=True):
        keys = [case.key for case in hand.cases]
        what = f": {', '.join(keys) if verbosity.verbose() else few(keys)}" if keys else ""
        typer.echo(f"{hand.name} ({hand.plan.unit}): {count(len(keys), 'case')}, about {duration(own)}{what}")


def _show_plan(plan: Plan, seconds: float, resumed: str, stored: Stored) -> None:
    from softbench.cli import output
    from softbench.core.text import count, duration, few, size
    from softbench.ops.registry import operation
    from softbench.report import tables

    available, left = [info.name for info in plan.infos if info.able], plan.left(stored)
    pairs = [
        (
            *(case.key, size(operation(case.op).largest_bytes(case))),
            plan.too_large(case) or ("takes turns" if plan.takes_turns(case, len(available)) else ""),
        )
        for case in left
    ]
    unable = [info for info in plan.infos if not info.able]
    folded = len(unable) > tables.FEW and not verbosity.verbose()
    output.show(tables.facts(pairs if folded else pairs + [tables.info(info) for info in unable]), output.console())
    if folded:
        typer.echo(f"unavailable: {few([info.name for info in unable])}; the reasons: softbench list")
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
