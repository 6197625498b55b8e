"""The overview of a page, with sentences and counts that are computed from the rows, and the tables of its environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from softbench.core.outcome import FAILURES, Grade, Status
from softbench.core.text import count, few, one_line, percent
from softbench.report.page.source import Source
from softbench.report.standings import Standing, standings
from softbench.results.labels import DOUBTFUL
from softbench.results.rows import IMPLAUSIBLE, Row


@dataclass(frozen=True, slots=True)
class Count:
    """How many cells have a property."""

    name: str
    number: int
    kind: str
    """`good`, `bad`, `warn` or `plain`: how it is shown."""


def sentences(rows: Sequence[Row]) -> list[str]:
    """Three sentences: the fastest backend, how close it is to the yardstick, and which cells are wrong or doubtful."""
    found = list(standings(rows).values())
    return [_fastest(found), _closeness([standing.rows[0] for standing in found if standing.rows[0].of_copy]), _trouble(rows)]


def _fastest(found: Sequence[Standing]) -> str:
    if not found:
        return "No case has a fastest backend, because none but the yardstick has a result."
    clear = Counter(standing.rows[0].backend for standing in found if len(standing.tied) == 1 and not standing.unknown)
    unknown = sum(standing.unknown for standing in found)
    ties = len(found) - clear.total() - unknown
    parts = [f"{name} in {number}" for name, number in clear.most_common()]
    tail = f"; in {unknown} the file has no interval, so the fastest is uncertain" if unknown else ""
    if not parts:
        return f"In none of {count(len(found), 'case')} is one backend ahead of all others beyond noise{tail}."
    alone = sum(len(standing.rows) == 1 for standing in found)
    tail = (f"; in {alone} no other backend has a result" if alone else "") + tail
    tail = (f"; in {ties} several tie for the fastest" if ties else "") + tail
    return f"Of {count(len(found), 'case')}, the fastest backend is {few(parts)}{tail}."


def _closeness(best: Sequence[Row]) -> str:
    if not best:
        return "No cell has a fraction of the yardstick."
    sure = [row for row in best if not row.doubtful]
    ordered = sorted(sure or best, key=lambda row: row.of_copy or 0)
    low, high = ordered[0], ordered[-1]
    middle = percent(median(row.of_copy or 0 for row in ordered))
    which = f"in {count(len(ordered), 'case')}" + (" without doubtful labels" if sure else ", all with doubtful labels")
    return (
        f"The fastest backend reaches a median of {middle} of the yardstick's speed {which}: "
        f"from {percent(low.of_copy or 0)} ({low.backend}, {low.case}) to {percent(high.of_copy or 0)} ({high.backend}, {high.case})."
    )


def _trouble(rows: Sequence[Row]) -> str:
    statuses = Counter(row.status for row in rows if row.status in FAILURES or row.status == Status.UNVERIFIED)
    parts = [f"{number} {status}" for status, number in statuses.most_common()] or ["none is wrong"]
    limits = ((Grade.FINITE_ONLY, " (NaN in rows that hold -inf)"), (Grade.LOW_PRECISION, ""))
    parts += [f"{number} {grade}{what}" for grade, what in limits if (number := sum(row.grade == grade for row in rows))]
    without = [
        f"{number} {status}" for status in (Status.SKIPPED, Status.UNAVAILABLE) if (number := sum(row.status == status for row in rows))
    ]
    doubtful = [row for row in rows if row.median_us and row.doubtful]
    names = Counter(label for row in doubtful for label in row.labels.split() if label in DOUBTFUL)
    head = f"Of {count(len(rows), 'cell')}, {', '.join(parts)}"
    tail = f"; {', '.join(without)}" if without else ""
    listed = ", ".join(f"{name} {number}" for name, number in names.most_common())
    return f"{head}{tail}; " + (f"{len(doubtful)} doubtful ({listed})." if doubtful else "none is doubtful.")


def counts(rows: Sequence[Row]) -> list[Count]:
    """The number of cells of each status, then the numbers of doubtful and implausible cells."""
    found = []
    for status in Status:
        if number := sum(row.status == status for row in rows):
            kind = "bad" if status in FAILURES else "good" if status == Status.OK else "warn" if status == Status.UNVERIFIED else "plain"
            found.append(Count(status.value, number, kind))
    doubtful = sum(bool(row.median_us) and row.doubtful for row in rows)
    implausible = sum(IMPLAUSIBLE in row.labels.split() for row in rows)
    return found + [Count(name, number, "warn") for name, number in (("doubtful", doubtful), (IMPLAUSIBLE, implausible)) if number]


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
