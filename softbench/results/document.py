"""The run document: the JSON of a run, compressed beside its CSV. It has the header, the units, and each cell with its raw samples.

Each cell has a line of its own, so that `stream` reads a million with one of them in memory. `records.records_of` validates the cells.
A baseline has the same lines, indented and not compressed.

Three digests make a changed byte known: of the CSV, of the header, and of the cells, which is the last key. Files of earlier versions of
softbench have none. A file whose lines another program has set anew cannot be compared with its digests, so it is refused.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from softbench.core.errors import ResultsError
from softbench.core.files import reject_folder
from softbench.core.json import JsonObject
from softbench.core.text import one_line, size

SUFFIX = ".json.gz"
SUFFIXES = (SUFFIX, ".json")
"""The ends of a document's name. softbench writes the first, and reads a file of either name, compressed or not."""
GZIP = b"\x1f\x8b"  # RFC 1952
LEVEL = 6
"""Level 9 takes twice as long for 1 % less."""
MAX_BYTES = 2**31
"""JSON in other lines than softbench writes is read at once, and not if it is larger. A line is not longer."""
CSV, HEADER, CELLS = DIGESTS = ("digest_of_csv", "digest_of_header", "digest_of_cells")
"""The keys of the digests."""
HEAD_END = re.compile(rb'(?:,\s*"digest_of_header":\s*"([0-9a-f]{32})")?,\s*"cells":\s*\[\n\Z')
DOCUMENT_END = re.compile(rb'\s*\](?:,\s*"digest_of_cells":\s*"([0-9a-f]{32})")?\s*\}\s*')
STAMP = re.compile(r"run-(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)")
"""The name of a run says when it started. If the clock was set back, or two runs start within a second, the second has a later name."""
INTERRUPTED = "is of an interrupted run, and not whole"
CHANGED = "was changed after softbench wrote it, as its digest shows; copy it again, or measure again"


def order(run: str) -> tuple[str, int, str]:
    """What sorts the names of runs by time, oldest first. Earlier versions numbered the runs of a second: `-2`, `-10`."""
    stamp = STAMP.match(run)
    number = re.match(r"-(\d{1,4})\b", run[stamp.end() :]) if stamp else None
    return "".join(stamp.groups()) if stamp else "", int(number[1]) if number else 0, run


def new_digest(begin: bytes | bytearray = b"") -> Any:
    """A hash object for a digest, which has been fed with `begin`."""
    return blake2b(begin, digest_size=16)


def interrupted(header: JsonObject) -> str:
    """What is told of a run with this header, if it or a part of it was interrupted; else nothing."""
    if not header.get("interrupted"):
        return ""
    command = continuation(one_line(str(header.get("command") or ""), 500))
    rest = f"continue with: {command}" if command else "measure again"
    return f"{INTERRUPTED}; {'continue that with --resume, and merge again' if header.get('merged') else rest}"


def continuation(command: str) -> str:
    """The command that continues a run of this command; empty for one of the gate, which only its self-test can continue."""
    if "--resume" in command:
        return command
    return f"{command} --resume" if command.startswith("softbench run") or "--self-test" in command else ""


def beside(csv: Path) -> Path:
    """The run document of a CSV: NAME.json.gz in its folder."""
    return csv.with_suffix(SUFFIX)


def beside_required(csv: Path) -> Path:
    """The run document of a CSV. Raises ResultsError if it is not there."""
    if not (document := beside(csv)).is_file():
        unfinished = csv.with_suffix(".jsonl").is_file()
        what = "the run is unfinished, and gets it after softbench run --resume" if unfinished else "copy both files, or measure again"
        raise ResultsError(f"{csv}: {document.name} is not in its folder, and that file has the samples; {what}")
    return document


def csv_of(document: Path) -> Path:
    """The CSV of a run document."""
    return document.with_name(document.name.removesuffix(".gz").removesuffix(".json") + ".csv")


