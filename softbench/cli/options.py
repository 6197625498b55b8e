"""The options that commands share. Those of settings follow from `softbench.plan.settings`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer

from softbench.cli import completion
from softbench.cli.panels import OUTPUT, WHERE
from softbench.core.case import OPERATION
from softbench.plan.declare import RARE, WHAT, Setting
from softbench.plan.settings import SETTINGS, of_command
from softbench.plan.sweep import AXES

if TYPE_CHECKING:
    from softbench.core.case import Case

BASELINES = Path("results") / "baselines"
GATE_EPILOG = (
    "Exit codes: 0 pass; 1 a regression, or cells missing or wrong; 2 usage or unreadable input; "
    "3 inconclusive or not comparable; 4 the disk is full; 5 --wait ended; 130 interrupted (143 by SIGTERM)."
)
BACKENDS = completion.several(completion.patterns)
BACKEND = completion.one(completion.backends)
DTYPE = completion.several(completion.fixed(*AXES["dtype"].words))
DIRECTION = completion.several(completion.fixed(*AXES["direction"].words))


def option(
    panel: str, help: str, *names: str, default: str | bool = True, metavar: str | None = None, complete: completion.Completer | None = None
) -> typer.models.OptionInfo:
    """An option of a panel. `default` is the shown text if the default is not a value of the option; `complete` is for the shell."""
    found: typer.models.OptionInfo = typer.Option(
        *names, help=help, rich_help_panel=panel, show_default=default, metavar=metavar, autocompletion=complete
    )
    return found


def of_setting(one: Setting) -> Any:
    """The annotation of a setting's option."""
    words = completion.fixed(*one.words) if isinstance(one.words, tuple) else getattr(completion, one.words)
    complete = (completion.several if get_origin(one.kind) is list else completion.one)(words) if one.words else None
    return Annotated[
        one.kind | None,
        option(
            one.panel,
            one.option_help,
            one.flag,
            *one.also,
            default=one.shown_default,
            metavar=one.metavar or _choice(one),
            complete=complete,
        ),
    ]


def _choice(one: Setting) -> str | None:
    """The words of an option that takes one of a few short ones."""
    words = "|".join(one.words) if isinstance(one.words, tuple) and one.kind is str else ""
    return words if 0 < len(words) < 10 else None


def takes(
    *names: str, command: str = "", case: bool = False, own_first: bool = False, after: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator: the command gets options of settings. Its function gets those that it does not declare itself as `**given`.

    Args:
        names: the settings, or with `command` those of that command.
        case: it also gets the options that name one case.
        own_first: the help begins with the function's own options.
        after: own options that the help has after a setting.
    """
    of = [*([*CASE, "set"] if case else ()), *([one.name for one in of_command(command)] if command else names)]
    for own_name, name in (after or {}).items():
        of.insert(of.index(name) + 1, own_name)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = {name: one for name, one in signature(function, eval_str=True).parameters.items() if one.kind is not Parameter.VAR_KEYWORD}
        known = {**(CASE if case else {}), **own}
        found = {name: known.get(name) or _parameter(SETTINGS[name]) for name in of}
        others = {name: one for name, one in own.items() if name not in found}
        ordered = {**others, **found} if own_first else {**found, **others}
        parameters = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in ordered.values()]
        function.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return function

    return decorate


def _parameter(one: Setting) -> Parameter:
    return Parameter(one.name, Parameter.KEYWORD_ONLY, default=None, annotation=of_setting(one))


Operation = Annotated[
    str,
    option(
        WHAT,
        "The operation, by name or Python file, or a problem; softbench list --ops shows the names.",
        "--op",
        "--problem",
        complete=completion.one(completion.fixed(*AXES["op"].words)),
    ),
]
Devices = Annotated[str | None, option(WHAT, "GPUs of this host that measure at once: all, or numbers such as 0,2.", metavar="all|0,2")]
Quiet = Annotated[bool, option(OUTPUT, "Print only errors, what is left out, and the result.", "-q", "--quiet", default=False)]
Mismatch = Annotated[
    list[str] | None,
    option(RARE, "Compare even if this fact of the environment differs. Repeatable.", "--allow-env-mismatch", metavar="FIELD"),
]
Folder = Annotated[Path, option(WHERE, "Folder of the baselines.")]
ResultsFile = Annotated[Path, typer.Argument(help="A results CSV, or a folder for its latest run; - is stdin.")]


def _of_case(
    M: Annotated[int | None, typer.Option("--M", help="Rows.", min=1, rich_help_panel=WHAT, show_default="4096")] = None,
    N: Annotated[int | None, typer.Option("--N", help="Columns.", min=1, rich_help_panel=WHAT, show_default="4096")] = None,
    shape: Annotated[str | None, option(WHAT, "Shape in place of --M and --N: 8x16x1024x1024.", metavar="SIZES")] = None,
    dim: Annotated[str | None, option(WHAT, "The reduced dimension of --shape.", default="-1", metavar="INT")] = None,
    dtype: Annotated[str | None, option(WHAT, "fp32, fp16 or bf16.", complete=DTYPE, default="fp32, or that of the problem")] = None,
    direction: Annotated[str, option(WHAT, "forward, backward, both or fused.", complete=DIRECTION)] = "forward",
    op: Operation = OPERATION,
) -> None:
    """The options that name one case, beside `--set`."""


CASE = signature(_of_case, eval_str=True).parameters


def with_solutions(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Path]]:
    """The options with a problem alone in `--problem`, and the solutions that follow it or lie beside it. Raises UsageError."""
    from softbench.run.operations import with_solutions as parted

    ops, solutions = parted([given["op"]])
    return {**given, "op": ",".join(ops)}, solutions


def case_of(given: Mapping[str, Any], command: str) -> Case:
    """The case that the options of `CASE` name. Raises UsageError for an invalid one, and if they name several."""
    from softbench.plan.settings import one_case
    from softbench.run.operations import name

    sizes = {key: given[key] and str(given[key]) for key in ("M", "N")}
    texts = {key: given[key] for key in ("shape", "dim", "dtype", "direction")}
    return one_case({**sizes, **texts, "op": name(given["op"], given["set"], sizes)}, command)
