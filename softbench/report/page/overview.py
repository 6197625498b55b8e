"""What was measured, and where: the summary of the overview, and the tables of the environment."""

from __future__ import annotations

from softbench.core.outcome import Status
from softbench.core.text import few, one_line
from softbench.report.page.source import Source


def summary(source: Source) -> list[tuple[str, str]]:
    """What was measured: names with values."""
    rows, header = source.rows, source.header
    axes = {
        "backends": [row.backend for row in rows if row.status != Status.UNAVAILABLE],
        "passes": [row.of_pass for row in rows],
        "dtypes": [row.dtype for row in rows],
        "M": [str(M) for M in sorted({row.M for row in rows if not row.shape})],
        "N": [str(N) for N in sorted({row.N for row in rows if not row.shape})],
        "shapes": [row.shape for row in rows if row.shape],
    }
    found = [("device", source.device), ("measured", source.started or source.run)]
    found += [(name, few(list(dict.fromkeys(values)))) for name, values in axes.items() if values]
    found += [("timer", ", ".join(dict.fromkeys(f"{row.timer}" + (f", {row.l2} L2" if row.l2 else "") for row in rows if row.timer)))]
    found += [("reference backend", ", ".join(dict.fromkeys(row.relative_to for row in rows if row.relative_to)))]
    return [(name, value) for name, value in [*found, ("command", one_line(str(header.get("command") or ""), 2000))] if value]


def environment(source: Source) -> list[tuple[str, list[tuple[str, str]]]]:
    """The tables of the environment: each has a title, and names with values."""
    header = source.header
    names = ("run", "started", "finished", "interrupted", "command", "softbench", "git_commit", "device_name", "schema")
    about = {name: header.get(name) for name in names}
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
