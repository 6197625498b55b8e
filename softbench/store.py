"""A run's files. What has been measured is on disk after every case, and `latest` is always a whole, finished run.

While it runs, DIR/<run>.jsonl is its journal (a header, then a line a cell, raw samples in it) and DIR/<run>.csv is rewritten whole.
When it is done the journal becomes DIR/<run>.json, and both files are published as latest.csv and latest.json. A journal that is
left over is an interrupted run: `--resume` goes on with it.
"""

from __future__ import annotations

import fcntl
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from softbench.errors import ResultsError
from softbench.model import Accuracy, Batch, Build, Case, Direction, Failed, Grade, Measured, Record, Skipped, Status, Timing
from softbench.results import Row, row, to_csv

SCHEMA = 1
KEYED = ("device", "gpu", "gpu_memory_bytes", "driver", "power_limit_w", "cpu", "cuda", "torch", "triton", "python", "interleaved")
"""Facts of the environment that a resumed run must share with its beginning."""


def fingerprint(measuring: dict[str, object], facts: dict[str, object], version: str) -> dict[str, object]:
    """What two parts of one run must have in common, by name, so that a difference can be named too."""
    return {"softbench": version, **measuring, **{key: facts.get(key) for key in KEYED}}


@dataclass(slots=True)
class Run:
    """One run's records and files. Use `start` or `resume`."""

    folder: Path
    name: str
    header: dict[str, Any]
    journal: IO[bytes]
    cells: dict[tuple[int, str, Case], Record] = field(default_factory=dict)
    """By set of processes, backend and case."""
    _rows: dict[tuple[str, Case], tuple[tuple[int, ...], Row]] = field(default_factory=dict)

    @property
    def csv(self) -> Path:
        return self.folder / f"{self.name}.csv"

    @property
    def json(self) -> Path:
        return self.folder / f"{self.name}.json"

    def has(self, process: int, names: Sequence[str], case: Case) -> bool:
        """True when the records of all these backends are there, from the very sources that would be measured now."""
        sources = self.header["sources"]
        found = [self.cells.get((process, name, case)) for name in names]
        return all(record is not None and record.source == sources.get(record.backend) for record in found)

    def add(self, process: int, records: Sequence[Record]) -> None:
        """Keep the records of one case: in the journal first, then in the CSV.

        Raises:
            ResultsError: the folder cannot be written any more.
        """
        with _writing(self.folder):
            for record in records:
                self.cells[process, record.backend, record.case] = record
                self.journal.write(_line({"process": process, **record_to_json(record)}))
            self.journal.flush()
            _replace(self.csv, to_csv(self.rows()))

    def records(self) -> list[Record]:
        """One record a cell: those of all sets of processes merged, in the order of the cases."""
        merged: dict[tuple[Case, str], list[Record]] = {}
        for (_, name, case), record in sorted(self.cells.items(), key=lambda item: item[0][0]):
            merged.setdefault((case, name), []).append(record)
        order = {name: i for i, name in enumerate(self.header["backends"])}
        place: dict[Case, int] = {}
        for case, _ in merged:
            place.setdefault(case, len(place))
        keys = sorted(merged, key=lambda key: (place[key[0]], order.get(key[1], len(order))))
        return [merge(merged[key]) for key in keys if key[1] in order]

    def rows(self) -> list[Row]:
        """The CSV's rows; only those whose record, yardstick or reference is new are computed again."""
        records = self.records()
        by_cell = {(record.backend, record.case): record for record in records}
        found = []
        for record in records:
            key = (record.backend, record.case)
            beside = [by_cell.get((name, record.case)) for name in (self.header["yardstick"], self.header["relative_to"])]
            stamp = tuple(_weight(item) for item in (record, *beside))
            kept = self._rows.get(key)
            if kept is None or kept[0] != stamp:
                kept = stamp, row(record, beside[0], beside[1], device=self.header["device_name"], run=self.name)
                self._rows[key] = kept
            found.append(kept[1])
        return found

    def document(self) -> dict[str, Any]:
        """The run as one JSON document: header, and every cell with its raw samples."""
        return {**self.header, "cells": [record_to_json(record) for record in self.records()]}

    def finish(self, *, publish: bool) -> None:
        """Write the JSON, publish both files as `latest` (unless nothing was measured), and end the journal.

        Raises:
            ResultsError: the folder cannot be written; the journal stays.
        """
        with _writing(self.folder):
            self.header["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
            document = json.dumps(self.document(), separators=(",", ":"), allow_nan=False) + "\n"
            _replace(self.json, document)
            if publish:
                with (self.folder / ".lock").open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)  # two runs that end together: latest.csv and latest.json are of one of them
                    _replace(self.folder / "latest.csv", self.csv.read_text())
                    _replace(self.folder / "latest.json", document)
            Path(self.journal.name).unlink()
            self.journal.close()


