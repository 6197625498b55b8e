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


def comparison(pairs: Sequence[Pair]) -> RenderableType:
    """One line per cell: both bandwidths, their ratio, what is left of it without the drift of copy, and the verdict."""
    table = rich_tables.table(PAIR, PAIR_NUMBERS)
    for pair, line in zip(pairs, map(pair_texts, pairs), strict=True):
        style = {FASTER: "green", SLOWER: "red"}.get(pair.verdict, "dim" if pair.verdict in (SAME, YARDSTICK) else "yellow")
        table.add_row(*line[:-1], Text(line[-1], style=style))
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
