"""A table of a page. `table.html` renders it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Line(NamedTuple):
    """A row of a table."""

    texts: tuple[str, ...]
    kind: str = ""
    """`good`, `bad`, `warn`, `plain` or empty: how it is shown."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose columns are sorted by a click on their names."""

    head: tuple[tuple[str, bool], ...]
    """The name of each column, and whether it is right-aligned."""
    lines: tuple[Line, ...]