def writable(folder: Path) -> None:
    """Make the folder and try it.

    Raises:
        ResultsError: it cannot be made or written.
    """
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def start(folder: Path, header: dict[str, Any]) -> Run:
    """A new run in `folder`. `header`: see `softbench.plan.header`.

    Raises:
        ResultsError: the folder cannot be written.
    """
    moment = datetime.now(UTC)
    with _writing(folder):
        for attempt in range(1000):
            name = f"run-{moment:%Y%m%d-%H%M%S}" + (f"-{attempt + 1}" if attempt else "")
            with suppress(FileExistsError):
                journal = (folder / f"{name}.jsonl").open("xb")
                break
        fcntl.flock(journal, fcntl.LOCK_EX)
        header = {"schema": SCHEMA, "run": name, "started": moment.isoformat(timespec="seconds"), **header}
        journal.write(_line(header))
        journal.flush()
    return Run(folder, name, header, journal)


def resume(folder: Path, header: dict[str, Any]) -> tuple[Run | None, str]:
    """The newest interrupted run in `folder` that was made with the same settings in the same environment, and what to tell the user."""
    told = f"nothing to resume in {folder}: no interrupted run there"
    for path in sorted(folder.glob("run-*.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):
            journal = path.open("r+b")
            try:
                fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                journal.close()
                told = f"nothing to resume in {folder}: {path.stem} is still running"
                continue
            run, difference = _reopen(folder, path, journal, header)
            if run is not None:
                return run, f"resuming {run.name}: {len(run.cells)} cells are there already"
            journal.close()
            told = f"{path.stem} cannot be resumed: {difference}"
    return None, told


def _reopen(folder: Path, path: Path, journal: IO[bytes], header: dict[str, Any]) -> tuple[Run | None, str]:
    lines = journal.read().split(b"\n")
    first = json.loads(lines[0])
    then, now = first["fingerprint"], json.loads(json.dumps(header["fingerprint"]))
    for key in {**then, **now}:
        if then.get(key) != now.get(key):
            return None, f"{key} was {then.get(key)}, now it is {now.get(key)}"
    run = Run(folder, path.stem, {**header, **{key: first[key] for key in ("schema", "run", "started")}}, journal)
    whole = len(lines[0]) + 1
    for line in lines[1:-1]:  # what follows the last newline was torn when the run ended
        entry = json.loads(line)
        process, record = entry.pop("process"), record_from_json(entry)
        run.cells[process, record.backend, record.case] = record
        whole += len(line) + 1
    journal.seek(whole)
    journal.truncate()
    return run, ""


def merge(records: Sequence[Record]) -> Record:
    """One cell's records from several sets of processes as one: the first that is not measured, else all batches together."""
    first = records[0]
    measured: list[Measured] = []
    for record in records:
        if not isinstance(record.outcome, Measured):
            return record
        measured.append(record.outcome)
    if len(records) == 1:
        return first
    worst = max((outcome.accuracy for outcome in measured), key=lambda accuracy: accuracy.worst)
    batches = tuple(batch for outcome in measured for batch in outcome.timing.batches)
    return Record(first.backend, first.case, Measured(measured[0].build, worst, Timing(batches, measured[0].timing.kind)), first.source)


def record_to_json(record: Record) -> dict[str, Any]:
    """A record as JSON has it: numbers that JSON lacks (inf, nan) as texts."""
    data = asdict(record)
    data["outcome"] = {"kind": type(record.outcome).__name__.lower(), **data["outcome"]}
    if accuracy := data["outcome"].get("accuracy"):
        accuracy["worst"] = accuracy["worst"] if math.isfinite(accuracy["worst"]) else str(accuracy["worst"])
    return data


def record_from_json(data: dict[str, Any]) -> Record:
    """The inverse of `record_to_json`.

    Raises:
        KeyError, TypeError, ValueError: it is not a record.
    """
    case = Case(**{**data["case"], "direction": Direction(data["case"]["direction"])})
    outcome = dict(data["outcome"])
    kind = outcome.pop("kind")
    if kind == "skipped":
        return Record(data["backend"], case, Skipped(**outcome), data["source"])
    build = Build(**outcome["build"]) if outcome["build"] else None
    accuracy = None
    if found := outcome["accuracy"]:
        accuracy = Accuracy(Grade(found["grade"]), float(found["worst"]), found["detail"])
    if kind == "failed":
        ended = Failed(Status(outcome["status"]), outcome["stage"], outcome["reason"], build, accuracy)
        return Record(data["backend"], case, ended, data["source"])
    if build is None or accuracy is None:
        raise ValueError("a measured cell without build or accuracy")
    batches = tuple(Batch(**{**batch, "samples_us": tuple(batch["samples_us"])}) for batch in outcome["timing"]["batches"])
    return Record(data["backend"], case, Measured(build, accuracy, Timing(batches, outcome["timing"]["kind"])), data["source"])


def _weight(record: Record | None) -> int:
    if record is None:
        return -1
    return len(record.outcome.timing.batches) if isinstance(record.outcome, Measured) else 0


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _replace(path: Path, text: str) -> None:
    """Write a file so that it is the old one or the new one, whole, at any moment."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(text)
            file.flush()
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(file.name).unlink()
            raise


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResultsError(f"--output {folder}: cannot be written: {error.strerror}") from None
