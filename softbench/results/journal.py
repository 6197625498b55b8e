"""The journal of an unfinished run: its lines, where its records are, and how it is read to continue the run.

Each line ends with its number and its digest, so that a line that was changed, moved or taken out is known. It is left out, and what it had
is measured again. A run that continues has such lines in a file of their own.

Records stay on disk, because the samples of a million cells need more memory than a host has. `Cells` says where each one is.
"""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import IO, NamedTuple

from softbench.core.case import Case
from softbench.core.errors import ResultsError
from softbench.core.files import lock, no_link, replace_file, replacing
from softbench.core.json import JsonObject
from softbench.core.outcome import Measured, Profile, Record, Status
from softbench.core.text import count, one_line
from softbench.results.document import SUFFIX, device_name, environments, order, stream, units_of
from softbench.results.records import record_from_json, record_to_json, records_of

SHARD = "shard"
"""The entry `spread` of a run whose cases are dealt to several cards."""
DIGEST_BYTES = 8
LINE_END = re.compile(rb',"line":([0-9]{1,15}),"digest":"([0-9a-f]{16})"\}\n')
"""What follows the fields of an entry. Its digest is that of the text before it, with the number."""
ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)
READ_BYTES = 2**20
DAMAGED = ".damaged"
"""The suffix of the file with the damaged lines of a journal."""


class Stored(NamedTuple):
    """A record's line in the journal, and what is asked of a record without reading it."""

    at: int
    """Bytes before the line."""
    size: int
    digest: bytes
    """Of the line: the journal is a file that a plugin could change."""
    status: Status
    source: str
    """Hash of the source files of its backend."""
    unsaved: Record | None = None
    """The record itself, if the disk refused it."""


def digest_of(line: bytes) -> bytes:
    """The digest of a line of the journal."""
    return blake2b(line, digest_size=DIGEST_BYTES).digest()


def line_of(entry: JsonObject, number: int) -> bytes:
    """A line of the journal. The numbers begin with 1, which is the header's."""
    text = ENCODER.encode(entry).encode()[:-1] + b',"line":%d' % number
    return text + b',"digest":"%b"}\n' % digest_of(text).hex().encode()


def _entry_of(line: bytes) -> tuple[JsonObject, int]:
    """The entry of a line, and its number. Raises ValueError if the line was changed."""
    end = LINE_END.search(line, max(0, len(line) - 60))
    if not end or digest_of(line[: end.end(1)]).hex().encode() != end[2]:
        raise ValueError("its digest shows a change")
    return json.loads(line[: end.start()] + b"}"), int(end[1])


def cell_of(line: bytes) -> bytes:
    """The cell in a line of a record, as JSON."""
    end = LINE_END.search(line, max(0, len(line) - 60))
    return b"{" + line[: end.start() if end else -2].partition(b",")[2] + b"}"


class Cells:
    """Where the records of a run are. To add one, and to find one, takes the same time for a run of any size."""

    def __init__(self, header: JsonObject) -> None:
        self._of: dict[Case, dict[str, dict[tuple[int, str], Stored]]] = {}
        """By case and unit, then by process set and backend."""
        self._models: dict[str, str] | None = {} if header.get("spread") == SHARD else None
        """The model of each unit, if the cards of a model share the cases."""
        self._count = 0
        self.join(units_of(header))

    def __len__(self) -> int:
        return self._count

    def join(self, units: Mapping[str, JsonObject]) -> None:
        """Let units measure the run, with these facts."""
        if self._models is not None:
            self._models |= {unit: device_name(facts) for unit, facts in units.items()}

    def put(self, process: int, record: Record, stored: Stored) -> bool:
        """Add a record. True if another unit loses the case.

        In a sharded run one card of a model measures a case: records of a card that was lost before are removed.
        """
        units = self._of.setdefault(record.case, {})
        models = self._models
        lost = [
            unit for unit in units if models is not None and unit != record.unit and models.get(unit, "") == models.get(record.unit, "")
        ]
        for unit in lost:
            self._count -= len(units.pop(unit))
        of = units.setdefault(record.unit, {})
        self._count += (process, record.backend) not in of
        of[process, record.backend] = stored
        return bool(lost)

    def units(self, case: Case) -> Collection[str]:
        """The units that have records of a case."""
        return self._of.get(case, {}).keys()

    def of(self, case: Case, unit: str) -> Mapping[tuple[int, str], Stored]:
        """The records of a case on a unit, by process set and backend."""
        return self._of.get(case, {}).get(unit, {})

    def cases(self) -> Iterator[tuple[Case, str]]:
        """Each case with each of its units, in the order in which they were added."""
        return ((case, unit) for case, units in self._of.items() for unit in units)

    def drop(self, case: Case, unit: str) -> None:
        """Forget a case on a unit."""
        self._count -= len(self._of[case].pop(unit))