def write_packed(file: IO[bytes], header: JsonObject, cells: Iterable[bytes], csv: str = "") -> None:
    """Write a run document of a header and its cells, of which each is JSON. Equal documents have equal bytes.

    `csv`: the digest of the CSV beside it.
    """
    head = json.dumps({**header, **({CSV: csv} if csv else {})}, separators=(",", ":"), allow_nan=False)
    with gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as out:
        out.writelines(lines(head[:-1].encode(), cells))


def lines(head: bytes, cells: Iterable[bytes], *, indented: bool = False) -> Iterator[bytes]:
    """The lines of a document with their digests. `head` is the JSON of its header without the last brace, and each cell is JSON."""
    new, blank, indent = (b"\n  ", b" ", b"    ") if indented else (b"", b"", b"")
    of_header = new_digest(head).hexdigest().encode()
    yield b'%b,%b"%b":%b"%b",%b"cells":%b[\n' % (head, new, HEADER.encode(), blank, of_header, new, blank)
    running, last = new_digest(of_header), b""
    for cell in cells:
        if last:
            running.update(last + b",\n")
            yield last + b",\n"
        last = indent + cell
    running.update(last + b"\n")
    yield last + b"\n"
    yield b'%b],%b"%b":%b"%b"%b}\n' % (new[1:], new, CELLS.encode(), blank, running.hexdigest().encode(), new[:1])


def load(path: Path) -> JsonObject:
    """Read a JSON object, compressed or not.

    Raises:
        ResultsError: the file cannot be read, is no object, or was changed.
    """
    document = stream(path)
    return {**document, "cells": list(document["cells"])} if isinstance(document.get("cells"), Iterator) else document


def stream(path: Path) -> JsonObject:
    """As `load`. The cells of a file that softbench wrote are read while they are iterated, once.

    Raises:
        ResultsError: as `load`; also while the cells are iterated.
    """
    reject_folder(path)
    with _errors(path), _opened(path) as file:
        head = _head(path, file)
        first = file.readline(MAX_BYTES).strip() if head else b""
    if head is None or first == b"{":  # a cell of several lines
        return _whole(path)
    return {**head.header, "cells": _cells(path, head.digests.get(HEADER, ""))}


def load_header(path: Path) -> JsonObject:
    """A document without its cells. Only the beginning of a file that softbench wrote is read.

    Raises:
        ResultsError: as `load`.
    """
    reject_folder(path)
    with _errors(path), _opened(path) as file:
        head = _head(path, file)
    return head.header if head else {key: value for key, value in _whole(path).items() if key != "cells"}


def digests(path: Path) -> Mapping[str, str]:
    """The digests in the header of a file, by their keys; none of a file without digests, or with other lines than softbench writes.

    Raises:
        ResultsError: as `load`.
    """
    with _errors(path), _opened(path) as file:
        head = _head(path, file)
    return head.digests if head else {}


class _Head(NamedTuple):
    header: JsonObject
    digests: Mapping[str, str]


def _head(path: Path, file: IO[bytes]) -> _Head | None:
    """The header, with the file at its first cell. None if the file has other lines than softbench writes."""
    head = bytearray(file.readline(MAX_BYTES))
    indented = head == b"{\n"
    while not (end := HEAD_END.search(head, max(0, len(head) - 200))):
        line = file.readline(MAX_BYTES) if indented and len(head) < MAX_BYTES else b""
        if not line:
            return None
        head += line
    if end[1] and new_digest(head[: end.start()]).hexdigest().encode() != end[1]:
        raise ResultsError(f"{path}: {CHANGED}")
    document = json.loads(head[: end.start()] + b"}", parse_constant=_reject)
    found = {key: str(document.pop(key)) for key in (CSV,) if key in document}
    return _Head(document, {**found, **({HEADER: end[1].decode()} if end[1] else {})})


