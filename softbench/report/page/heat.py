"""The heat maps of a page: who is fastest over M and N."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softbench.core import text as units
from softbench.core.case import CaseKey
from softbench.core.outcome import Status
from softbench.report.page.winners import Winner, crossover, winners
from softbench.results.rows import Row


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A case of a heat map."""

    number: int | None
    """The index of the fastest cell in the page's data; None if no backend has a result."""
    text: str
    title: str
    backend: str
    crossover: bool
    """True if the fastest backend changes between this case and the one left of it, and the intervals part them."""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Who is fastest over M and N: a table of one pass and dtype."""

    title: str
    corner: str
    """What the lines and columns are."""
    columns: tuple[str, ...]
    lines: tuple[tuple[str, tuple[HeatCell | None, ...]], ...]


def heat_maps(rows: Sequence[Row], start: int = 0) -> list[HeatMap]:
    """A table per pass and dtype: M down, N across. N-D shapes have a table of one column. `start` is the index of the first row."""
    found, index = winners(rows), {(row.backend, row.case): start + i for i, row in enumerate(rows)}
    groups: dict[tuple[str, str, bool], dict[CaseKey, None]] = {}
    for row in rows:
        if row.status != Status.UNAVAILABLE:
            groups.setdefault((row.of_pass, row.dtype, bool(row.shape)), {})[row.case] = None
    return [
        _shapes(f"{of_pass} {dtype}", cases, found, index) if shaped else _grid(f"{of_pass} {dtype}", cases, found, index)
        for (of_pass, dtype, shaped), cases in groups.items()
    ]


Index = dict[tuple[str, CaseKey], int]


def _grid(title: str, cases: dict[CaseKey, None], found: dict[CaseKey, Winner], index: Index) -> HeatMap:
    by_place = {(case.M, case.N): case for case in cases}
    columns = sorted({N for _, N in by_place})
    rows = []
    for M in sorted({M for M, _ in by_place}):
        line: list[HeatCell | None] = []
        before: Winner | None = None
        for N in columns:
            case = by_place.get((M, N))
            line.append(_heat_cell(case, found, index, before) if case else None)
            before = found.get(case, before) if case else before
        rows.append((str(M), tuple(line)))
    return HeatMap(title, "M \\ N", tuple(map(str, columns)), tuple(rows))


def _shapes(title: str, cases: dict[CaseKey, None], found: dict[CaseKey, Winner], index: Index) -> HeatMap:
    return HeatMap(title, "shape", ("fastest",), tuple((case.shape, (_heat_cell(case, found, index, None),)) for case in cases))


def _heat_cell(case: CaseKey, found: dict[CaseKey, Winner], index: Index, before: Winner | None) -> HeatCell:
    winner = found.get(case)
    if winner is None:
        return HeatCell(None, "none", f"{case}: no backend has a result", "", crossover=False)
    best, others = winner.best, ", ".join(row.backend for row in winner.rivals)
    title = f"{case}: {best.backend}, {units.micros(best.median_us or 0)}"
    title += f"; not parted from {others}" if others else "; its interval is parted from all others"
    changed = before is not None and crossover(before, winner)
    return HeatCell(
        index[best.backend, case], best.backend if winner.clear else f"{best.backend} ~", title, best.backend, crossover=changed
    )
