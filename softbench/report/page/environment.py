"""The tables of a page's environment: the run, the machine, versions, settings and backends."""

from __future__ import annotations

from softbench.core.text import one_line
from softbench.report.page.source import Source


def facts(source: Source) -> list[tuple[str, list[tuple[str, str]]]]:
    """The tables of the environment: each has a title, and names with values."""
    header = source.header
    about = {
        name: header.get(name) for name in ("run", "started", "finished", "command", "softbench", "git_commit", "device_name", "schema")
    }
    first = [("file", source.name), *_pairs({name: value for name, value in about.items() if value})]
    if not header:
        first += [("run", source.run), ("device", source.device)]
    tables = [("Run", first)]
    for title, name in (("Machine and versions", "environment"), ("Settings", "settings"), ("Seconds of the run", "seconds")):
        if isinstance(found := header.get(name), dict) and found:
            tables.append((title, _pairs(found)))
    origins, commits = header.get("origins"), header.get("commits")
    if isinstance(origins, dict):
        known = commits if isinstance(commits, dict) else {}
        tables.append(("Backends", _pairs({name: f"{where} {known.get(name) or ''}" for name, where in origins.items()})))
    return tables


def _pairs(values: dict[str, object]) -> list[tuple[str, str]]:
    shown = ((name, value) for name, value in values.items() if value is not None)
    return [(one_line(str(name), 60), one_line(_text(value), 2000)) for name, value in shown]


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return str(value)
