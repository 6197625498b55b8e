"""Which rows of a results file are shown, and which of several cards are shown together."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from softbench.core.errors import UsageError
from softbench.core.outcome import Grade
from softbench.core.text import few, split_exclusions, unknown
from softbench.results.columns import Row, grouped


def select(
    rows: Sequence[Row],
    backends: Sequence[str] = (),
    *,
    directions: Collection[str] = (),
    dtypes: Collection[str] = (),
    M: Collection[int] = (),
    N: Collection[int] = (),
    ops: Collection[str] = (),
    shapes: Collection[str] = (),
) -> list[Row]:
    """The rows of these backends and operations (names or shell patterns) and values; an empty filter selects all. The yardstick stays.

    A `!` in front of a backend's name or pattern excludes, wherever it stands; exclusions alone select the others.

    `shapes` are texts as in a case's name: `64x32x1000@dim1`, or `4096x1024` for M and N.

    Raises:
        UsageError: a name or pattern matches no backend, or no row is left.
    """
    names = list(dict.fromkeys(row.backend for row in rows))
    given, excluded = split_exclusions(backends)
    named = [] if "all" in given else given
    for pattern in (*named, *excluded):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(f"--backends: {unknown(pattern, names, 'backend')}")
    chosen = {name for name in names if (not named or _matches(name, named)) and not _matches(name, excluded)}
    of_ops = {row.op for row in rows if any(fnmatchcase(row.op, pattern) for pattern in ops)}
    axes: dict[str, Collection[object]] = {"direction": directions, "dtype": dtypes, "M": M, "N": N, "op": of_ops or ops, "shape": shapes}
    filters = {axis: wanted for axis, wanted in axes.items() if wanted}
    for axis, wanted in filters.items():
        there = dict.fromkeys(_value(row, axis) for row in rows)
        if not any(value in wanted for value in there):
            raise UsageError(f"--{axis}: no cell has {few(list(map(str, wanted)))}; the file has {few(list(map(str, there)))}")
    found = [
        row
        for row in rows
        if (row.grade == Grade.YARDSTICK or row.backend in chosen) and all(_value(row, axis) in wanted for axis, wanted in filters.items())
    ]
    if not found:
        flags = [*(["--backends"] if backends else []), *(f"--{axis}" for axis in filters)]
        raise UsageError(f"no cell matches all of {', '.join(flags)}; without them, softbench show FILE --long lists the cells")
    return found


def relative_to(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows with speed-ups over this backend. The ratios of users' calls, which are timed in turns with the run's reference, are empty.

    Raises:
        UsageError: the rows have no such backend.
    """
    if name not in (names := dict.fromkeys(row.backend for row in rows)):
        raise UsageError(f"--relative-to: {unknown(name, [*names], 'backend')}")
    base = {(row.run, row.unit, row.case): row for row in rows if row.backend == name}

    def over(row: Row) -> Row:
        theirs = base.get((row.run, row.unit, row.case))
        speedup = theirs.median_us / row.median_us if theirs and row.timed and theirs.timed and theirs.median_us and row.median_us else None
        found = replace(row, speedup=speedup, relative_to=name if theirs else "")
        return replace(found, no_grad_ratio=None, recorded_ratio=None, training_ratio=None)

    return [row if row.relative_to == name else over(row) for row in rows]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _value(row: Row, axis: str) -> object:
    return row.case.size if axis == "shape" else getattr(row, axis)


def apart(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows in parts that are shown apart, each with the name of its part as `device`.

    Each GPU model is a part: cards of one model share a sweep. If two cards have one cell, each card is a part.
    """
    found: list[list[Row]] = []
    for some in grouped(rows, lambda row: row.device).values():
        if len({row.unit for row in some}) == 1 or len({(row.backend, row.case) for row in some}) == len(some):
            found.append(some)
        else:
            cards = grouped(some, lambda row: row.unit).values()
            found += [[replace(row, device=f"{row.device} {row.unit}".strip()) for row in card] for card in cards]
    return found


def file_of(file: Path, part: Sequence[Row]) -> Path:
    """The file's name with the name of a part: `out-NVIDIA-H200-node7-0-9c1d22e0.png`."""
    return file.with_name(f"{file.stem}-{re.sub('[^A-Za-z0-9._]+', '-', part[0].device).strip('-')}{file.suffix}")
