"""Writes a run's files; `document` and `records` read them. Every measured case is on disk at once, and `latest` is always a finished run.

DIR/<run>.jsonl is the journal: a header, then a line per cell with its raw samples. DIR/<run>.csv gets the rows of every new case; it is
written again if cells in it change, and in the order of the sweep at the end. A finished run writes DIR/<run>.json.gz, deletes the journal,
and copies both files to latest.csv and latest.json.gz. An interrupted run also writes DIR/<run>.json.gz, which says so, and its journal
remains: `softbench.results.journal` reads it. The run that continues removes that JSON.
DIR/<run>.log has the output of failed workers.

The samples stay on disk. In memory a cell takes about 2 KB: its row, and its place in the journal.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Protocol

from softbench.core.case import Case
from softbench.core.errors import ResultsError, SoftbenchError
from softbench.core.files import Syncing, lock, no_link, not_written, replace_file, replacing, sync_folder
from softbench.core.json import JsonObject
from softbench.core.outcome import FAILURES, Record, Status
from softbench.core.text import count, one_line, printable
from softbench.results.columns import Row
from softbench.results.csv import digest_of as digest_of_csv, to_csv
from softbench.results.document import STAMP, SUFFIX, beside, units_of, write_packed
from softbench.results.journal import ENCODER, Cells, Stored, cell_of, digest_of, line_at, line_of, newest, record_at, reopened
from softbench.results.records import SCHEMA, merge, record_to_json
from softbench.results.rows import rows_of_case

SECOND = timedelta(seconds=1)
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
    """It is open as long as the run exists, also after it was deleted: the records are read from it."""
    cells: Cells
    cases: Sequence[Case] = ()
    """The cases in the order of the sweep; without them cells have the order in which they were measured."""
    warning: str = ""
    """A text for the user if the journal could not be locked."""
    lost: str = ""
    """A text for the user if lines of the journal were left out."""
    lines: int = 1
    """The number of the journal's last line."""
    _rows: dict[tuple[Case, str], list[Row]] = field(default_factory=dict)
    """The rows of unchanged cases, by case and unit."""
    _due: float = 0.0
    """Time from which the CSV is written again if cells in it changed."""
    _changed: bool = False
    """True if cells in the CSV changed."""
    _size: int = 0
    """Bytes of the journal, which only this process writes."""
    _csv_size: int = -1
    """Bytes of the CSV; -1 before it was written."""
    _units: dict[str, JsonObject] = field(default_factory=dict)
    """The facts of each unit."""
    _syncing: Syncing = field(init=False)

    def __post_init__(self) -> None:
        self._size = os.fstat(self.journal.fileno()).st_size
        self._units = units_of(self.header)
        self._syncing = Syncing(self.journal)

    def __del__(self) -> None:
        self.journal.close()

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
            return any(self.has(process, names, case, one) for one in self.cells.units(case) if one in self._units)
        sources, of = self.header["sources"], self.cells.of(case, unit)
        return all((found := of.get((process, name))) is not None and found.source == sources.get(name) for name in names)

    def first_failures(self) -> dict[Case, int]:
        """The cases in which a backend has failed, each with the first such process set; of the present source files, as `has`."""
        found: dict[Case, int] = {}
        for case, unit in self.cells.cases():
            for (process, name), stored in self.cells.of(case, unit).items():
                if stored.status in FAILURES and stored.source == self.header["sources"].get(name):
                    found[case] = min(process, found.get(case, process))
        return found

    def add(self, process: int, records: Sequence[Record]) -> None:
        """Store the records of one case: in the journal at once, in the CSV soon.

        Raises:
            StorageError: the disk is full. These records are not on disk; `records` has them.
            ResultsError: the folder cannot be written, or another process wrote to the journal.
        """
        with _writing(self.folder):
            if self.restore_journal():
                raise ResultsError(f"{self.journal.name}: another process wrote to it, perhaps a plugin; what it wrote was removed")
            lines = self._lines_of([{"process": process, **record_to_json(record)} for record in records])
            try:
                _append(self.journal, b"".join(lines))
                self._syncing.soon()
            except OSError:
                self._put(process, records, [Stored(0, 0, b"", record.status, record.source, record) for record in records])
                raise
            self.lines += len(lines)
            new = self._put(process, records, self._stored(records, lines))
        begin = time.monotonic()
        if (self._changed or self._csv_size < 0) and begin >= self._due:
            self.write_rows()
            self._due = time.monotonic() + LAG * (time.monotonic() - begin - CHEAP_SECONDS)
        elif self._csv_size >= 0:
            with _writing(self.folder):
                self._append_rows([row for key in new for row in self._rows_of(*key, records)])

    def _lines_of(self, entries: Sequence[JsonObject]) -> list[bytes]:
        """The lines of these entries at the end of the journal."""
        return [line_of(entry, self.lines + number) for number, entry in enumerate(entries, 1)]

    def join(self, units: JsonObject) -> None:
        """Note the units of cards that continue the run."""
        with _writing(self.folder):
            _append(self.journal, b"".join(self._lines_of([units])))
        self.lines += 1
        self._size = self.journal.tell()

    def _stored(self, records: Sequence[Record], lines: Sequence[bytes]) -> list[Stored]:
        """Where the lines of these records are, which the journal now ends with."""
        found = []
        for record, line in zip(records, lines, strict=True):
            found.append(Stored(self._size, len(line), digest_of(line), record.status, record.source))
            self._size += len(line)
        return found

    def _put(self, process: int, records: Sequence[Record], places: Sequence[Stored]) -> list[tuple[Case, str]]:
        """Make records known. Returns their cases, each with its unit, if the CSV has no rows of them."""
        keys = list(dict.fromkeys((record.case, record.unit) for record in records))
        known = [key for key in keys if self.cells.of(*key)]
        for key in keys:  # also of a unit that lost the case before
            self._rows.pop(key, None)
        lost = [self.cells.put(process, record, stored) for record, stored in zip(records, places, strict=True)]
        self._changed = self._changed or bool(known) or any(lost)
        return [key for key in keys if key not in known]

    def _append_rows(self, rows: Sequence[Row]) -> None:
        """Append rows to the CSV, or write it again if another process changed it."""
        try:
            file = open(self.csv, "ab", buffering=0, opener=no_link)  # noqa: SIM115 - closed below
        except OSError:  # a symbolic link, or a file without permission, is replaced
            self._write_rows()
            return
        with file:
            if os.fstat(file.fileno()).st_size != self._csv_size:
                self._write_rows()
                return
            text = to_csv(rows, header=False).encode()
            try:
                _append(file, text)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file.fileno(), self._csv_size)
                raise
            self._csv_size += len(text)

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
            self._write_rows()

    def _write_rows(self, *, durable: bool = False) -> str:
        """Write the CSV. Returns its digest."""
        content = to_csv(self.rows()).encode()
        replace_file(self.csv, content, durable=durable)
        self._csv_size, self._changed = len(content), False
        return digest_of_csv(content)

    def interrupt(self) -> None:
        """Write the CSV and the JSON, and unlock the journal, so that another run may continue it. Errors are ignored."""
        with suppress(SoftbenchError, OSError):
            self.restore_journal()
            self._syncing.close()
            self._write_files(interrupted=True) if self.cells else self.write_rows()
        with suppress(OSError):
            fcntl.flock(self.journal, fcntl.LOCK_UN)

    def _ordered(self) -> list[tuple[Case, str]]:
        """Each case with each of its units, in the order of the sweep."""
        units = {unit: i for i, unit in enumerate(self._units)}
        place = {case: i for i, case in enumerate(self.cases)}
        keys = [*self.cells.cases()]
        for case, _ in keys:
            place.setdefault(case, len(place))
        return sorted(keys, key=lambda key: (place[key[0]], units.get(key[1], len(units))))

    def _by_backend(self, case: Case, unit: str) -> Iterator[list[Stored]]:
        """The records of each backend of the run, by process set."""
        of = self.cells.of(case, unit)
        processes = sorted({process for process, _ in of})
        for name in self.header["backends"]:
            if found := [of[process, name] for process in processes if (process, name) in of]:
                yield found

    def _merged(self, case: Case, unit: str) -> list[Record]:
        return [merge([record_at(self.journal, one) for one in found]) for found in self._by_backend(case, unit)]

    def _rows_of(self, case: Case, unit: str, all_records: Sequence[Record] = ()) -> list[Row]:
        """The rows of a case on a unit. `all_records` has its records, if they are at hand."""
        if (case, unit) not in self._rows:
            at_hand = {record.backend: record for record in all_records if (record.case, record.unit) == (case, unit)}
            merged = [at_hand[name] for name in self.header["backends"] if name in at_hand] or self._merged(case, unit)
            of = {record.backend: record for record in merged}
            self._rows[case, unit] = rows_of_case(of, {**self.header, "run": self.name}, self._units) if of else []
        return self._rows[case, unit]

    def records(self) -> Iterator[Record]:
        """One record per cell, merged over process sets, in the order of the cases. They are read from the journal.

        Raises:
            ResultsError: another process changed the journal.
        """
        return (record for key in self._ordered() for record in self._merged(*key))

    def by_process(self) -> Iterator[tuple[int, Record]]:
        """One record per cell and process set. Raises as `records`."""
        for case, unit in self._ordered():
            for (process, _), stored in sorted(self.cells.of(case, unit).items()):
                yield process, record_at(self.journal, stored)

    def rows(self) -> list[Row]:
        """The CSV's rows; only changed cases are computed again."""
        return [row for key in self._ordered() for row in self._rows_of(*key)]

    def set_facts(self, facts: JsonObject) -> None:
        """Set facts that all units share. Rows depend on them, so all are computed again."""
        self.header["environment"] = {**self.header["environment"], **facts}
        self._units = units_of(self.header)
        self._rows.clear()

    def document(self) -> JsonObject:
        """The run document: the header, and every cell with its raw samples."""
        return {**self.header, "cells": [record_to_json(record) for record in self.records()]}

    def _cells_as_json(self) -> Iterator[bytes]:
        """Each cell of the document. A record of one process set has it in its line already."""
        for key in self._ordered():
            for found in self._by_backend(*key):
                if len(found) == 1 and found[0].unsaved is None:
                    yield cell_of(line_at(self.journal, found[0]))
                else:
                    yield ENCODER.encode(record_to_json(merge([record_at(self.journal, one) for one in found]))).encode()

    def finish(self, *, publish: bool) -> None:
        """Write the JSON, copy both files to `latest` if `publish`, and delete the journal.

        Raises:
            ResultsError: the folder cannot be written; the journal remains.
        """
        with _writing(self.folder):
            self._write_files()
            if publish:
                with _lock_file(self.folder / ".lock") as locked:
                    lock(locked, fcntl.LOCK_EX)  # so that latest.csv and its document belong to one run
                    self._publish()
            self._syncing.close()
            Path(self.journal.name).unlink()

    def _write_files(self, **how: bool) -> None:
        """Write the CSV in the order of the sweep, and the JSON, whose header also says how the run ended."""
        self.header |= {"finished": datetime.now(UTC).isoformat(timespec="seconds"), **how}
        csv = self._write_rows(durable=True)
        with replacing(self.json, durable=True) as file:
            write_packed(file, self.header, self._cells_as_json(), csv)

    def _publish(self) -> None:
        """Copy both files to `latest`. Both are replaced after both are copied, as a reader may come between."""
        with ExitStack() as end:
            for path in (self.csv, self.json):
                file = end.enter_context(replacing(self.folder / path.name.replace(self.name, "latest"), durable=True))
                with path.open("rb") as content:
                    shutil.copyfileobj(content, file)


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
    started = datetime.now(UTC)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        moment = max([started, *(after + SECOND for file in folder.iterdir() if (after := _moment(file.name)))])
        while (journal := _new_journal(folder, f"run-{moment:%Y%m%d-%H%M%S}")) is None:
            moment += SECOND
        name = Path(journal.name).stem
        locked = lock(journal, fcntl.LOCK_EX)
        header = {"schema": SCHEMA, "run": name, "started": started.isoformat(timespec="seconds"), **header}
        _append(journal, line_of(header, 1))
        sync_folder(folder)
    return Run(folder, name, header, journal, Cells(header), warning="" if locked else _unlocked(folder))


