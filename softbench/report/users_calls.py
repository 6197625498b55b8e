"""The table of `--timer host`: what calls that users make take on the host, with and without autograd."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.table import Table

from softbench.core import text as units
from softbench.report import markup, rich_tables
from softbench.results.columns import OVER_REFERENCE, USERS, Row, grouped

MODES = ("without autograd", "recorded by autograd", "with backward")
"""The calls, in the order of USERS."""
TITLE = "host time of users' calls, median over the cases"
RATIO = ", and its ratio to {} in the same process"


def _texts(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The head and a line for each operation and call; without lines where no such time was measured."""
    timed = [row for row in rows if row.no_grad_us]
    backends = list(dict.fromkeys(row.backend for row in timed))
    lines = []
    for op, some in grouped(timed, lambda row: row.op).items():
        for mode, column, over_reference in zip(MODES, USERS, OVER_REFERENCE, strict=True):
            line = [op, mode]
            for name in backends:
                own = [row for row in some if row.backend == name and getattr(row, column)]
                ratios = [ratio for row in own if (ratio := getattr(row, over_reference))]
                us = units.micros(median(getattr(row, column) for row in own)) if own else ""
                line.append(us + (f" {median(ratios):.2f}x" if ratios else ""))
            lines.append(line)
    return ["operation", "call", *backends], lines


def title(rows: Sequence[Row]) -> str:
    """The line above the table. Files of earlier versions have no ratios."""
    reference = next((row.relative_to for row in rows if any(getattr(row, column) for column in OVER_REFERENCE)), "")
    return TITLE + (RATIO.format(reference) if reference else "")


def table(rows: Sequence[Row]) -> Table | None:
    """The table, or None."""
    head, lines = _texts(rows)
    made = rich_tables.table(head, range(2, len(head)))
    for line in lines:
        made.add_row(*line)
    return made if lines else None


def as_markdown(rows: Sequence[Row]) -> str:
    """The line above and the table as Markdown; empty without such times."""
    head, lines = _texts(rows)
    return f"{title(rows)}\n\n{markup.table(head, lines, set(range(2, len(head))))}" if lines else ""
