"""The trend of a page: how fast backends were in many runs of one machine, in order of time, with the change points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from softbench.core.case import CaseKey
from softbench.core.errors import ResultsError
from softbench.core.json import JsonObject
from softbench.core.outcome import Grade
from softbench.core.text import one_line
from softbench.gate.inference import holm, moderate, t_upper
from softbench.gate.sittings import ASSUMED_SD
from softbench.gate.unpaired import MARGIN
from softbench.gate.verdicts import Rules
from softbench.report.page.source import Source
from softbench.results.columns import Row

MIN_CELLS = 3  # of a change point

CellGroup = tuple[str, str, str]
"""A backend, an operation with its direction, and a dtype."""
Runs = Sequence[tuple[str, Sequence[Row]]]
"""The runs of one machine with their labels, such as commits, in order of time."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change point: one cell group differs between two runs that follow each other."""

    group: CellGroup
    run: int
    """The later run, from 0."""
    ratio: float
    """Its mean fraction of copy over that of the run before; above 1 is faster."""
    p: float
    """Of H0: the change is within the gate's margin; with Holm's correction over all groups and runs."""


def logs(runs: Runs) -> dict[CellGroup, list[dict[CaseKey, float]]]:
    """Each group's log fractions of copy, a dict for each run. A group has the same cells in each run that has it.

    Doubtful cells are left out where the group has others. A fraction of copy is less the change of the machine, as the gate's values are.

    Raises:
        ResultsError: fewer than two runs, runs of several devices, or no cell has a fraction of copy.
    """
    devices = list(dict.fromkeys(row.device for _, rows in runs for row in rows))
    if len(runs) < 2:
        raise ResultsError("a trend needs two runs")
    if len(devices) > 1:
        raise ResultsError(f"a trend is of one machine, and the runs are of {', '.join(devices)}")
    found: dict[CellGroup, list[dict[CaseKey, Row]]] = {}
    for number, (_, rows) in enumerate(runs):
        for row in rows:
            if row.of_copy and row.grade != Grade.YARDSTICK:
                cells = found.setdefault((row.backend, row.of_pass, row.dtype), [{} for _ in runs])
                cells[number][row.case] = row
    values = {}
    for group, cells in found.items():
        common = set.intersection(*(set(some) for some in cells if some))
        steady = {case for case in common if not any(some[case].doubtful for some in cells if some)}
        if kept := steady or common:
            values[group] = [{case: math.log(row.of_copy or 1) for case, row in some.items() if case in kept} for some in cells]
    if not values:
        raise ResultsError("no cell has a fraction of copy")
    return values


def changes(
    values: dict[CellGroup, list[dict[CaseKey, float]]], margin: float = MARGIN, alpha: float = Rules(MARGIN).alpha
) -> list[Change]:
    """The change points: runs in which a group's mean differs by more than the margin from the run before that has it.

    It is the test of the gate's unpaired comparison (`softbench.gate.unpaired`), with cells in place of processes: a t test on log ratios.
    Spreads are moderated over all groups (Smyth 2004), and one between sittings is assumed. Holm's correction is over groups and runs.
    The test finds a change of many cells of a group. `softbench gate` judges single cells.
    """
    steps = []
    for group, by_run in values.items():
        measured = [number for number, cells in enumerate(by_run) if cells]
        for before, after in pairwise(measured):
            ratios = [by_run[after][case] - value for case, value in by_run[before].items()]
            if len(ratios) >= MIN_CELLS:
                steps.append((group, after, ratios))
    spreads = moderate([[ratios] for _, _, ratios in steps]) if steps else []
    tested = []
    for (_, _, ratios), spread in zip(steps, spreads, strict=True):
        error = math.hypot(spread.process_sd / math.sqrt(len(ratios)), ASSUMED_SD * math.sqrt(2))
        tested.append(t_upper((abs(fmean(ratios)) - math.log1p(margin)) / error, spread.df))
    adjusted = zip(steps, holm(tested), strict=True)
    return [Change(group, run, math.exp(fmean(ratios)), p) for (group, run, ratios), p in adjusted if p <= alpha]


@dataclass(frozen=True, slots=True)
class Trend:
    """The runs of one machine, oldest first."""

    panels: tuple[JsonObject, ...]
    """A pass and dtype each: its title, the mean of each backend in each run, or None where the run lacks it, and its change points."""
    changes: tuple[tuple[str, ...], ...]
    """The texts of the change points: backend, pass and dtype, the run before, the run, the change of the fraction of copy, and p."""
    runs: tuple[tuple[str, str, str], ...]
    """Label, start and file of each run."""
    note: str
    """What is left out, or why there is no trend; empty if nothing is."""


def make(sources: Sequence[Source]) -> Trend:
    """The trend of the runs on the machine of the last one, which are in order of time."""
    kept = [source for source in sources if source.device == sources[-1].device]
    labels = _labels(kept)
    left = len(sources) - len(kept)
    note = f"Of {len(sources)} files, {left} are of another device and left out." if left else ""
    about = tuple((label, source.started, source.name) for label, source in zip(labels, kept, strict=True))
    try:
        values = logs([(label, source.rows) for label, source in zip(labels, kept, strict=True)])
    except ResultsError as error:
        return Trend((), (), about, f"{note} There is no trend: {one_line(str(error))}.".strip())
    found = changes(values)
    return Trend(panels(values, found), tuple(_texts(change, labels) for change in found), about, note)


def panels(values: Mapping[CellGroup, Sequence[Mapping[CaseKey, float]]], found: Sequence[Change]) -> tuple[JsonObject, ...]:
    """What the figures show, one for each pass and dtype: the geometric mean of each backend's fraction of copy in each run."""
    return tuple(
        {
            "title": " ".join(of_pass),
            "means": {
                backend: [math.exp(fmean(cells.values())) if cells else None for cells in by_run]
                for (backend, *group), by_run in values.items()
                if tuple(group) == of_pass
            },
            "changes": [[change.group[0], change.run, f"{change.ratio - 1:+.0%}"] for change in found if change.group[1:] == of_pass],
        }
        for of_pass in dict.fromkeys(group[1:] for group in values)
    )


def _labels(sources: Sequence[Source]) -> list[str]:
    """The commits if each run has its own, else the names of the runs, else of the files."""
    ways = ([source.commit[:9] for source in sources], [source.run for source in sources], [source.name for source in sources])
    return next((way for way in ways if len(set(way)) == len(sources)), ways[-1])


def _texts(change: Change, labels: Sequence[str]) -> tuple[str, ...]:
    backend, *of_pass = change.group
    return backend, " ".join(of_pass), labels[change.run - 1], labels[change.run], f"{change.ratio - 1:+.1%}", f"{change.p:.2g}"
