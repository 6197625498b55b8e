"""The trend of a page: the mean fraction of copy of each backend in many runs of one machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from softbench.core.errors import ResultsError
from softbench.core.text import one_line
from softbench.report import style
from softbench.report.page import svg
from softbench.report.page.comparison import Line
from softbench.report.page.source import Source
from softbench.report.page.svg import Entry

if TYPE_CHECKING:
    from softbench.report.trend import Change

HEAD = (("backend", False), ("pass and dtype", False), ("from", False), ("to", False), ("fraction of copy", True), ("p", True))


@dataclass(frozen=True, slots=True)
class Trend:
    """The runs of one machine, oldest first."""

    svg: str
    legend: tuple[Entry, ...]
    changes: tuple[Line, ...]
    """The change points."""
    means: tuple[tuple[str, ...], ...]
    """What the figure shows: a backend, pass and dtype, and its mean in each run; empty where a run lacks it."""
    runs: tuple[tuple[str, str, str], ...]
    """Label, start and file of each run."""
    note: str
    """What is left out, or why there is no trend; empty if nothing is."""


def make(sources: Sequence[Source]) -> Trend:
    """The trend of the runs on the machine of the last one, which are in order of time."""
    from softbench.report import trend

    kept = [source for source in sources if source.device == sources[-1].device]
    labels = _labels(kept)
    left = len(sources) - len(kept)
    note = f"Of {len(sources)} files, {left} are of another device and left out." if left else ""
    about = tuple((label, source.started, source.name) for label, source in zip(labels, kept, strict=True))
    runs = [(label, source.rows) for label, source in zip(labels, kept, strict=True)]
    try:
        drawing = trend.figure(runs)
    except ResultsError as error:
        return Trend("", (), (), (), about, f"{note} There is no trend: {one_line(str(error))}.".strip())
    rows = [row for source in kept for row in source.rows]
    values = trend.logs(runs)
    changes = trend.changes(values)
    lines = [Line(_texts(change, labels), "good" if change.ratio > 1 else "bad") for change in changes]
    entries = svg.legend(drawing, rows, style.styles(rows))
    means = [
        (backend, " ".join(of_pass), *(f"{math.exp(fmean(cells.values())):.3f}" if cells else "" for cells in by_run))
        for (backend, *of_pass), by_run in values.items()
    ]
    return Trend(svg.picture(drawing.figure, "trend-", {}), entries, tuple(lines), tuple(means), about, note)


def _labels(sources: Sequence[Source]) -> list[str]:
    """The commits if each run has its own, else the names of the runs, else of the files."""
    ways = ([source.commit[:9] for source in sources], [source.run for source in sources], [source.name for source in sources])
    return next((way for way in ways if len(set(way)) == len(sources)), ways[-1])


def _texts(change: Change, labels: Sequence[str]) -> tuple[str, ...]:
    backend, *of_pass = change.group
    return backend, " ".join(of_pass), labels[change.run - 1], labels[change.run], f"{change.ratio - 1:+.1%}", f"{change.p:.2g}"
