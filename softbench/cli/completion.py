"""The values that the shell completes: backends, dtypes, directions, configurations and other names. Nothing here starts a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from softbench.core.errors import SoftbenchError

Completer = Callable[[typer.Context, str], list[str]]


def one(names: Callable[[typer.Context], Iterable[str]]) -> Completer:
    """Completes one name."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        return [name for name in names(ctx) if name.startswith(incomplete)]

    return complete


def several(names: Callable[[typer.Context], Iterable[str]]) -> Completer:
    """Completes the last name of a list with commas, without the names that the list has."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [f"{before}{comma}{name}" for name in names(ctx) if name.startswith(last) and name not in given]

    return complete


def fixed(*names: str) -> Callable[[typer.Context], Iterable[str]]:
    """These names, whatever the command line is."""
    return lambda ctx: names


def configurations(ctx: typer.Context) -> Iterable[str]:
    """The configurations that softbench ships."""
    from softbench.plan.config_file import shipped

    return shipped()


def backends(ctx: typer.Context) -> Iterable[str]:
    """The backends that an earlier command found, else the names of the entry points; and those of the command line's plugins."""
    from softbench.plugins import static_scan
    from softbench.plugins.source import origins
    from softbench.run import info_cache

    try:
        sources = origins([Path(file) for file in ctx.params.get("plugins") or ()])
        known = info_cache.read(str(ctx.params.get("device") or "auto"), sources)
    except SoftbenchError:  # nothing is completed, and the command itself prints the error
        return []
    own = [info.name for info in known.infos] if known else [source.label for source in sources if source.own]
    return sorted({*own, *(info.name for source in sources if not source.own for info in static_scan.at(source))})


def patterns(ctx: typer.Context) -> Iterable[str]:
    """The backends, and `all`."""
    return ["all", *backends(ctx)]
