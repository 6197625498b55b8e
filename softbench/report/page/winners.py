"""Which backend is fastest in each case, by the rule of the heatmap figures (`softbench.report.heatmap.standing`)."""

from __future__ import annotations

from collections.abc import Sequence

from softbench.core.case import CaseKey
from softbench.report.heatmap import Standing, standing
from softbench.results.rows import Row


def standings(rows: Sequence[Row]) -> dict[CaseKey, Standing]:
    """The standing of each case that has a result, in the order of the rows."""
    cases: dict[CaseKey, list[Row]] = {}
    for row in rows:
        cases.setdefault(row.case, []).append(row)
    return {case: found for case, some in cases.items() if (found := standing(some)).rows}


def names(found: Standing) -> tuple[str, ...]:
    """The backends that may be the fastest, in alphabetical order: one if the intervals part it from all others, or are unknown."""
    return tuple(sorted(row.backend for row in found.tied))


def crossover(a: Standing | None, b: Standing | None) -> bool:
    """True if the fastest backend differs between two cases, and the intervals part it from all others in both."""
    return a is not None and b is not None and a.parted and b.parted and a.rows[0].backend != b.rows[0].backend
