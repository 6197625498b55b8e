"""`softbench list`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softbench import __version__
from softbench.cli import options
from softbench.cli.actions import interruptible, try_file, wrote_to_stdout
from softbench.cli.options import option
from softbench.cli.panels import OUTPUT, PanelCommand
from softbench.core.errors import UsageError
from softbench.core.text import split_exclusions

if TYPE_CHECKING:
    from softbench.core.json import JsonObject

Pattern = Annotated[
    str,
    typer.Argument(
        help="all (without extras), or names and patterns as of --backends: 'compile:*', '!torch', '*'.", autocompletion=options.BACKENDS
    ),
]
Long = Annotated[bool, option(OUTPUT, "For each backend a summary, and when to choose it.", "--long", default=False)]
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
    from softbench.run import operations, run

    if json is not None and str(json) != "-" and not json.suffix:
        raise UsageError(f"list --json {json}: name a file such as backends.json; a pattern stands in front: softbench list {json} --json")
    try_file(json)
    wanted_problems, solutions = operations.with_solutions([problem] if problem else [])
    flags = from_flags({**given, "plugins": [*(given["plugins"] or ()), *solutions]})
    with interruptible():
        listed = from_flags({"op": operations.names(wanted_problems)}).get("op", ())
        infos = run.infos(Settings.from_sources({}, flags), load=load, ops=listed)
    named, excluded = split_exclusions(one.strip() for one in pattern.split(","))
    wanted = named or [ALL]
    out = {info for one in excluded for info in matching(infos, one, f"'!{one}' excludes nothing: ")}
    matched = [info for info in dict.fromkeys(info for one in wanted for info in matching(infos, one)) if info not in out]
    if ops or problem:
        known = [operation(name) for name in listed or names()]
        if not wrote_to_stdout(lambda: _document("operations", [listing.operation_facts(one, matched) for one in known]), json):
            output.show(listing.operations(known, matched), output.console())
        return
    selected = list(dict.fromkeys([*matched, *not_loaded(infos)]))
    if wrote_to_stdout(lambda: _document("backends", [listing.backend_facts(info) for info in selected]), json):
        return
    output.show(listing.guide(selected) if long else listing.backends(selected), output.console())
    if wanted == [ALL] and (extras := [info for info in infos if info.extra]):
        typer.echo(listing.extras(extras))


def _document(what: str, facts: Sequence[JsonObject]) -> JsonObject:
    return {"softbench": __version__, what: facts}
