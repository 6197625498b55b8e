"""`softbench judge`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softbench import __version__
from softbench.cli import options
from softbench.cli.actions import interruptible, note, printed, try_file
from softbench.cli.panels import OUTPUT, WHAT, PanelCommand
from softbench.core.case import OPERATION
from softbench.core.errors import UsageError

if TYPE_CHECKING:
    from softbench.core.json import JsonObject

EPILOG = "Exit codes: 0 right and timed; 1 wrong, failed or not judged, or a wrong signature; 2 usage; 130 interrupted (143 by SIGTERM)."


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand, epilog=EPILOG)(judge)


def judge(
    plugin: Annotated[
        Path | None, typer.Argument(metavar="[FILE[:FUNCTION]]", help="The plugin: a Python file, in a folder that it may read.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="The backend, if the file has several; without a file an installed one.", rich_help_panel=WHAT)
    ] = None,
    M: Annotated[int | None, typer.Option("--M", help="Rows.", min=1, rich_help_panel=WHAT, show_default="4096")] = None,
    N: Annotated[int | None, typer.Option("--N", help="Columns.", min=1, rich_help_panel=WHAT, show_default="4096")] = None,
    shape: Annotated[str | None, typer.Option(help="Shape in place of --M and --N: 8x16x1024x1024.", rich_help_panel=WHAT)] = None,
    dim: Annotated[str | None, typer.Option(help="The reduced dimension of --shape.", rich_help_panel=WHAT, show_default="-1")] = None,
    dtype: Annotated[str, typer.Option(help="fp32, fp16 or bf16.", rich_help_panel=WHAT, autocompletion=options.DTYPE)] = "fp32",
    direction: Annotated[
        str, typer.Option(help="forward, backward, both or fused.", rich_help_panel=WHAT, autocompletion=options.DIRECTION)
    ] = "forward",
    op: options.Operation = OPERATION,
    set: options.Parameters = None,
    device: options.Device = None,
    timeout: options.Timeout = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="The file of the key that signs verdicts; it is made if it does not exist.",
            rich_help_panel=OUTPUT,
            show_default="~/.config/softbench/judge.key",
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE|-", help="Write the signed verdict as JSON; - is stdout.", rich_help_panel=OUTPUT)
    ] = None,
    verify: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judge nothing: check the signature of a verdict.", rich_help_panel=OUTPUT)
    ] = None,
) -> None:
    """Judge one untrusted plugin on one case, in a process that cannot reach the judge. docs/judge.md describes what that vouches for."""
    from softbench.results import signature
    from softbench.run import judge as judging

    key = key or signature.default_key()
    if (plugin is None and backend is None) == (verify is None):
        raise UsageError("softbench judge takes a plugin's file or --backend, or else --verify and a verdict's file")
    if verify is not None:
        _show(judging.verified(verify, key))
        note("the signature is right")
        return
    from softbench.plan.flags import from_flags
    from softbench.plan.settings import Settings
    from softbench.run import operations

    settings = Settings.from_sources({}, from_flags({"device": device, "timeout": timeout}))
    axes = {"M": M and str(M), "N": N and str(N), "shape": shape, "dim": dim, "dtype": dtype, "direction": direction}
    try_file(json)
    with interruptible():
        case = judging.one_case({**axes, "op": operations.name(op, set)})
        verdict = judging.judge(settings, plugin, case, backend, key, __version__)
    if not printed(verdict.text, json, "--json"):
        _show(verdict.document)
    raise typer.Exit(verdict.exit_code)


def _show(verdict: JsonObject) -> None:
    from softbench.cli import output
    from softbench.report import tables

    output.show(tables.verdict(verdict), output.console())
