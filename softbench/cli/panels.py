"""Commands with a plain `--help`, whose options are grouped in panels, and with usage errors of one line. rich would take twice as long."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from typer.core import TyperCommand, TyperGroup

from softbench.core.errors import UsageError
from softbench.plan.declare import RARE

WHERE, JUDGE, SHOW, OUTPUT = "Where to", "What to judge", "What to show", "Output"
ARGUMENTS, OTHERS = "Arguments", "Options"
RUN_EPILOG = (
    "Exit codes: 0 fine; 1 a backend is wrong or failed, or nothing was measured; 2 usage; 4 the disk is full; "
    "5 the device is in use; 130 interrupted (143 by SIGTERM)."
)
SELF_TEST = "Self-test"
PLACES = {ARGUMENTS: -1, OTHERS: 1, SELF_TEST: 2, RARE: 3}
"""The panels that come before or after all others."""

WIDEST = 24
"""Columns of the longest option that has its help beside it."""
KINDS = {"list": "LIST", "int": "INT", "float": "NUMBER", "str": "NAME", "path": "PATH"}
_KIND = re.compile(r" <(\w+)[^>]*>$")
"""How Typer writes the type of an option's value."""
_GIVEN_DEFAULT = re.compile(r"\[default: \((.*)\)(; [^\]]*)?\]$", re.DOTALL)
"""How Typer writes a default that is given as a text; the range of the values follows."""
CONTEXT: ContextVar[Any] = ContextVar("context", default=None)
"""Click's context of the command that runs: its parameters and their values."""


def _metavar(kind: re.Match[str]) -> str:
    return f" {KINDS[kind[1]]}" if kind[1] in KINDS else ""


def panel_of(param: Any) -> str:
    """The panel of an option or argument of a command."""
    if param.param_type_name == "argument":
        return ARGUMENTS
    return getattr(param, "rich_help_panel", None) or OTHERS


@contextmanager
def one_line_errors(ctx: Any) -> Iterator[None]:
    """Raise the parser's errors as UsageError, which is one line; Click prints four.

    Raises:
        UsageError: an option or an argument is unknown, missing or superfluous.
    """
    try:
        yield
    except Exception as error:
        # Some versions of Typer bring their own Click, so its classes cannot be named here. A call without arguments shows the help.
        if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
            raise
        text = str(error.format_message()).replace("Value error, ", "").rstrip(".")
        text = re.sub(r"Input should be (.*?)(, unable to parse.*)?$", r"it must be \1", text)
        if re.search(r"unexpected extra argument.*\.py\b", text) and any(param.name == "plugins" for param in ctx.command.params):
            text += "; give a plugin with --plugin FILE"
        words: list[str] = []
        above = ctx
        while above.parent is not None:  # the program itself is in every message
            words.insert(0, above.info_name)
            above = above.parent
        said = (f"{' '.join(words)}: " if words else "") + text[:1].lower() + text[1:]
        raise UsageError(f"{said}{' See' if said.endswith('?') else '; see'}: {ctx.command_path} --help") from None


def _summary(help: str | None) -> str:
    """The first sentence of a help, without what follows a colon or a semicolon. Click would cut it after 45 characters."""
    return " ".join(re.split(r"[:;.](?:\s|$)", help or "", maxsplit=1)[0].split())


class LineGroup(TyperGroup):
    """A group of commands whose usage errors are one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with one_line_errors(ctx):
            return super().parse_args(ctx, args)

    def get_short_help_str(self, limit: int = 0) -> str:
        """What the list of commands says."""
        return _summary(self.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        with one_line_errors(ctx):
            return super().resolve_command(ctx, args)


def _with_stdout(args: list[str]) -> list[str]:
    """The words, with `-` after a `--json` that ends them or has another option behind it: the JSON goes to stdout."""
    after = [*args, "--"][1:]
    alone = [word == "--json" and next_word.startswith("-") and next_word != "-" for word, next_word in zip(args, after, strict=True)]
    return [part for word, bare in zip(args, alone, strict=True) for part in ([word, "-"] if bare else [word])]


class PanelCommand(TyperCommand):
    """A command whose help groups its options by `rich_help_panel`, in the order of their first option."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """What the list of commands says."""
        return _summary(self.help)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with one_line_errors(ctx):
            left = super().parse_args(ctx, _with_stdout(args))
        given = [] if ctx.resilient_parsing else [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        options = {name for param in given for name in (*param.opts, *param.secondary_opts)}
        for param in given:
            value = ctx.params.get(param.name)
            for one in value if isinstance(value, list | tuple) else [value]:
                if str(one) in options:
                    raise UsageError(f"{param.opts[0]}: its value is missing, because {one} is an option")
        return left

    def invoke(self, ctx: Any) -> Any:
        """Run the command; CONTEXT is its context meanwhile. An error about the configuration names it and its key."""
        before = CONTEXT.set(ctx)
        try:
            return super().invoke(ctx)
        except UsageError as error:
            from softbench.plan.config_file import in_file

            given = [name for name, value in ctx.params.items() if value not in (None, [], ())]
            error.args = (in_file(str(error), ctx.params.get("config"), given),)
            raise
        finally:
            CONTEXT.reset(before)

    def shown_params(self, ctx: Any) -> list[Any]:
        """The options and arguments that the help shows."""
        return list(self.get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:  # typer brings its own click in some versions
        """Write one section per panel, all with the same columns; every default is written as `[default: value]`."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.shown_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                name = _KIND.sub(_metavar if param.param_type_name == "option" else "", record[0])
                panels.setdefault(panel_of(param), []).append((name, _GIVEN_DEFAULT.sub(r"[default: \1\2]", record[1])))
        width = max(len(name) for rows in panels.values() for name, _ in rows if len(name) <= WIDEST)
        for panel in sorted(panels, key=lambda panel: PLACES.get(panel, 0)):
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(width), text) for name, text in panels[panel]], col_max=width)
