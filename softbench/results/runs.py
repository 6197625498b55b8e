"""The runs that lie in folders, without reading their cells."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from softbench.core.case import OPERATION
from softbench.core.errors import ResultsError
from softbench.core.files import lock, no_link
from softbench.core.json import JsonObject
from softbench.core.outcome import UNTRIED
from softbench.core.text import count, one_line
from softbench.results.columns import LABELS
from softbench.results.csv import REQUIRED, unvouched
from softbench.results.document import STAMP, beside, continuation, load_header, order, units_of


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


class _NoCellsError(ResultsError):
    """A results file without a cell."""


def find(paths: Iterable[Path]) -> tuple[list[FoundRun], list[str]]:
    """The runs below these folders and in these CSVs, oldest first, and a line for each other CSV.

    A run that lies there twice is found once: `latest.csv` is a copy, and a merged file has the cells of its parts. Hidden folders are left
    out, and so are links to folders. The CSV of an unfinished run without a cell is no problem: `unfinished` has that run.

    Raises:
        ResultsError: a path is missing.
    """
    found: list[FoundRun] = []
    problems = []
    for file in dict.fromkeys(file for path in paths for file in _csvs(path)):
        try:
            found.append(look(file))
        except _NoCellsError as error:
            problems += [] if file.with_suffix(".jsonl").is_file() else [str(error)]
        except ResultsError as error:
            problems.append(str(error))
    return sorted(_once(found), key=_by_time), problems


def _by_time(one: FoundRun) -> tuple[str, int, str, str]:
    """The clock may have been set back between two runs, so the name decides, if it has a time."""
    stamp, number, name = order(one.run)
    return stamp or re.sub(r"[-:T]", "", one.started)[:14], number, name, str(one.file)


def latest(path: Path) -> tuple[Path, str]:
    """The path; for a folder its latest.csv, else the newest run in it and below, and then a note that says so.

    Raises:
        ResultsError: the folder holds no results.
    """
    if not path.is_dir():
        return path, ""
    if (file := path / "latest.csv").is_file():
        return file, ""
    found, _ = find([path])
    if not found:
        raise ResultsError(f"{path}: is a folder without results; name a results file, or write some there: softbench run --output {path}")
    newest = found[-1].file
    return newest, f"{newest} is the newest of {count(len(found), 'run')} in {path}; softbench runs {path} lists them"


def _csvs(path: Path) -> Iterator[Path]:
    if not path.exists():
        raise ResultsError(f"{path}: no such file or folder; name folders with the CSVs of softbench run")
    yield from _below(path, ".csv") if path.is_dir() else (path,)


def _below(folder: Path, suffix: str) -> Iterator[Path]:
    """The files with this suffix in a folder and below it, without hidden ones. Hidden folders are not entered: one may be large.

    Nor are named pipes there: to open one waits for a writer.
    """
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found = [Path(place, name) for name in sorted(names) if name.endswith(suffix) and not name.startswith(".")]
        yield from (file for file in found if file.is_file() or not file.exists())


def look(file: Path) -> FoundRun:
    """The run of a CSV, from its first cell and the header of the JSON beside it.

    Raises:
        ResultsError: it is not a results file.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            columns = reader.fieldnames or ()
            first = next(reader, dict.fromkeys(columns, ""))
    except OSError as error:
        raise ResultsError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ResultsError(f"{file}: is not text") from None
    except (ValueError, csv.Error) as error:
        raise ResultsError(f"{file}: is not a CSV: {one_line(str(error), 80)}") from None
    if missing := [column for column in REQUIRED if column not in columns]:
        lack = f"is not a softbench results file: column {missing[0]} is missing" if columns else "is empty"
        raise ResultsError(f"{file}: {lack}")
    if not first["backend"]:
        raise _NoCellsError(f"{file}: holds no cells")
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


