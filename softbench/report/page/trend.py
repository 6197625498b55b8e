"""The trend of a page: how fast backends were in many runs of one machine, in order of time, with the change points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from softbench.core.case import CaseKey
from softbench.core.errors import ResultsError
from softbench.core.outcome import Grade
from softbench.core.text import one_line
from softbench.gate.inference import holm, moderate, t_upper
from softbench.gate.unpaired import MARGIN, SITTING_SD
from softbench.gate.verdicts import Rules
from softbench.report import axes, style
from softbench.report.page import figures
from softbench.report.page.figures import Entry
from softbench.report.page.source import Source
from softbench.report.page.table import Line, Table
from softbench.report.style import INK, OTHER, PAPER, Drawing
from softbench.results.rows import Row

MIN_CELLS = 3  # of a change point
RUN_INCHES, PANEL_INCHES = 0.45, 2.2
CHANGE_HEAD = (("backend", False), ("pass and dtype", False), ("from", False), ("to", False), ("fraction of copy", True), ("p", True))

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
        error = math.hypot(spread.process_sd / math.sqrt(len(ratios)), SITTING_SD * math.sqrt(2))
        tested.append(t_upper((abs(fmean(ratios)) - math.log1p(margin)) / error, spread.df))
    adjusted = zip(steps, holm(tested), strict=True)
    return [Change(group, run, math.exp(fmean(ratios)), p) for (group, run, ratios), p in adjusted if p <= alpha]


@style.look()
def figure(runs: Runs, values: Mapping[CellGroup, Sequence[Mapping[CaseKey, float]]], found: Sequence[Change]) -> Drawing:
    """A panel for each operation, direction and dtype, and a line for each backend: its geometric mean fraction of copy in each run.

    `values` are the `logs` of the runs, and `found` their `changes`.
    """
    rows = [row for _, run in runs for row in run]
    passes = list(dict.fromkeys(group[1:] for group in values))
    styles, numbers = style.styles(rows), style.numbers(rows)
    size = (max(3.5, 1 + RUN_INCHES * len(runs)), 0.6 + PANEL_INCHES * len(passes))
    made, lines = style.subplots(len(passes), 1, size, sharex=True, gridspec_kw={"hspace": 0.25})
    for place, ((panel,), of_pass) in enumerate(zip(lines, passes, strict=True)):
        means = {
            group[0]: {number: math.exp(fmean(cells.values())) for number, cells in enumerate(by_run) if cells}
            for group, by_run in values.items()
            if group[1:] == of_pass
        }
        axes.amounts(panel, [mean for by_run in means.values() for mean in by_run.values()], least=1.08)
        panel.set_xlim(-0.3, len(runs) - 0.7)
        panel.axhline(1, color=INK, linewidth=1)
        ends = []
        for name, by_run in means.items():
            own, gid = styles.get(name, OTHER), f"series-{numbers[name]}-p{place}"
            panel.plot(list(by_run), list(by_run.values()), color=own.colour, linestyle=own.dash, linewidth=1.3, gid=f"{gid}-line-0")
            for number, mean in by_run.items():
                panel.plot(number, mean, marker=own.marker, color=own.colour, markersize=4.5, gid=f"{gid}-point-{number}")
            if own.named:
                ends.append(axes.End(style.label(name, ()), *list(by_run.items())[-1], own, f"series-{numbers[name]}"))
        for number, change in enumerate(found):
            if change.group[1:] == of_pass:
                at, up = (change.run, means[change.group[0]][change.run]), 12 if change.ratio > 1 else -12
                arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 0.8}
                mark = panel.annotate(f"{change.ratio - 1:+.0%}", at, (0, up), textcoords="offset points", arrowprops=arrow)
                mark.set(
                    bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
                    fontsize=7,
                    ha="center",
                    va="bottom" if up > 0 else "top",
                    gid=f"change-{number}",
                )
        axes.beside(panel, ends)
        panel.set_title(f"{' '.join(of_pass)}, {rows[0].device}")
        panel.set_ylabel("fraction of the yardstick", fontsize=8)
    lines[-1][0].set_xticks(range(len(runs)), [label for label, _ in runs], rotation=35, ha="right", fontsize=7.5)
    text = f"Geometric mean over the cells of all runs.\nArrow: changed by more than {MARGIN:.0%} from the run before."
    lines[-1][0].set_xlabel(text, fontsize=7.5)
    return Drawing("trend", made, {numbers[name]: style.label(name, ()) for name, *_ in values})


@dataclass(frozen=True, slots=True)
class Trend:
    """The runs of one machine, oldest first."""

    svg: str
    legend: tuple[Entry, ...]
    changes: Table
    """The change points."""
    means: Table
    """What the figure shows: a backend, pass and dtype, and its mean in each run; empty where a run lacks it."""
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
    runs = [(label, source.rows) for label, source in zip(labels, kept, strict=True)]
    try:
        values = logs(runs)
    except ResultsError as error:
        note = f"{note} There is no trend: {one_line(str(error))}.".strip()
        return Trend("", (), Table(CHANGE_HEAD, ()), Table((), ()), about, note)
    rows = [row for source in kept for row in source.rows]
    found = changes(values)
    lines = [Line(_texts(change, labels), "good" if change.ratio > 1 else "bad") for change in found]
    drawing = figure(runs, values, found)
    means = [
        Line((backend, " ".join(of_pass), *(f"{math.exp(fmean(cells.values())):.3f}" if cells else "" for cells in by_run)))
        for (backend, *of_pass), by_run in values.items()
    ]
    head = (("backend", False), ("pass and dtype", False), *((label, True) for label in labels))
    return Trend(
        svg=figures.picture(drawing.figure, "trend-", {}),
        legend=figures.legend(drawing, rows, style.styles(rows)),
        changes=Table(CHANGE_HEAD, tuple(lines)),
        means=Table(head, tuple(means)),
        runs=about,
        note=note,
    )


def _labels(sources: Sequence[Source]) -> list[str]:
    """The commits if each run has its own, else the names of the runs, else of the files."""
    ways = ([source.commit[:9] for source in sources], [source.run for source in sources], [source.name for source in sources])
    return next((way for way in ways if len(set(way)) == len(sources)), ways[-1])


def _texts(change: Change, labels: Sequence[str]) -> tuple[str, ...]:
    backend, *of_pass = change.group
    return backend, " ".join(of_pass), labels[change.run - 1], labels[change.run], f"{change.ratio - 1:+.1%}", f"{change.p:.2g}"
