"""The heat maps of a page as tables: the fastest backend of each M and N, and its lead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from softbench.core import text as units
from softbench.core.case import CaseKey
from softbench.report.figure_data import groups
from softbench.report.standings import Standing, crossover, names, standings
from softbench.results.rows import Row


class Place(NamedTuple):
    """A cell of a heat map: the extent that goes down, and the one that goes across."""

    down: int
    across: int


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A case of a heat map."""

    number: int | None
    """The index of the fastest cell in the page's data; None if no backend has a result."""
    text: str
    title: str
    backend: str
    """The fastest backend."""
    edges: str
    """`left`, `top` or both, separated by a blank: where the fastest backend changes to this case."""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """One pass and dtype: M by N, or the shapes of N-D cases below each other."""

    title: str
    corner: str
    """What goes down and across."""
    columns: tuple[str, ...]
    lines: tuple[tuple[str, tuple[HeatCell | None, ...]], ...]
    """Each line with its name. None where the case was not measured."""


def heat_maps(rows: Sequence[Row], start: int = 0) -> list[HeatMap]:
    """A map for each pass and dtype with a result. `start` is the index of the first row in the page's data."""
    index = {(row.backend, row.case): start + i for i, row in enumerate(rows)}
    made = []
    for group in groups(rows):
        kept = group.of(rows)
        found = standings(kept)
        cases = list(dict.fromkeys(row.case for row in kept))
        title = f"{kept[0].of_pass} {group.dtype}"
        made.append(_shapes(title, cases, found, index) if group.shaped else _grid(title, cases, found, index))
    return made


def _grid(title: str, cases: Sequence[CaseKey], found: Mapping[CaseKey, Standing], index: Mapping[tuple[str, CaseKey], int]) -> HeatMap:
    """M by N. The axis with more values goes down."""
    n_down = len({case.N for case in cases}) > len({case.M for case in cases})
    by_place = {Place(case.N, case.M) if n_down else Place(case.M, case.N): case for case in cases}
    downs, acrosses = (sorted({place[i] for place in by_place}) for i in (0, 1))
    above: dict[int, Standing] = {}
    lines = []
    for down in downs:
        line: list[HeatCell | None] = []
        left: Standing | None = None
        for across in acrosses:
            case = by_place.get(Place(down, across))
            standing = found.get(case) if case else None
            edges = [name for name, other in (("left", left), ("top", above.get(across))) if crossover(other, standing)]
            line.append(_cell(case, standing, index, edges) if case else None)
            if standing:
                left = above[across] = standing
        lines.append((str(down), tuple(line)))
    return HeatMap(title, "N \\ M" if n_down else "M \\ N", tuple(map(str, acrosses)), tuple(lines))


def _shapes(title: str, cases: Sequence[CaseKey], found: Mapping[CaseKey, Standing], index: Mapping[tuple[str, CaseKey], int]) -> HeatMap:
    return HeatMap(title, "shape", ("fastest",), tuple((case.shape, (_cell(case, found.get(case), index, ()),)) for case in cases))


def _cell(case: CaseKey, found: Standing | None, index: Mapping[tuple[str, CaseKey], int], edges: Sequence[str]) -> HeatCell:
    if found is None:
        return HeatCell(None, "none", f"{case}: no backend has a result", "", "")
    best = found.rows[0]
    tied = " or ".join(names(found)) if len(found.tied) <= 2 else f"{best.backend} or {len(found.tied) - 1} others"
    lead = f"+{units.percent(found.lead)}" if found.lead is not None and len(found.tied) == 1 else ""
    lead = f" ({lead})" if found.unknown else f" {lead}" if lead else ""
    doubt = " !" if any(row.doubtful for row in found.rows[:2]) else ""
    title = f"{case}: {tied}, {units.micros(best.median_us or 0)}"
    return HeatCell(index[best.backend, case], f"{tied}{lead}{doubt}", title, best.backend, " ".join(edges))
