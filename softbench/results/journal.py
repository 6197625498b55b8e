"""Reads the journal of an interrupted run, to continue the run or to look at it, and makes one of a finished run."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from softbench.core.case import Case
from softbench.core.files import no_link, replace_file
from softbench.core.json import JsonObject
from softbench.core.outcome import Measured, Profile, Record
from softbench.results.document import SUFFIX, device_name, environments, load, units_of
from softbench.results.records import record_from_json, record_to_json, records_of

SHARD = "shard"
"""The entry `spread` of a run whose cases are dealt to several cards."""
Cells = dict[tuple[int, str, Case, str], Record]
"""Records by process set, backend, case and unit."""


@dataclass(frozen=True, slots=True)
class Journal:
    """A journal with its cells."""

    name: str
    """The run's name."""
    file: IO[bytes]
    header: JsonObject
    """The header of the run that continues, with name, start and schema of the interrupted run."""
    cells: Cells


def newest(folder: Path, header: JsonObject, cases: Collection[Case] | None, *, look: bool) -> Journal | str:
    """The newest journal in `folder` that fits the header, or why there is none.

    A journal that does not fit stays unchanged. With `look` none changes; else a torn last line is removed.
    """
    reason = ""
    for path in sorted(folder.glob("run-*.jsonl"), key=lambda path: path.name, reverse=True):
        try:
            file = open(path, "rb" if look else "r+b", buffering=0, opener=no_link)  # noqa: SIM115 - Path.open has no opener
        except OSError as error:
            reason = reason or f"{path} cannot be resumed: {error.strerror}"
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_NB | (fcntl.LOCK_SH if look else fcntl.LOCK_EX))
            found, size = _read(path, file, header, cases)
        except BlockingIOError:
            reason = reason or f"{path.stem} is still running"
        except ValueError as error:
            reason = reason or f"{path.stem} cannot be resumed: {error}"
        else:
            if not look:
                file.seek(size)
                file.truncate()
            return found
        file.close()
    return reason or f"nothing to resume in {folder}: no interrupted run there"


def reopened(folder: Path, header: JsonObject, cases: Collection[Case] | None, *, look: bool) -> Journal | str:
    """The newest finished run in `folder` as a journal again, if it fits the header, or why there is none. With `look` no file is written.

    Raises:
        ResultsError: the document of that run is damaged.
        OSError: the journal cannot be written.
    """
    document = max(folder.glob(f"run-*{SUFFIX}"), key=lambda path: path.name, default=None)
    if document is None:
        return f"no finished run in {folder}"
    content, path = _as_journal(load(document), document), folder / f"{document.name.removesuffix(SUFFIX)}.jsonl"
    try:
        found, _ = _read(path, Path(os.devnull).open("rb", buffering=0), header, cases, content)  # noqa: SIM115 - part of the journal
    except ValueError as error:
        return f"{path.stem} does not fit: {error}"
    if look:
        return found
    found.file.close()
    replace_file(path, content)
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
    return b"".join(json.dumps(entry, separators=(",", ":"), allow_nan=False).encode() + b"\n" for entry in entries)


def _read(
    path: Path, file: IO[bytes], header: JsonObject, cases: Collection[Case] | None, content: bytes | None = None
) -> tuple[Journal, int]:
    """A journal without a torn last line, and the bytes before that. Raises ValueError with the reason if it does not fit or is damaged."""
    lines = (file.read() if content is None else content).split(b"\n")[:-1]  # text after the last newline is torn
    if not lines:
        raise ValueError("its journal is empty")
    number = 1
    cells: Cells = {}
    try:
        first = json.loads(lines[0])
        then, now = first["fingerprint"], json.loads(json.dumps(header["fingerprint"]))
        kept = {key: first[key] for key in ("schema", "run", "started")}
        facts = units_of(first)
        difference = next((key for key in {**then, **now} if then.get(key) != now.get(key)), None)
        for line in lines[1:]:
            number += 1
            entry = json.loads(line)
            if "units" in entry:  # of cards that joined when the run was resumed
                facts |= units_of(entry)
                continue
            process, record = int(entry.pop("process")), record_from_json(entry)
            if difference is None and (reason := _not_planned(process, record, header, cases)):
                raise ValueError(reason)
            put(cells, process, record, header, {**facts, **units_of(header)})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path.name}, line {number} is damaged ({type(error).__name__}: {error})") from None
    if difference is not None:
        raise ValueError(f"{difference} was {then.get(difference)}, now it is {now.get(difference)}")
    units = environments({**facts, **units_of(header)}) if header.get("spread") else {}
    return Journal(path.stem, file, {**header, **kept, **units}, cells), sum(len(line) + 1 for line in lines)


def put(cells: Cells, process: int, record: Record, header: JsonObject, units: Mapping[str, JsonObject]) -> None:
    """Add a record. In a sharded run one card of a model measures a case: those of a card that was lost before are removed.

    `units` are the facts of the units that measured the run.
    """
    if header.get("spread") == SHARD:
        model = device_name(units.get(record.unit, {}))
        others = [key for key in cells if key[2] == record.case and key[3] != record.unit]
        for key in others:
            if device_name(units.get(key[3], {})) == model:
                del cells[key]
    cells[process, record.backend, record.case, record.unit] = record


def _not_planned(process: int, record: Record, header: JsonObject, cases: Collection[Case] | None) -> str:
    """Why a cell cannot be of a run with this header; empty if it can."""
    settings = header["fingerprint"]
    if record.backend not in header["backends"]:
        return f"no backend of the run is named {record.backend}"
    if cases is not None and record.case not in cases:
        return f"{record.case.key} is no case of the run"
    if not 0 <= process < settings.get("processes", process + 1):
        return f"the run has no process set {process}"
    batches = record.outcome.timing.batches if isinstance(record.outcome, Measured) else ()
    if any(batch.process != process or batch.round >= settings.get("max_rounds", batch.round + 1) for batch in batches):
        return "a batch of another process set or round"
    return ""
