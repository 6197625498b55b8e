"""Plain `--help` with options grouped in panels; rich's help would take twice as long."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from typer.core import TyperCommand

WHAT, HOW_LONG, WHERE, ADVANCED = "What to measure", "How long", "Where to", "Advanced"
JUDGE, OUTPUT = "What to judge", "Output"
OTHERS = "Options"
LAST = (ADVANCED, OTHERS)
"""These panels come after all others."""

CONTEXT: ContextVar[Any] = ContextVar("context", default=None)
"""Click's context of the command that runs: its parameters and their values."""


def panel_of(param: Any) -> str:
    """The panel of an option or argument of a command."""
    if param.param_type_name == "argument":
        return "Arguments"
    return getattr(param, "rich_help_panel", None) or OTHERS


class PanelCommand(TyperCommand):
    """A command whose help groups its options by `rich_help_panel`, in the order of their first option."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; CONTEXT is its context meanwhile."""
        before = CONTEXT.set(ctx)
        try:
            return super().invoke(ctx)
        finally:
            CONTEXT.reset(before)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # typer brings its own click in some versions
        """Write one section per panel; every default is written as `[default: value]`."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                name, text = record
                panels.setdefault(panel_of(param), []).append((name, text.replace("[default: (", "[default: ").replace(")]", "]")))
        for panel in sorted(panels, key=lambda panel: (panel in LAST, panel == OTHERS)):
            with formatter.section(panel):
                formatter.write_dl(panels[panel])
