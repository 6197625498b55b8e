"""`softbench list`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softbench import __version__
from softbench.cli import options
from softbench.cli.actions import interruptible, read, try_file, wrote_to_stdout
from softbench.cli.options import option
from softbench.cli.panels import OUTPUT, PanelCommand
from softbench.core.errors import UsageError
from softbench.core.text import split_exclusions

if TYPE_CHECKING:
    from softbench.core.json import JsonObject
    from softbench.plugins.info import BackendInfo

Pattern = Annotated[
    str,
    typer.Argument(
        help="all (without extras), or names and patterns as of --backends: 'compile:*', '!torch', '*'.", autocompletion=options.BACKENDS
    ),
]
Long = Annotated[bool, option(OUTPUT, "For each backend a summary, its costs, and when to choose it.", "--long", default=False)]
Costs = Annotated[
    Path | None, option(OUTPUT, "A results CSV whose costs --long shows.", metavar="FILE", default="results/h200/strategies.csv")
]
Every = Annotated[
    bool,
    option(
        OUTPUT,
        "Also extras, Dynamo's backends for its own tests, and those whose package does not fit PyTorch any more.",
        "--all",
        default=False,
    ),
]
Ops = Annotated[bool, option(OUTPUT, "List the operations, each with its passes and its backends.", "--ops", default=False)]
Problem = Annotated[
    str | None,
    option(
        OUTPUT,
        "List a problem with its cases, baselines and solutions.",
        "--problem",
        "--op",
        metavar="PROBLEM",
    ),
]
Json = Annotated[Path | None, option(OUTPUT, "Write the listed backends or operations as JSON; - is stdout.", metavar="FILE|-")]
Load = Annotated[bool, option(OUTPUT, "Load plugins too, each in its own process; this runs their code.", "--load", default=False)]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(name="list", cls=PanelCommand)(list_backends)


@options.takes("plugins", "device", own_first=True)
def list_backends(
    pattern: Pattern = "all",
    long: Long = False,
    costs: Costs = None,
    every: Every = False,
    ops: Ops = False,
    problem: Problem = None,
    json: Json = None,
    load: Load = False,
    **given: Any,
) -> None:
    """List the backends with their sources, and whether they can run here. Plugins are read and not run, unless --load."""
    from softbench.cli import output
    from softbench.ops.registry import names, operation
    from softbench.plan.settings import Settings, from_flags
    from softbench.plugins.select import matching, not_loaded
    from softbench.plugins.source import ALL
    from softbench.report import listing
    from softbench.results.costs import by_backend, committed
    from softbench.run import operations, run

    if json is not None and str(json) != "-" and not json.suffix:
        raise UsageError(f"list --json {json}: name a file such as backends.json; a pattern stands in front: softbench list {json} --json")
    try_file(json)
    costs_by_backend = by_backend(read(costs)) if costs else committed() if long else {}
    wanted_problems, solutions = operations.with_solutions([problem] if problem else [])
    flags = from_flags({**given, "plugins": [*(given["plugins"] or ()), *solutions]})
    with interruptible():
        listed = operations.names(wanted_problems) or []
        infos = run.infos(Settings.from_sources({}, flags), load=load, ops=listed)
    named, excluded = split_exclusions(one.strip() for one in pattern.split(","))
    wanted = ["*" if every and one == ALL else one for one in named or [ALL]]
    out = {info for one in excluded for info in matching(infos, one, f"'!{one}' excludes nothing: ")}
    matched = [info for info in dict.fromkeys(info for one in wanted for info in matching(infos, one)) if info not in out]
    hidden = [info for info in matched if info.hidden and info.name not in wanted and not every]
    matched = [info for info in matched if info not in hidden]
    if ops or problem:
        known = [operation(name) for name in listed or names()]
        if not wrote_to_stdout(lambda: _document("operations", [listing.operation_facts(one, matched) for one in known]), json):
            output.show(listing.operations(known, matched), output.console())
        return
    selected = list(dict.fromkeys([*matched, *not_loaded(infos)]))
    if wrote_to_stdout(lambda: _document("backends", [listing.backend_facts(info) for info in selected]), json):
        return
    output.show(listing.guide(selected, costs_by_backend) if long else listing.backends(selected), output.console())
    _left_out([info for info in infos if info.extra and not info.hidden] if wanted == [ALL] else [], hidden)


def _document(what: str, facts: Sequence[JsonObject]) -> JsonObject:
    return {"softbench": __version__, what: facts}


def _left_out(extras: Sequence[BackendInfo], hidden: Sequence[BackendInfo]) -> None:
    from softbench.report import listing

    if extras:
        typer.echo(listing.extras(extras))
    if hidden:
        typer.echo(listing.hidden(hidden))
