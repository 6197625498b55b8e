"""Writes a run's files; `document` and `records` read them. Every measured case is on disk at once, and `latest` is always a finished run.

DIR/<run>.jsonl is the journal: a header, then a line per cell with its raw samples. DIR/<run>.csv is rewritten after every case. A
finished run writes DIR/<run>.json.gz, deletes the journal, and copies both files to latest.csv and latest.json.gz. A remaining journal is
an interrupted run, which `softbench.results.journal` reads. DIR/<run>.log has the output of failed workers.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Protocol

from softbench.core.case import Case
from softbench.core.errors import ResultsError
from softbench.core.files import no_link, not_written, replace_file
from softbench.core.json import JsonObject
from softbench.core.outcome import Record, Status
from softbench.core.text import count, one_line, printable
from softbench.results.csv import to_csv
from softbench.results.document import SUFFIX, beside, packed, units_of
from softbench.results.journal import Cells, newest, put, reopened
from softbench.results.records import SCHEMA, merge, record_to_json
from softbench.results.rows import Row, rows_of_case

CHEAP_SECONDS, LAG = 0.02, 20  # a CSV that takes longer is written in at most a twentieth of the time


RETRIED = frozenset({Status.FAILED, Status.TIMEOUT, Status.OOM})
"""What may succeed when it is measured again; a wrong output needs other code, and then it is measured again anyway."""


class Keeps(Protocol):
    """What takes the records of a measurement: a `Run`, or the link of a card to its fleet."""

    def has(self, process: int, names: Sequence[str], case: Case) -> bool:
        """True if the records of all these backends exist."""

    def add(self, process: int, records: Sequence[Record]) -> None:
        """Take the records of one case."""

    def keep_log(self, label: str, text: str) -> None:
        """Take the output of a failed worker."""


@dataclass(slots=True)
class Run:
    """One run's records and files, made by `start` or `resume`."""

    folder: Path
    name: str
    header: JsonObject
    journal: IO[bytes]
    cells: Cells = field(default_factory=dict)
    cases: Sequence[Case] = ()
    """The cases in the order of the sweep; without them cells have the order in which they were measured."""
    _rows: dict[tuple[Case, str], list[Row]] = field(default_factory=dict)
    """Cached rows of unchanged cases, by case and unit."""
    _due: float = 0.0
    """Time of the next CSV write."""
    _size: int = 0
    """Bytes of the journal, which only this process writes."""

    def __post_init__(self) -> None:
        self._size = os.fstat(self.journal.fileno()).st_size

    @property
    def csv(self) -> Path:
        return self.folder / f"{self.name}.csv"

    @property
    def json(self) -> Path:
        return beside(self.csv)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def keep_log(self, label: str, text: str) -> None:
        """Append the output of a failed worker. Errors are ignored: a log must not stop a run."""
        with suppress(OSError), open(self.log, "a", encoding="utf-8", errors="replace", opener=no_link) as file:
            file.write(f"== {one_line(label, 100)} ==\n{printable(text).rstrip()}\n")

    def has(self, process: int, names: Sequence[str], case: Case, unit: str | None = None) -> bool:
        """True if the records of all these backends exist, measured from the present source files. Without `unit` by any one unit."""
        if unit is None:
            return any(self.has(process, names, case, one) for one in units_of(self.header))
        sources = self.header["sources"]
        found = [self.cells.get((process, name, case, unit)) for name in names]
        return all(record is not None and record.source == sources.get(record.backend) for record in found)

    def add(self, process: int, records: Sequence[Record]) -> None:
        """Store the records of one case: in the journal at once, in the CSV soon.

        Raises:
            StorageError: the disk is full. These records are not on disk; `records` has them.
            ResultsError: the folder cannot be written, or another process wrote to the journal.
        """
        with _writing(self.folder):
            if self.restore_journal():
                raise ResultsError(f"{self.journal.name}: another process wrote to it, perhaps a plugin; what it wrote was removed")
            for record in records:
                put(self.cells, process, record, self.header, units_of(self.header))
                self._rows.pop((record.case, record.unit), None)
            _append(self.journal, b"".join(_line({"process": process, **record_to_json(record)}) for record in records))
            self._size = self.journal.tell()
        begin = time.monotonic()
        if begin >= self._due:
            self.write_rows()
            self._due = time.monotonic() + LAG * (time.monotonic() - begin - CHEAP_SECONDS)

    def restore_journal(self) -> bool:
        """Remove what another process appended to the journal, so that no forged cell is resumed. True if there was such text.

        Raises:
            OSError: the file cannot be read or written.
        """
        size = os.fstat(self.journal.fileno()).st_size
        if size > self._size:
            os.ftruncate(self.journal.fileno(), self._size)
        return size != self._size

    def write_rows(self) -> None:
        """Write the CSV.

        Raises:
            ResultsError: the folder cannot be written.
        """
        with _writing(self.folder):
            replace_file(self.csv, to_csv(self.rows()))

    def records(self) -> list[Record]:
        """One record per cell, merged over process sets, in the order of the cases."""
        merged: dict[tuple[Case, str, str], list[Record]] = {}
        for (_, name, case, unit), record in sorted(self.cells.items(), key=lambda item: item[0][0]):
            merged.setdefault((case, name, unit), []).append(record)
        order = {name: i for i, name in enumerate(self.header["backends"])}
        units = {unit: i for i, unit in enumerate(units_of(self.header))}
        place = {case: i for i, case in enumerate(self.cases)}
        for case, _, _ in merged:
            place.setdefault(case, len(place))
        keys = sorted(merged, key=lambda key: (place[key[0]], units.get(key[2], len(units)), order.get(key[1], len(order))))
        return [merge(merged[key]) for key in keys if key[1] in order]

    def rows(self) -> list[Row]:
        """The CSV's rows; only changed cases are computed again."""
        by_case: dict[tuple[Case, str], dict[str, Record]] = {}
        for record in self.records():
            by_case.setdefault((record.case, record.unit), {})[record.backend] = record
        for key, of in by_case.items():
            if key not in self._rows:
                self._rows[key] = rows_of_case(of, {**self.header, "run": self.name})
        return [found for key in by_case for found in self._rows[key]]

    def set_facts(self, facts: JsonObject) -> None:
        """Set facts that all units share. Rows depend on them, so all are computed again."""
        self.header["environment"] = {**self.header["environment"], **facts}
        self._rows.clear()

    def document(self) -> JsonObject:
        """The run document: the header, and every cell with its raw samples."""
        return {**self.header, "cells": [record_to_json(record) for record in self.records()]}

    def finish(self, *, publish: bool) -> None:
        """Write the JSON, copy both files to `latest` if `publish`, and delete the journal.

        Raises:
            ResultsError: the folder cannot be written; the journal remains.
        """
        with _writing(self.folder):
            self.header["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
            replace_file(self.csv, to_csv(self.rows()))  # a resumed run may have measured nothing
            document = packed(self.document())
            replace_file(self.json, document)
            if publish:
                with _lock_file(self.folder / ".lock") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)  # so that latest.csv and its document belong to one run
                    replace_file(self.folder / "latest.csv", self.csv.read_text(encoding="utf-8"))
                    replace_file(beside(self.folder / "latest.csv"), document)
            Path(self.journal.name).unlink()
            self.journal.close()


