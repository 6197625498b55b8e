"""The table of two results files, cell by cell (`softbench.results.compare`)."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from softbench.core import text as units
from softbench.report import markup, rich_tables
from softbench.results.compare import FASTER, SAME, SLOWER, YARDSTICK, Pair

PAIR = ("backend", "case", "A, GB/s", "B, GB/s", "B/A", "without drift", "verdict")
"""The columns of `comparison`."""
PAIR_NUMBERS = frozenset({2, 3, 4, 5})
NARROWER = ((), (4,), (2, 3, 4))
"""The columns that a narrow terminal leaves out: first the ratio, then the bandwidths too."""
SEPARATOR = 3  # between the columns of a rich table


def comparison(pairs: Sequence[Pair], width: int) -> RenderableType:
    """One line per cell: both bandwidths, their ratio, what is left of it without the drift of copy, and the verdict.

    A small width leaves out columns.
    """
    lines = list(map(pair_texts, pairs))
    widths = [SEPARATOR + max(map(len, column)) for column in zip(PAIR, *lines, strict=True)]
    left_out = next((one for one in NARROWER if sum(widths) - sum(widths[i] for i in one) - SEPARATOR <= width), NARROWER[-1])
    kept = [i for i in range(len(PAIR)) if i not in left_out]
    table = rich_tables.table([PAIR[i] for i in kept], {kept.index(i) for i in kept if i in PAIR_NUMBERS})
    for pair, line in zip(pairs, lines, strict=True):
        style = {FASTER: "green", SLOWER: "red"}.get(pair.verdict, "dim" if pair.verdict in (SAME, YARDSTICK) else "yellow")
        table.add_row(*(line[i] for i in kept[:-1]), Text(line[-1], style=style))
    return table


def pair_texts(pair: Pair) -> tuple[str, ...]:
    """The texts of PAIR."""
    bandwidths = (units.three_digits(gbps) if gbps else "" for gbps in (pair.a_gbps, pair.b_gbps))
    ratio, change = units.ratio(pair.ratio, 3) if pair.ratio else "", ""
    if pair.change and pair.verdict != YARDSTICK:
        value, low, high = (units.ratio(one, 3) for one in (pair.change.value, pair.change.low, pair.change.high))
        change = f"{value} ({low} to {high})"
    return (pair.backend, f"{pair.case} {pair.unit}".strip(), *bandwidths, ratio, change, pair.verdict)


def comparison_markdown(pairs: Sequence[Pair]) -> str:
    """The table of `comparison` as Markdown."""
    return markup.table(PAIR, list(map(pair_texts, pairs)), PAIR_NUMBERS)
