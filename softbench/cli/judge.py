"""`softbench judge`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softbench import __version__
from softbench.cli import options
from softbench.cli.actions import interruptible, note, printed, try_file
from softbench.cli.options import option
from softbench.cli.panels import OUTPUT, PanelCommand
from softbench.core.case import safe_name
from softbench.core.errors import UsageError
from softbench.plan.declare import RARE, WHAT

if TYPE_CHECKING:
    from softbench.core.json import JsonObject

EPILOG = "Exit codes: 0 right and timed; 1 wrong, failed or not judged, or a wrong signature; 2 usage; 130 interrupted (143 by SIGTERM)."


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand, epilog=EPILOG)(judge)


@options.takes("device", "timeout", case=True, own_first=True)
def judge(
    plugin: Annotated[
        Path | None, typer.Argument(metavar="[FILE[:FUNCTION]]", help="The plugin: a Python file, in a folder that it may read.")
    ] = None,
    named: Annotated[Path | None, option(WHAT, "The plugin, as other commands name it.", "--plugin", metavar="FILE")] = None,
    backend: Annotated[str | None, option(WHAT, "The backend, if the file has several; without a file an installed one.")] = None,
    key: Annotated[
        Path | None,
        option(RARE, "The file of the key that signs verdicts; it is made if it does not exist.", default="~/.config/softbench/judge.key"),
    ] = None,
    json: Annotated[Path | None, option(OUTPUT, "Write the signed verdict as JSON; - is stdout.", metavar="FILE|-")] = None,
    verify: Annotated[Path | None, option(OUTPUT, "Judge nothing: check the signature of a verdict.", metavar="FILE")] = None,
    **given: Any,
) -> None:
    """Judge one untrusted plugin on one case, in a process that cannot reach the judge. docs/judge.md describes what that vouches for."""
    from softbench.cli.output import counter
    from softbench.run import signature, signed_verdict

    key = key or signature.default_key()
    given, solutions = options.with_solutions(given)
    listed = [one for one in solutions if not one.is_dir()] or solutions
    if backend is not None:  # those beside a definition are backends with the names of their files
        listed = [one for one in listed if one.suffix != ".json" or safe_name(one.stem) == backend]
    files = [file for file in (plugin, named) if file] or listed
    if len(files) > 1 or any(file.is_dir() for file in files):
        raise UsageError(f"softbench judge takes the file of one plugin, and here is {', '.join(map(str, files))}; name it: --plugin FILE")
    plugin = files[0] if files else None
    if (plugin is None and backend is None) == (verify is None):
        raise UsageError("softbench judge takes a plugin's file or --backend, or else --verify and a verdict's file")
    if verify is not None:
        _show(signed_verdict.verified(verify, key))
        note("the signature is right")
        return
    from softbench.plan.settings import Settings, from_flags

    settings = Settings.from_sources({}, from_flags({name: given[name] for name in ("device", "timeout")}))
    try_file(json)
    with interruptible(), counter("challenges") as advance:
        verdict = signed_verdict.judge(
            settings, plugin, lambda: options.case_of(given, "softbench judge takes one case"), backend, key, __version__, advance
        )
    if not printed(verdict.text, json, "--json"):
        _show(verdict.document)
    raise typer.Exit(verdict.exit_code)


def _show(verdict: JsonObject) -> None:
    from softbench.cli import output
    from softbench.report import tables

    output.show(tables.verdict(verdict), output.console())