def writable(folder: Path) -> None:
    """Try to write into the folder, or where it would be created. `start` creates it, so that a refused run leaves none.

    Raises:
        ResultsError: the folder cannot be created or written.
    """
    with _writing(folder):
        if os.path.lexists(folder / ".lock"):
            _lock_file(folder / ".lock").close()
        with tempfile.TemporaryFile(dir=_nearest(folder)):
            pass


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest folder above it that exists. Raises OSError if one is a file or cannot be read."""
    for place in (folder, *folder.absolute().parents):
        with suppress(FileNotFoundError):
            place.lstat()
            return place
    return folder


def start(folder: Path, header: JsonObject) -> Run:
    """A new run in `folder`, which is created. `header`: see `softbench.run.header.header`.

    Raises:
        ResultsError: the folder cannot be written.
    """
    moment = datetime.now(UTC)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for attempt in range(1000):
            name = f"run-{moment:%Y%m%d-%H%M%S}" + (f"-{attempt + 1}" if attempt else "")
            with suppress(FileExistsError):
                journal = (folder / f"{name}.jsonl").open("xb", buffering=0)
                if not any(os.path.lexists(folder / f"{name}{suffix}") for suffix in (".csv", SUFFIX)):
                    break
                journal.close()  # the files are of a run that ended within this second
                Path(journal.name).unlink()
        fcntl.flock(journal, fcntl.LOCK_EX)
        header = {"schema": SCHEMA, "run": name, "started": moment.isoformat(timespec="seconds"), **header}
        _append(journal, _line(header))
    return Run(folder, name, header, journal)


def resume(
    folder: Path, header: JsonObject, cases: Collection[Case] | None = None, *, look: bool = False, retry: bool = False
) -> tuple[Run | None, str]:
    """The newest interrupted run in `folder` with the same settings and environment, and a note for the user.

    A run that cannot be resumed stays unchanged. Each of its cells must be of `cases` (None: any), of the header's backends, and of a round
    and process set of the settings. Journals are not signed: a text that fits cannot be told from a measurement.

    With `look` no file changes. The run has its cells, and its journal is closed.

    With `retry` the newest finished run is continued if none is interrupted, and the cases with a cell of RETRIED are measured again. All
    backends are, because ratios need samples of the same rounds.

    Raises:
        ResultsError: with `retry` there is no such run, or it cannot be read or continued.
    """
    found = newest(folder, header, cases, look=look)
    if retry and isinstance(found, str):
        with _writing(folder):
            found = reopened(folder, header, cases, look=look)
        if isinstance(found, str):
            raise ResultsError(f"--retry-failed: {found}")
    if isinstance(found, str):
        return None, found
    again = {(case, unit) for (_, _, case, unit), record in found.cells.items() if retry and record.status in RETRIED}
    cells = {key: record for key, record in found.cells.items() if key[2:] not in again}
    run = Run(folder, found.name, found.header, found.file, cells)
    if look:
        run.journal.close()
    elif header.get("spread"):
        with _writing(folder):
            _append(found.file, _line({"environment": header["environment"], "units": header["units"]}))
            run._size = found.file.tell()
    return run, _resuming(run) + (f"; {count(len(again), 'case')} with a failed cell measured again" if retry else "")


def _resuming(run: Run) -> str:
    """The note for a run that is resumed."""
    sources = run.header["sources"]
    changed = sum(record.source != sources.get(record.backend) for record in run.cells.values())
    again = f"; {changed} more are measured again, as their backends' source files changed" if changed else ""
    return f"resuming {run.name}: {len(run.cells) - changed} cells are there already{again}"


def _line(data: JsonObject) -> bytes:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _append(journal: IO[bytes], data: bytes) -> None:
    """Write all of the data. A journal has no buffer: what a full disk refused must not be written when the process ends."""
    while data:
        data = data[journal.write(data) :]


def _lock_file(path: Path) -> IO[bytes]:
    """The lock file, created if there is none. Its content stays.

    Raises:
        OSError: it is a symbolic link, which may name a file of another folder, or it cannot be opened; with the file and the next step.
    """
    if path.is_symlink():
        raise OSError(errno.ELOOP, f"{path.name} is a symbolic link; remove it")
    flags = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags | os.O_RDWR, 0o644), "rb")  # NFS locks a file only if it is open for writing
    except PermissionError:  # of another user; other file systems lock a file that is open for reading, too
        with suppress(PermissionError):
            return os.fdopen(os.open(path, flags & ~os.O_CREAT | os.O_RDONLY), "rb")
        raise PermissionError(errno.EACCES, f"no permission for {path.name}; remove it, or choose another folder with --output") from None


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise not_written(f"--output {folder}", error) from None
