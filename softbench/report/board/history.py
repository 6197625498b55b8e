"""One target over commits: a static page with a chart for each case, and the commits that changed its time.

A target is a backend, an operation, or the file or function that backends come from. The two sides of a gate's run are two commits of one
target, which their run compares without the drift of the machine. Other commits are compared by what `copy` shows of the drift.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from heapq import heappop, heappush
from itertools import combinations, pairwise, permutations
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from softbench import __version__
from softbench.core.case import CaseKey, parse_op
from softbench.core.errors import ResultsError, SoftbenchError
from softbench.core.json import JsonObject
from softbench.core.outcome import Grade
from softbench.core.statistics import Ratio, over, ratio
from softbench.core.text import LISTED, few, micros, one_line
from softbench.gate import paired, run_files
from softbench.gate.commits import SHORT, Commit, in_order
from softbench.gate.verdicts import Rules
from softbench.report.assets.embedded import asset, source_hash
from softbench.results.columns import Row
from softbench.results.csv import read_csv
from softbench.results.document import beside, load_header
from softbench.results.runs import FoundRun, find

WIDTH, HEIGHT, LEFT, EDGE = 460, 150, 70, 14
"""Of a chart, its margin for the scale, and its other margins, pixels."""


class Point(NamedTuple):
    """A median of a commit."""

    run: FoundRun
    row: Row
    copy: Row | None
    """That of copy in the same run."""
    paired: Mapping[str, Ratio] = MappingProxyType({})
    """Its time over that of other backends in the same process pairs, as the gate compares them."""

    @property
    def ends(self) -> tuple[float, float]:
        us = self.row.median_us or 0.0
        return self.row.ends or (us, us)


class Change(NamedTuple):
    """A commit that is slower or faster than the one before in a case."""

    commit: str
    before: str
    case: str
    ratio: Ratio
    """Of times: above 1 is slower."""

    @property
    def text(self) -> str:
        way = "slower" if self.ratio.value > 1 else "faster"
        return f"{way} than {self.before}: {self.case} {self.ratio.value:.3f} [{self.ratio.low:.3f}, {self.ratio.high:.3f}]"


@dataclass(slots=True)
class History:
    """The points of a target, by case and commit."""

    target: str
    threshold: float
    """A smaller change is none, as a fraction."""
    cases: dict[str, dict[str, list[Point]]] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    """The oldest first: in the order of git, or of the first measurement if a commit is not in the repository."""

    def changes(self) -> Iterator[Change]:
        """What changed beyond noise and threshold between neighbouring commits of a case."""
        for case, points in self.cases.items():
            for before, after in pairwise(one.name for one in self.commits if one.name in points):
                found = compared(points, before, after)
                if found and found.parted and max(found.value, 1 / found.value) > 1 + self.threshold:
                    yield Change(after, before, case, found)


UNIT = Ratio(1.0, 1.0, 1.0)


def relative(points: Mapping[str, Sequence[Point]], start: str) -> dict[str, Ratio]:
    """The time of each commit over that of one, through runs that measured two commits side by side; others are left out.

    Of several ways through the runs it is the one with the narrowest interval.
    """
    by_run: dict[str, list[tuple[str, Point]]] = {}
    for commit, some in points.items():
        for point in some:
            by_run.setdefault(point.run.run, []).append((commit, point))
    sides: dict[str, list[tuple[str, Ratio]]] = {}
    for (mine, old), (other, new) in (both for some in by_run.values() for both in permutations(some, 2)):
        if mine != other and (found := times(old, new)):
            sides.setdefault(mine, []).append((other, found))
    known: dict[str, Ratio] = {}
    ways = [(0.0, start, UNIT)]
    while ways:
        width, commit, found = heappop(ways)
        if commit not in known:
            known[commit] = found
            for other, step in sides.get(commit, ()):
                heappush(ways, (width + math.log(step.high / step.low) ** 2, other, _product(found, step)))
    return known


def _product(first: Ratio, second: Ratio) -> Ratio:
    return over(first, Ratio(1 / second.value, 1 / second.high, 1 / second.low))


def times(old: Point, new: Point) -> Ratio | None:
    """The time of a point over that of another, of process pairs in a run; None of a doubtful one, of two timers, or without intervals."""
    if old.run is new.run and (found := new.paired.get(old.row.backend)):
        return found
    if not (old.row.ends and new.row.ends) or old.row.timer != new.row.timer or old.row.doubtful or new.row.doubtful:
        return None
    return ratio(new.row.median_us or 0.0, new.ends, old.row.median_us or 0.0, old.ends)


def compared(points: Mapping[str, Sequence[Point]], before: str, after: str) -> Ratio | None:
    """The time of a commit over that of an earlier one: side by side, else in their newest runs, less the change of copy."""
    if found := relative(points, before).get(after):
        return found
    old, new = points[before][-1], points[after][-1]
    found = times(old, new)
    if found and old.copy and new.copy and (drift := old.copy.times_as_fast(new.copy)):
        return over(found, drift)
    return found


def collect(target: str, places: Sequence[Path], threshold: float, repository: Path = Path()) -> tuple[History, list[str]]:
    """The history of a target in the runs of folders and CSVs, and a line for each file that cannot be read.

    Raises:
        ResultsError: a path is missing, or no run has the target; the message has the targets that runs have.
    """
    runs, problems = find(places)
    made, known = History(target, threshold), set[str]()
    first: dict[str, str] = {}
    for run, header in _finished(runs, problems):
        try:
            rows = read_csv(run.file, stored=False)[0]
        except ResultsError as error:
            problems.append(str(error))
            continue
        copies = {row.case: row for row in rows if row.grade == Grade.YARDSTICK and row.timed and not row.doubtful}
        pairs: dict[tuple[str, CaseKey], dict[str, Ratio]] | None = None
        for row in rows:
            if not row.timed or row.grade == Grade.YARDSTICK:
                continue
            names = _names(row, header)
            known |= names
            if not any(fnmatchcase(name, target) for name in names):
                continue
            pairs = _pairs(run, list(header.get("commits") or {})) if pairs is None else pairs
            of_backend = not any(fnmatchcase(name, target) for name in _origins(row, header))
            own = row.backend if of_backend or fnmatchcase(row.backend, target) else row.backend.partition(".")[2]
            commit = one_line(str((header.get("commits") or {}).get(row.backend) or header.get("git_commit") or run.run), 60)
            case = " ".join(filter(None, (own, str(row.case), f"on {row.device}")))
            made.cases.setdefault(case, {}).setdefault(commit, []).append(
                Point(run, row, copies.get(row.case), pairs.get((row.backend, row.case), {}))
            )
            first.setdefault(commit, run.started[:10])
    if len({point.row.device for points in made.cases.values() for some in points.values() for point in some}) == 1:
        made.cases = {case.partition(" on ")[0]: points for case, points in made.cases.items()}
    if not made.cases:
        there = f"the targets there are {few(sorted(known), LISTED)}" if known else few(problems) or "softbench run writes some"
        raise ResultsError(f"{target}: no run in {', '.join(map(str, places))} has a time of it; {there}")
    made.commits = _ordered(first, repository)
    return made, problems


def _finished(runs: Sequence[FoundRun], problems: list[str]) -> Iterator[tuple[FoundRun, JsonObject]]:
    """The runs that finished, with the headers of their JSONs. `problems` gets a line for each damaged JSON, and one for all other runs."""
    others = []
    for run in runs:
        try:
            header = load_header(file) if (file := beside(run.file)).exists() else {"interrupted": True}
        except ResultsError as error:
            problems.append(str(error))
            continue
        if header.get("interrupted"):
            others.append(str(run.file))
        else:
            yield run, header
    problems += [f"{', '.join(others)}: left out, because the run is unfinished, or no JSON is beside it"] if others else []


def _pairs(run: FoundRun, backends: Sequence[str]) -> dict[tuple[str, CaseKey], dict[str, Ratio]]:
    """The time of each backend and case over that of other backends, by the gate's comparison; none of a run that it cannot compare."""
    found: dict[tuple[str, CaseKey], dict[str, Ratio]] = {}
    if len(backends) < 2:
        return found
    with suppress(SoftbenchError):
        samples = run_files.read(run.file)
        for new, old in combinations(backends, 2):
            for one in paired.compare(samples, new, old, Rules(margin=paired.MARGIN)).verdicts:
                if one.ratio and one.interval and not (one.cell.unit or one.cell.measure):
                    found.setdefault((new, one.cell.identity), {})[old] = Ratio(one.ratio, *one.interval)
                    found.setdefault((old, one.cell.identity), {})[new] = Ratio(1 / one.ratio, 1 / one.interval[1], 1 / one.interval[0])
    return found