def line_at(file: IO[bytes], stored: Stored) -> bytes:
    """A record's line in the journal.

    Raises:
        ResultsError: another process changed it.
        OSError: the file cannot be read.
    """
    line = os.pread(file.fileno(), stored.size, stored.at)
    if digest_of(line) != stored.digest:
        raise ResultsError(f"{file.name}: another process changed it, perhaps a plugin; measure again, without that plugin")
    return line


def record_at(file: IO[bytes], stored: Stored) -> Record:
    """A record of the journal. Raises as `line_at`."""
    return stored.unsaved or record_from_json(json.loads(line_at(file, stored)))


@dataclass(frozen=True, slots=True)
class Journal:
    """A journal with its cells."""

    name: str
    """The run's name."""
    file: IO[bytes]
    locked: bool
    """False if its file system has no locks."""
    header: JsonObject
    """The header of the run that continues, with name, start and schema of the interrupted run."""
    cells: Cells
    lines: int
    """The number of its last line."""
    lost: str
    """What was left out, for the user; empty if nothing was."""
    damaged: frozenset[int] = frozenset()
    """The damaged lines, counted from 1."""


def newest(folder: Path, header: JsonObject, cases: Collection[Case] | None, *, look: bool) -> Journal | str:
    """The newest journal in `folder` that fits the header, or why there is none.

    A journal that does not fit stays unchanged. With `look` none changes; else a torn last line is removed, and damaged lines are moved.
    """
    reason = ""
    for path in sorted(folder.glob("run-*.jsonl"), key=lambda path: order(path.stem), reverse=True):
        try:
            file = open(path, "rb" if look else "r+b", buffering=0, opener=no_link)  # noqa: SIM115 - Path.open has no opener
        except OSError as error:
            reason = reason or f"{path} cannot be resumed: {error.strerror}"
            continue
        try:
            locked = lock(file, fcntl.LOCK_NB | (fcntl.LOCK_SH if look else fcntl.LOCK_EX))
            found, size = _read(path, file, header, cases)
        except BlockingIOError:
            reason = reason or f"{path.stem} is still running"
        except ValueError as error:
            reason = reason or f"{path.stem} cannot be resumed: {error}"
        else:
            if not look:
                file.seek(size)
                file.truncate()
            if look or not found.damaged or not (aside := _set_aside(path, file, found.damaged)):
                return replace(found, locked=locked)
            file.close()
            again = newest(folder, header, cases, look=False)
            return again if isinstance(again, str) else replace(again, lost=f"{found.lost}; the damaged text is in {aside}")
        file.close()
    return reason or f"nothing to resume in {folder}: no interrupted run there"


def _set_aside(path: Path, file: IO[bytes], damaged: Collection[int]) -> Path | None:
    """Move these lines of a journal into a file beside it, and number the others anew. None if the disk refuses: nothing changed then."""
    aside, number = path.with_suffix(DAMAGED), 0
    file.seek(0)
    try:
        with open(aside, "ab", opener=no_link) as moved:
            size = moved.tell()
            try:
                with replacing(path, durable=True) as kept:
                    for place, line in enumerate(_lines(file), 1):
                        if place in damaged:
                            moved.write(line)
                        else:
                            number += 1
                            kept.write(line_of(_entry_of(line)[0], number))
                    moved.flush()
                    os.fsync(moved.fileno())
            except OSError:
                moved.truncate(size)
                raise
    except OSError:
        return None
    return aside


