"""The runs that lie in folders, without reading their cells."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from softbench.core.errors import ResultsError
from softbench.core.json import JsonObject
from softbench.core.text import one_line
from softbench.results.csv import REQUIRED
from softbench.results.document import beside, load_header, units_of

STAMP = re.compile(r"run-(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)")
"""The name of a run says when it started."""


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A results CSV in a folder. What only the JSON beside it tells is empty without a JSON of the same run."""

    file: Path
    run: str
    """The name of the run."""
    device: str
    """Of the first cell."""
    unit: str
    """Of the first cell."""
    started: str
    """When the run began, in ISO 8601: from the JSON, else from the run's name; empty if neither tells."""
    commit: str = ""
    """The commits of the plugins if they lie in checkouts, else that of softbench."""
    command: str = ""
    environment: Mapping[str, object] = field(default_factory=dict)
    """The facts of its first unit, such as the version of torch."""
    merged: frozenset[tuple[str, str]] = frozenset()
    """Run and unit of each part that `softbench merge` put together."""


def find(paths: Iterable[Path]) -> tuple[list[FoundRun], list[str]]:
    """The runs below these folders and in these CSVs, oldest first, and a line for each other CSV.

    A run that lies there twice is found once: `latest.csv` is a copy, and a merged file has the cells of its parts. Hidden folders are left
    out, and so are links to folders.

    Raises:
        ResultsError: a path is missing.
    """
    found: list[FoundRun] = []
    problems = []
    for file in dict.fromkeys(file for path in paths for file in _csvs(path)):
        try:
            found.append(look(file))
        except ResultsError as error:
            problems.append(str(error))
    return sorted(_once(found), key=lambda one: (one.started, one.run, str(one.file))), problems


def _csvs(path: Path) -> Iterator[Path]:
    if not path.exists():
        raise ResultsError(f"{path}: no such file or folder; name folders with the CSVs of softbench run")
    if not path.is_dir():
        yield path
        return
    for file in sorted(path.rglob("*.csv")):
        if not any(part.startswith(".") for part in file.relative_to(path).parts):
            yield file


def look(file: Path) -> FoundRun:
    """The run of a CSV, from its first cell and the header of the JSON beside it.

    Raises:
        ResultsError: it is not a results file.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            first = next(csv.DictReader(lines), {})
    except OSError as error:
        raise ResultsError(f"{file}: {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        raise ResultsError(f"{file}: is not a CSV: {one_line(str(error), 80)}") from None
    if missing := [column for column in REQUIRED if first.get(column) is None]:
        lack = f"is not a softbench results file: column {missing[0]} is missing" if first else "holds no cells"
        raise ResultsError(f"{file}: {lack}")
    run, device, unit = (one_line(first.get(name) or "", 300) for name in ("run", "device", "unit"))
    stamp = STAMP.match(run)
    started = "{}-{}-{}T{}:{}:{}+00:00".format(*stamp.groups()) if stamp else ""
    with suppress(ResultsError, KeyError, TypeError, ValueError, AttributeError):  # the page of the run says what is wrong with its JSON
        header = load_header(beside(file))
        if header["run"] == run:
            return FoundRun(file, run, device, unit, one_line(str(header.get("started") or started), 40), *_of_header(header))
    return FoundRun(file, run, device, unit, started)


def _of_header(header: JsonObject) -> tuple[str, str, Mapping[str, object], frozenset[tuple[str, str]]]:
    """The commit, the command, the environment and the merged parts of a run document."""
    plugins = dict(header.get("commits") or {}).values()
    commits = [str(one) for one in dict.fromkeys(plugins) if one] or [str(header.get("git_commit") or "")]
    merged = {(str(part["run"]), str(unit)) for part in header.get("merged") or () for unit in part.get("units") or [""]}
    environment = next(iter(units_of(header).values()))
    return one_line(" ".join(commits), 60), one_line(str(header.get("command") or ""), 500), environment, frozenset(merged)


def _once(found: Sequence[FoundRun]) -> list[FoundRun]:
    """Each run once, with the file that has the run's name if there is one."""
    own_name_last = sorted(found, key=lambda one: (one.file.stem == one.run, one.file.stem != "latest"))
    kept = {(one.run, one.device, one.unit): one for one in own_name_last}
    parts = frozenset[tuple[str, str]]().union(*(one.merged for one in kept.values()))
    return [one for one in kept.values() if one.merged or (one.run, one.unit) not in parts]
