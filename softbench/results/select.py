"""Selects rows of a results file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from softbench.core.errors import UsageError
from softbench.core.outcome import Grade
from softbench.core.text import unknown
from softbench.results.rows import Row


def select(
    rows: Sequence[Row],
    backends: Sequence[str] = (),
    *,
    directions: Collection[str] = (),
    dtypes: Collection[str] = (),
    M: Collection[int] = (),
    N: Collection[int] = (),
) -> list[Row]:
    """The rows of these backends (names or shell patterns) and values; an empty filter selects all. The yardstick stays.

    Raises:
        UsageError: a name or pattern matches no backend, or no row is left.
    """
    names = list(dict.fromkeys(row.backend for row in rows))
    for pattern in backends:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(f"--backends: {unknown(pattern, names, 'backend')}")
    found = [
        row
        for row in rows
        if (not backends or row.grade == Grade.YARDSTICK or any(fnmatchcase(row.backend, pattern) for pattern in backends))
        and all(not wanted or value in wanted for wanted, value in _values(row, directions, dtypes, M, N))
    ]
    if not found:
        raise UsageError("no cell matches all of --backends, --direction, --dtype, --M and --N")
    return found


def _values(
    row: Row, directions: Collection[str], dtypes: Collection[str], M: Collection[int], N: Collection[int]
) -> Sequence[tuple[Collection[object], object]]:
    return (directions, row.direction), (dtypes, row.dtype), (M, row.M), (N, row.N)