def _names(row: Row, header: JsonObject) -> set[str]:
    """What a target may be called: the backend, the operation, and the function or the file that the backend comes from."""
    return {row.backend, parse_op(row.op)[0], *_origins(row, header)}


def _origins(row: Row, header: JsonObject) -> set[str]:
    """The names of the function or the file that the backend comes from: backends of one origin are its commits, others are not."""
    op = parse_op(row.op)[0]
    if function := str((header.get("functions") or {}).get(op) or ""):
        return {name for name in (op, function.rpartition("/")[2], function.partition(":")[2]) if name}
    file = str((header.get("origins") or {}).get(row.backend) or "").rpartition("=")[2].rpartition("/")[2]
    return {file} - {""}


def _ordered(first: Mapping[str, str], repository: Path) -> list[Commit]:
    known: dict[str, Commit] = {}
    with suppress(SoftbenchError):  # no repository here
        known = {one.name[:SHORT]: one for one in in_order([name.rstrip("+") for name in first], repository)}
    found = [known.get(name.rstrip("+"), Commit(name, day, ""))._replace(name=name) for name, day in first.items()]
    if all(name.rstrip("+") in known for name in first):
        places = {name: place for place, name in enumerate(known)}
        found.sort(key=lambda one: (places[one.name.rstrip("+")], one.name))
    return found