def reopened(folder: Path, header: JsonObject, cases: Collection[Case] | None, *, look: bool) -> Journal | str:
    """The newest finished run in `folder` as a journal again, if it fits the header, or why there is none. With `look` no file is written.

    Raises:
        ResultsError: the document of that run is damaged.
        OSError: the journal cannot be written.
    """
    journals = {file: folder / f"{file.name.removesuffix(SUFFIX)}.jsonl" for file in folder.glob(f"run-*{SUFFIX}")}
    finished = [file for file, path in journals.items() if not path.exists()]
    document = max(finished, key=lambda file: order(file.name.removesuffix(SUFFIX)), default=None)
    if document is None:
        return f"no finished run in {folder}"
    path = journals[document]
    try:
        content = _as_journal(stream(document), document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ResultsError(f"{document}: is damaged: {type(error).__name__}: {error}") from None
    try:
        found, _ = _read(path, io.BytesIO(content), header, cases)
    except ValueError as error:
        return f"{path.stem} does not fit: {error}"
    if look:
        return replace(found, file=Path(os.devnull).open("rb", buffering=0))
    replace_file(path, content, durable=True)
    return newest(folder, header, cases, look=False)


def _as_journal(document: JsonObject, file: Path) -> bytes:
    """The text of a journal with the cells of a run document; each process set has its own batches, and the first has the profile."""
    entries: list[JsonObject] = [{key: value for key, value in document.items() if key not in ("cells", "finished", "seconds")}]
    for record in records_of(document, file):
        for process in range(document["fingerprint"].get("processes", 1)):
            own = record
            if isinstance(outcome := record.outcome, Measured):
                batches = tuple(batch for batch in outcome.timing.batches if batch.process == process)
                if not batches:
                    continue
                profile = Profile() if process else outcome.profile
                own = replace(record, outcome=replace(outcome, timing=replace(outcome.timing, batches=batches), profile=profile))
            entries.append({"process": process, **record_to_json(own)})
    return b"".join(line_of(entry, number) for number, entry in enumerate(entries, 1))


def _read(path: Path, file: IO[bytes], header: JsonObject, cases: Collection[Case] | None) -> tuple[Journal, int]:
    """A journal without a torn last line, and the bytes before that. Raises ValueError with the reason if it does not fit the header."""
    lines, planned = _lines(file), None if cases is None else frozenset(cases)
    try:
        first_line = next(lines)
        first, last = _entry_of(first_line)
        then, now = first["fingerprint"], json.loads(json.dumps(header["fingerprint"]))
        kept = {key: first[key] for key in ("schema", "run", "started")}
        facts = units_of(first)
        difference = next((key for key in {**then, **now} if then.get(key) != now.get(key)), None)
        cells = Cells(header)
        cells.join({**facts, **units_of(header)})
    except StopIteration:
        raise ValueError("its journal is empty") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path.name}, line 1 is damaged ({type(error).__name__}: {error})") from None
    if difference is not None:
        advice = f"; its command: {one_line(str(first['command']))}" if first.get("command") else ""
        if difference == "unit":
            advice = "; a run with --devices continues on any card of the model"
        raise ValueError(f"{difference} was {then.get(difference)}, now it is {now.get(difference)}{advice}")
    size, place, right, damaged = len(first_line), 1, 1, dict[int, str]()
    for place, line in enumerate(lines, 2):
        at, size = size, size + len(line)
        try:
            entry, number = _entry_of(line)
            if number <= last:
                raise ValueError("it stands twice, or in the wrong place")
            if "units" in entry:  # of cards that joined when the run was resumed
                facts |= units_of(entry)
                cells.join({**facts, **units_of(header)})
            else:
                process, record = int(entry["process"]), record_from_json(entry)
                if reason := _not_planned(process, record, header, planned, facts):
                    raise ValueError(reason)
                cells.put(process, record, Stored(at, len(line), digest_of(line), record.status, record.source))
            last, right = number, right + 1
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            damaged[place] = f"line {place} is damaged ({one_line(str(error), 120)})"
    lost = [*damaged.values()][:1] + ([f"{count(len(damaged) - 1, 'more line')} too"] if len(damaged) > 1 else [])
    lost += [f"{count(missing, 'line')} missing"] if (missing := last - right - len(damaged)) > 0 else []
    lost += ["the last line is torn"] if file.seek(0, os.SEEK_END) > size else []
    text = f"{path}: {', '.join(lost)}: left out, and what was there is measured again" if lost else ""
    units = environments({**facts, **units_of(header)}) if header.get("spread") else {}
    return Journal(path.stem, file, True, {**header, **kept, **units}, cells, max(last, place), text, frozenset(damaged)), size


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file, without text after the last newline, which is torn."""
    rest = b""
    while chunk := file.read(READ_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in whole)


def _not_planned(process: int, record: Record, header: JsonObject, cases: frozenset[Case] | None, units: Collection[str]) -> str:
    """Why a cell cannot be of a run with this header and these units; empty if it can."""
    settings = header["fingerprint"]
    if header.get("spread") and record.unit not in units and record.unit not in units_of(header):
        return f"no line before it has the unit {record.unit}"
    if record.backend not in header["backends"]:
        return f"no backend of the run is named {record.backend}"
    if cases is not None and record.case not in cases:
        return f"{record.case.key} is no case of the run"
    if not 0 <= process < settings.get("processes", process + 1):
        return f"the run has no process set {process}"
    batches = record.outcome.timing.batches if isinstance(record.outcome, Measured) else ()
    most = 2 * settings.get("max_rounds", math.inf)  # a case whose copy is doubtful has all rounds again, with higher numbers
    if any(batch.process != process or batch.round >= most for batch in batches):
        return "a batch of another process set or round"
    return ""
