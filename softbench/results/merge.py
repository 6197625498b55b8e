"""Merges runs into one: shards of a sweep, or the same sweep on several cards. Every raw sample stays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from softbench.core.case import MAX_CELLS, Case
from softbench.core.errors import ResultsError
from softbench.core.json import JsonObject
from softbench.core.text import count, few, one_line
from softbench.results.document import common, device_name, environments, units_of

UNLIKE = ("timeout", "memory_share")
"""Settings that change no measurement, so they may differ."""


class CellLine(NamedTuple):
    """A cell of a run document. A million of them take 2 GB, where their records take 6."""

    backend: str
    case: Case
    unit: str
    line: bytes = b""
    """The cell as JSON."""


@dataclass(frozen=True, slots=True)
class Part:
    """One run that is merged."""

    name: str
    """Its file, for messages."""
    header: JsonObject
    """Its run document without the cells."""
    cells: Sequence[CellLine]

    @property
    def about(self) -> str:
        """What it brings, as a sentence."""
        cells, cases = count(len(self.cells), "cell"), count(len({record.case for record in self.cells}), "case")
        where = few([f"{device_name(facts)} {unit}".strip() for unit, facts in units_of(self.header).items()])
        cut = ", of an interrupted run" if self.header.get("interrupted") else ""
        return f"{self.name}: {cells} of {cases}, measured by {where}{cut}"


def merged(parts: Sequence[Part]) -> tuple[JsonObject, list[CellLine]]:
    """The header and the cells of all parts together. The run document then has the entry `merged`: what was merged.

    Raises:
        ResultsError: two parts have a cell of one card, or differ in settings, in the reference backend or in the source of a backend;
            or all have too many cells.
    """
    if (cells := sum(len(part.cells) for part in parts)) > MAX_CELLS:
        raise ResultsError(f"the files have {cells} cells together, and a results file has at most {MAX_CELLS}: merge fewer files")
    _reject_unlike(parts)
    _reject_twice(parts)
    facts: dict[str, JsonObject] = {}
    for part in parts:
        facts |= units_of(part.header)
    first, sources = parts[0].header, [one for part in parts for one in _sources(part)]
    header: JsonObject = {
        **{key: value for key, value in first.items() if key not in ("shard", "units")},
        "run": "+".join(_runs(parts))[:200],
        "command": without_shard(str(first.get("command", ""))),
        "device_name": " and ".join(dict.fromkeys(device_name(one) for one in facts.values())),
        **{key: _first(part.header.get(key) for part in parts) for key in ("origins", "sources", "commits") if key in first},
        "backends": list(dict.fromkeys(name for part in parts for name in part.header["backends"])),
        **environments(facts),
        **({"fingerprint": common([dict(one.get("fingerprint") or {}) for one in sources])} if "fingerprint" in first else {}),
        **{key: pick(times) for key, pick in (("started", min), ("finished", max)) if (times := _texts(parts, key))},
        **({"seconds": _sums(part.header.get("seconds") or {} for part in parts)} if "seconds" in first else {}),
        **({"interrupted": True} if any(part.header.get("interrupted") for part in parts) else {}),
        "merged": sources,
    }
    return header, _in_order([record for part in parts for record in part.cells], header)


def notes(parts: Sequence[Part]) -> list[str]:
    """What each part brings, which shards are missing, and how the parts differ."""
    found = [part.about for part in parts]
    shards = [str(one["shard"]).split("/") for part in parts for one in _sources(part) if one.get("shard")]
    for total in dict.fromkeys(total for _, total in shards):
        there = {number for number, of in shards if of == total}
        missing = [f"{number}/{total}" for number in range(1, int(total) + 1) if str(number) not in there]
        found += [f"without shard {few(missing)}"] if missing else []
    for key in ("softbench", "torch", "triton", "cuda", "driver", "python"):
        values = dict.fromkeys(str(facts.get(key, part.header.get(key))) for part in parts for facts in units_of(part.header).values())
        found += [f"{key} differs: {few(list(values))}"] if len(values) > 1 else []
    return found


def without_shard(command: str) -> str:
    """A command line without `--shard`, which then measures the whole sweep."""
    words = command.split(" ")
    return " ".join(
        word
        for i, word in enumerate(words)
        if word != "--shard" and not word.startswith("--shard=") and (i == 0 or words[i - 1] != "--shard")
    )


def _reject_unlike(parts: Sequence[Part]) -> None:
    first = parts[0]
    for part in parts[1:]:
        for key in ("schema", "yardstick", "relative_to"):
            _reject(first, part, key, first.header.get(key), part.header.get(key))
        settings = [dict(one.header.get("settings") or {}) for one in (first, part)]
        for key in {**settings[0], **settings[1]}:
            if key not in UNLIKE:
                _reject(first, part, key, settings[0].get(key), settings[1].get(key))
    sources: dict[str, tuple[Part, object]] = {}
    for part in parts:
        for name, source in dict(part.header.get("sources") or {}).items():
            other, known = sources.setdefault(name, (part, source))
            _reject(other, part, f"the source of {name}", known, source)


def _reject(first: Part, second: Part, what: str, a: object, b: object) -> None:
    if a != b:
        raise ResultsError(
            f"{first.name} and {second.name} cannot be merged: {what} is {one_line(str(a), 60)} and {one_line(str(b), 60)}; "
            "measure both alike, or show them apart with softbench compare"
        )


def _reject_twice(parts: Sequence[Part]) -> None:
    seen: dict[tuple[str, str, Case], Part] = {}
    for part in parts:
        for record in part.cells:
            key = (record.unit.rpartition("/")[2], record.backend, record.case)
            if key in seen:
                where = f"of unit {record.unit}" if record.unit else "without a unit"
                raise ResultsError(
                    f"{seen[key].name} and {part.name} cannot be merged: both have {record.backend} {record.case.key} {where}; "
                    "a card measures a cell once, so leave one file out"
                )
            seen[key] = part


def _runs(parts: Sequence[Part]) -> list[str]:
    return list(dict.fromkeys(str(part.header["run"]) for part in parts))


def _sources(part: Part) -> list[JsonObject]:
    """What a part was made of, for the entry `merged`."""
    if known := part.header.get("merged"):
        return list(known)
    about = {
        key: part.header.get(key) for key in ("run", "command", "shard", "softbench", "git_commit", "fingerprint") if part.header.get(key)
    }
    return [{**about, "cells": len(part.cells), "units": list(units_of(part.header))}]


def _first(tables: Iterable[Any]) -> JsonObject:
    """The entries of all tables; the first that has a key decides."""
    found: JsonObject = {}
    for table in tables:
        found = {**dict(table or {}), **found}
    return found


def _texts(parts: Sequence[Part], key: str) -> list[str]:
    return [str(part.header[key]) for part in parts if part.header.get(key)]


def _sums(tables: Iterable[JsonObject]) -> JsonObject:
    """The sum of each key; of `wall` the largest, as shards run at once."""
    found: dict[str, float] = {}
    for table in tables:
        for key, seconds in table.items():
            found[key] = max(found.get(key, 0), seconds) if key == "wall" else round(found.get(key, 0) + seconds, 3)
    return found


def _in_order(records: Sequence[CellLine], header: JsonObject) -> list[CellLine]:
    """The cells by operation, direction, dtype and extents, then by unit and backend."""
    kinds = dict.fromkeys((record.case.op, record.case.direction, record.case.dtype) for record in records)
    groups = {kind: i for i, kind in enumerate(kinds)}
    units = {one["unit"]: i for i, one in enumerate(header["units"])}
    backends = {name: i for i, name in enumerate(header["backends"])}

    def place(record: CellLine) -> tuple[object, ...]:
        case = record.case
        return (groups[case.op, case.direction, case.dtype], case.shape, case.M, case.N, units[record.unit], backends[record.backend])

    return sorted(records, key=place)