@dataclass(frozen=True, slots=True)
class CellCounts:
    """How many cells a results CSV has, and of which kind."""

    cells: int
    backends: tuple[str, ...]
    """Those with a cell that was tried."""
    operations: tuple[str, ...]
    directions: tuple[str, ...]
    dtypes: tuple[str, ...]
    cards: tuple[str, ...]
    """Each model of its cards, with their number if there are several: `2 x NVIDIA H200`."""
    status: Mapping[str, int]
    labels: Mapping[str, int]


COUNTED = ("backend", "direction", "dtype", "status", "device")
YOUNGER = {"op": "dtype", "unit": "device", "labels": "status"}
"""Columns that a file may lack, each with one whose values then do no harm."""


def cell_counts(file: Path) -> CellCounts:
    """Count the cells of a results CSV without reading their numbers.

    Raises:
        ResultsError: it is not a results file, was changed after its run, or a line is damaged.
    """
    try:
        unvouched(file)
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines)
            head = next(reader)
            places = [head.index(name) for name in COUNTED]
            places += [head.index(name if name in head else other) for name, other in YOUNGER.items()]
            counts = Counter(map(itemgetter(*places), reader))
    except (OSError, ValueError, IndexError, StopIteration, csv.Error) as error:
        raise ResultsError(f"{file}: is damaged ({one_line(str(error), 80)}); softbench show {file} names the line") from None
    status, labels = Counter[str](), Counter[str]()
    units: dict[str, set[str]] = {}
    for (_, _, _, ended, device, _, unit, marks), number in counts.items():
        status[one_line(ended, 20)] += number
        labels.update({mark: number for mark in marks.split() if mark in LABELS})
        units.setdefault(one_line(device, 120), set()).add(unit)
    cards = tuple(f"{len(some)} x {device}" if len(some) > 1 else device for device, some in units.items())

    def several(place: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one_line(values[place], 120) for values in counts if values[3] not in UNTRIED or place))

    operations = several(5) if "op" in head else (OPERATION,)
    return CellCounts(status.total(), several(0), operations, several(1), several(2), cards, status, labels)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A run that has not finished: a journal."""

    file: Path
    run: str
    started: str
    device: str
    command: str
    stored: int
    """Cells in the journal, at most; of a long journal estimated from its beginning."""
    planned: int
    """Cells of the whole run; 0 if the journal does not tell."""
    running: bool
    """True if a process writes it now."""

    @property
    def resume(self) -> str:
        """The command that continues it, if there is one."""
        return continuation(self.command)


SAMPLE = 2**22
"""Bytes of a journal whose lines are counted."""


def unfinished(paths: Iterable[Path]) -> tuple[list[Unfinished], list[str]]:
    """The unfinished runs below these folders, newest first, and a line for each journal that cannot be read."""
    found, problems = [], []
    for file in dict.fromkeys(file for path in paths if path.is_dir() for file in _below(path, ".jsonl") if file.name.startswith("run-")):
        try:
            found.append(_unfinished(file))
        except OSError as error:
            problems.append(f"{file}: {error.strerror}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            problems.append(f"{file}: is no journal of a run, or its first line is damaged; it cannot be resumed")
    return sorted(found, key=lambda one: order(one.run), reverse=True), problems


def _unfinished(file: Path) -> Unfinished:
    with open(file, "rb", opener=no_link) as journal:
        running = False
        try:
            lock(journal, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            running = True
        first = journal.readline(SAMPLE)
        sample = journal.read(SAMPLE)
        size = os.fstat(journal.fileno()).st_size
    header = json.loads(first)
    lines = sample.count(b"\n")
    if len(first) + len(sample) < size:
        lines = round(lines * (size - len(first)) / max(1, len(sample)))  # a run that just began may write between both
    fingerprint = header["fingerprint"]
    cases = re.match(r"\d+", str(fingerprint.get("cases")))
    planned = int(cases[0]) * len(header["backends"]) * int(fingerprint.get("processes", 1)) if cases else 0
    run, started, device, command = (one_line(str(header[name]), 500) for name in ("run", "started", "device_name", "command"))
    return Unfinished(file, run, started, device, command, lines, planned, running)