def page(made: History, command: str) -> str:
    """The page as HTML."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    changes = list(made.changes())
    of_commit = {one.name: [change for change in changes if change.commit == one.name] for one in made.commits}
    style = asset("base.css") + asset("history.css", __package__)
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    return template.from_string(asset("history.html", __package__)).render(
        policy=f"default-src 'none'; style-src {source_hash(style)}; img-src data:; base-uri 'none'",
        style=Markup(style),
        made=made,
        runs=len({point.run.run for points in made.cases.values() for some in points.values() for point in some}),
        changes=of_commit,
        charts=[Chart.of(made, case, {one.commit: one for one in changes if one.case == case}) for case in made.cases],
        size=(WIDTH, HEIGHT, LEFT, EDGE),
        version=__version__,
        command=one_line(command, 500),
    )


class Mark(NamedTuple):
    """A point of a chart, with its places in pixels."""

    kind: str
    """`bad` if the commit is slower than the one before, `good` if it is faster, else empty."""
    x: float
    y: float
    high: float
    low: float
    text: str


class Chart(NamedTuple):
    """A case over commits: its times relative to the oldest commit if runs connect all, else its medians."""

    case: str
    top: str
    bottom: str
    marks: Sequence[Mark]

    @classmethod
    def of(cls, made: History, case: str, changes: Mapping[str, Change]) -> Chart:
        points = made.cases[case]
        commits = [one.name for one in made.commits if one.name in points]
        shares = relative(points, commits[0])
        if 1 < len(commits) == len(shares):
            values, shown = {name: [shares[name]] for name in commits}, lambda value: f"{value:.3f}"
        else:
            values, shown = {name: [Ratio(one.row.median_us or 0.0, *one.ends) for one in points[name]] for name in commits}, micros
        every = [one for some in values.values() for one in some]
        top, bottom = max(one.high for one in every), min(one.low for one in every)

        def height(value: float) -> float:
            return EDGE + (HEIGHT - 2 * EDGE) * (top - value) / ((top - bottom) or 1)

        marks = []
        for number, commit in enumerate(made.commits):
            change = changes.get(commit.name)
            kind = ("bad" if change.ratio.value > 1 else "good") if change else ""
            x = LEFT + number * (WIDTH - LEFT - EDGE) / max(1, len(made.commits) - 1)
            for one in values.get(commit.name, ()):
                said = " ".join(filter(None, (commit.name, commit.date, commit.subject, shown(one.value), change.text if change else "")))
                marks.append(Mark(kind, x, height(one.value), height(one.high), height(one.low), said))
        return cls(case, shown(top), shown(bottom), marks)