def _cells(path: Path, of_header: str) -> Iterator[JsonObject]:
    import msgspec  # not with --help

    running, number = new_digest(of_header.encode()) if of_header else None, 0
    with _errors(path), _opened(path) as file:
        again = _head(path, file)
        if again is None or again.digests.get(HEADER, "") != of_header:
            raise ResultsError(f"{path}: was replaced while it was read; try again")
        while (line := file.readline(MAX_BYTES)).lstrip()[:1] != b"]":
            if running:
                running.update(line)
            number += 1
            try:
                if text := line.strip():
                    yield msgspec.json.decode(text.removesuffix(b","))
            except msgspec.DecodeError as error:
                raise ValueError(f"cell {number}: {error}") from None
            if not line:
                raise ValueError("its end is missing")
        end = DOCUMENT_END.fullmatch(line + file.read(1000))
        if not end:
            raise ValueError("its end is damaged")
        if (end[1] or b"") != (running.hexdigest().encode() if running else b""):
            raise ResultsError(f"{path}: {CHANGED}")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The content of a file, decompressed."""
    with path.open("rb") as raw:
        compressed = raw.read(len(GZIP)) == GZIP
        raw.seek(0)
        yield io.BufferedReader(gzip.GzipFile(fileobj=raw), 2**16) if compressed else raw


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turn what a file can raise into a ResultsError with its name."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ResultsError(f"{path}: is a damaged gzip file: {one_line(str(error), 120)}; copy it again, or measure again") from None
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # JSON's errors, those of UTF-8, and msgspec's are ValueErrors
        raise ResultsError(f"{path}: is damaged or not JSON: {one_line(str(error), 120)}") from None


def _whole(path: Path) -> JsonObject:
    """A JSON object of any lines."""
    with _errors(path), _opened(path) as file:
        content = file.read(MAX_BYTES + 1) if path.stat().st_size <= MAX_BYTES else None
        if content is None or len(content) > MAX_BYTES:
            raise ResultsError(f"{path}: is larger than {size(MAX_BYTES)}, and not in the lines that softbench writes")
        document = json.loads(content.decode("utf-8-sig"), parse_constant=_reject)
    if not isinstance(document, dict):
        raise ResultsError(f"{path}: is not a softbench file: its JSON is not an object")
    if not document.keys().isdisjoint(DIGESTS):
        raise ResultsError(f"{path}: {CHANGED}")
    return document


def _reject(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def environments(facts: Mapping[str, Mapping[str, object]]) -> JsonObject:
    """The entries `environment` and `units` of a run document: the facts that all units share, and for each unit the others.

    `facts` are those of each unit, with the fact `unit`.
    """
    every = [*facts.values()]
    shared = {key: value for key, value in every[0].items() if key != "unit" and all(key in one and one[key] == value for one in every)}
    return {
        "environment": shared,
        "units": [{"unit": unit, **{key: value for key, value in one.items() if key not in shared}} for unit, one in facts.items()],
    }


def common(fingerprints: Sequence[Mapping[str, object]]) -> JsonObject:
    """The fingerprint of several cards or runs: for each key the value that all have, or all values as one text."""
    keys = dict.fromkeys(key for one in fingerprints for key in one)
    return {key: _one_or_all(one.get(key) for one in fingerprints) for key in keys}


def _one_or_all(values: Iterable[object]) -> object:
    """The value that all have, or the values in order. A value may be a dict, which has no hash."""
    found = {json.dumps(value, sort_keys=True): value for value in values}
    return next(iter(found.values())) if len(found) == 1 else ", ".join(sorted(map(str, found.values())))


def units_of(header: JsonObject) -> dict[str, JsonObject]:
    """The facts of each unit of a run document. Without `units` there is one without a name."""
    shared = dict(header.get("environment") or {})
    return {str(own["unit"]): {**shared, **own} for own in header.get("units") or ()} or {"": shared}


def device_name(facts: Mapping[str, object], default: str = "") -> str:
    """The name of a unit's GPU or CPU."""
    return str(facts.get("gpu" if facts.get("device") == "cuda" else "cpu") or default)
