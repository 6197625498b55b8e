"""The run document: the JSON of a run, compressed beside its CSV. It has the header, the units, and each cell with its raw samples.

Each cell has a line of its own, so that `stream` reads a million with one of them in memory. `records.records_of` validates the cells.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NoReturn

from softbench.core.errors import ResultsError
from softbench.core.files import reject_folder
from softbench.core.json import JsonObject
from softbench.core.text import one_line

SUFFIX = ".json.gz"
SUFFIXES = (SUFFIX, ".json")
"""The ends of a document's name. softbench writes the first, and reads a file of either name, compressed or not."""
GZIP = b"\x1f\x8b"  # RFC 1952
LEVEL = 6
"""Level 9 takes twice as long for 1 % less."""
MAX_BYTES = 2**30
"""A larger JSON is not read at once."""
LINE_BYTES = 2**24
"""A longer line is no cell."""
HEAD_BYTES, CELLS = 2**20, b',"cells":['
"""How much of a document is decompressed for its header, and where the header ends: softbench writes the cells last."""


def beside(csv: Path) -> Path:
    """The run document of a CSV: NAME.json.gz in its folder."""
    return csv.with_suffix(SUFFIX)


def csv_of(document: Path) -> Path:
    """The CSV of a run document."""
    return document.with_name(document.name.removesuffix(".gz").removesuffix(".json") + ".csv")


def write_packed(file: IO[bytes], header: JsonObject, cells: Iterable[bytes]) -> None:
    """Write a run document of a header and its cells, of which each is JSON. Equal documents have equal bytes."""
    with gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as out:
        out.write(json.dumps(header, separators=(",", ":"), allow_nan=False).encode()[:-1] + CELLS)
        for number, cell in enumerate(cells):
            out.write((b",\n" if number else b"\n") + cell)
        out.write(b"\n]}\n")


def load(path: Path) -> JsonObject:
    """Read a JSON object, compressed or not.

    Raises:
        ResultsError: the file cannot be read, or is not an object.
    """

    def reject(text: str) -> NoReturn:
        raise ValueError(f"{text} is not a number")

    try:
        reject_folder(path)
        document = json.loads(_content(path).decode("utf-8-sig"), parse_constant=reject)
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ResultsError(f"{path}: is damaged or not JSON: {one_line(str(error), 120)}") from None
    if not isinstance(document, dict):
        raise ResultsError(f"{path}: is not a softbench file: its JSON is not an object")
    return document


def stream(path: Path) -> JsonObject:
    """As `load`. The cells of a file that softbench wrote are read while they are iterated, once.

    Raises:
        ResultsError: as `load`; also while the cells are iterated.
    """
    with suppress(OSError, EOFError, zlib.error, ValueError), _opened(path) as file:
        head = file.readline(HEAD_BYTES)
        if head.endswith(CELLS + b"\n") and isinstance(document := json.loads(head[: -len(CELLS) - 1] + b"}"), dict):
            return {**document, "cells": _cells(path)}
    return load(path)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The content of a file, decompressed."""
    with path.open("rb") as raw:
        compressed = raw.read(len(GZIP)) == GZIP
        raw.seek(0)
        yield io.BufferedReader(gzip.GzipFile(fileobj=raw), 2**16) if compressed else raw


def _cells(path: Path) -> Iterator[JsonObject]:
    import msgspec  # not with --help

    try:
        with _opened(path) as file:
            file.readline()
            while (line := file.readline(LINE_BYTES)) != b"]}\n":
                yield msgspec.json.decode(line.removesuffix(b"\n").removesuffix(b","))
    except OSError as error:
        if not isinstance(error, gzip.BadGzipFile):
            raise ResultsError(f"{path}: {error.strerror}") from None
        raise _damaged(path, error) from None
    except (EOFError, zlib.error) as error:
        raise _damaged(path, error) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ResultsError(f"{path}: is damaged or not JSON: {one_line(str(error), 120)}") from None


def _damaged(path: Path, error: Exception) -> ResultsError:
    return ResultsError(f"{path}: is a damaged gzip file: {one_line(str(error), 120)}; copy it again, or measure again")


def load_header(path: Path) -> JsonObject:
    """A run document without its cells. Only the beginning of a file that softbench wrote is decompressed.

    Raises:
        ResultsError: as `load`.
    """
    with suppress(OSError, EOFError, zlib.error, ValueError), _opened(path) as file:
        head, cells, _ = file.read(HEAD_BYTES).partition(CELLS)
        if cells and isinstance(document := json.loads(head + b"}"), dict):
            return document
    return {key: value for key, value in load(path).items() if key != "cells"}


def _content(path: Path) -> bytes:
    """The file's content, decompressed."""
    if path.stat().st_size > MAX_BYTES:
        raise ResultsError(f"{path}: is too large to be a softbench file")
    content = path.read_bytes()
    if not content.startswith(GZIP):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            content = file.read(MAX_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, error) from None
    if len(content) > MAX_BYTES:
        raise ResultsError(f"{path}: is too large to be a softbench file")
    return content


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