def _moment(name: str) -> datetime | None:
    """The time in the name of a run's file. The clock may have been ahead then, and a run of today still has the later name."""
    with suppress(ValueError):
        if (stamp := STAMP.match(name)) and not stamp[1].startswith("9999"):
            return datetime.strptime("".join(stamp.groups()), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return None


def _new_journal(folder: Path, name: str) -> IO[bytes] | None:
    """A new journal; None if a run has the name."""
    with suppress(FileExistsError):
        journal = (folder / f"{name}.jsonl").open("x+b", buffering=0)
        if not any(os.path.lexists(folder / f"{name}{suffix}") for suffix in (".csv", SUFFIX)):
            return journal
        journal.close()  # the run has ended meanwhile
        Path(journal.name).unlink()
    return None


def _unlocked(folder: Path) -> str:
    return f"{folder}: its file system has no locks, so two runs may continue one journal; give each run a folder of its own with --output"


def resume(
    folder: Path, header: JsonObject, cases: Collection[Case] | None = None, *, look: bool = False, retry: bool = False
) -> tuple[Run | None, str]:
    """The newest interrupted run in `folder` with the same settings and environment, and a note for the user.

    A run that cannot be resumed stays unchanged. Each of its cells must be of `cases` (None: any), of the header's backends, and of a round
    and process set of the settings. Other cells, and those of damaged lines, are left out: `lost` of the run says so. Journals are not
    signed: a line with its digest cannot be told from a measurement.

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
    if not look:
        with _writing(folder):
            beside(folder / f"{found.name}.csv").unlink(missing_ok=True)  # of the interrupted run: the CSV changes from now on
            for torn in folder.glob(f".{found.name}.*") if found.locked else ():  # of a run that was killed while it wrote a file
                torn.unlink(missing_ok=True)
    cells = found.cells
    again = [key for key in cells.cases() if retry and any(one.status in RETRIED for one in cells.of(*key).values())]
    for key in again:
        cells.drop(*key)
    warning = "" if found.locked else _unlocked(folder)
    run = Run(folder, found.name, found.header, found.file, cells, warning=warning, lost=found.lost, lines=found.lines)
    if look:
        run.journal.close()
    elif header.get("spread"):
        run.join({"environment": header["environment"], "units": header["units"]})
    failed = f"{count(len(again), 'case')} with a failed cell measured again" if again else "no case has a failed cell"
    return run, _resuming(run) + (f"; {failed}" if retry else "")


def _resuming(run: Run) -> str:
    """The note for a run that is resumed. If a backend has changed, all backends of its cases are measured again, as ratios need."""
    sources, again, kept = run.header["sources"], 0, len(run.cells)
    for key in run.cells.cases():
        of = run.cells.of(*key)
        changed = {process for (process, backend), stored in of.items() if stored.source != sources.get(backend)}
        kept -= sum(process in changed for process, _ in of)
        again += bool(changed)
    told = f"; {count(again, 'case')} measured again, as the source files of a backend changed" if again else ""
    return f"resuming {run.name}: {count(kept, 'cell')} {'is' if kept == 1 else 'are'} there already{told}"


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
