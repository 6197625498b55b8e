"""Draws who is fastest at each M and N, and by how much. A crossover is drawn only between two backends that tie on neither side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from softbench.core.case import CaseKey
from softbench.core.errors import ResultsError
from softbench.core.text import count, few
from softbench.report import axes, style
from softbench.report.figure_data import Group, by_group
from softbench.report.standings import Standing, crossover, standing
from softbench.report.style import INK, Style
from softbench.results.columns import Row, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL_INCHES = (0.8, 0.27)
SPARSE = 0.5
"""The part of the fields of M by N that have a case, below which the map is a list of shapes."""
LONG = 20  # lines of a list of shapes; a longer one has several columns
GAP_INCHES = (1.15, 0.75)
"""Between maps: across, and down for a title and an axis. Longer names of lines have more room across."""
LETTER_INCHES = (0.065, 0.085)
"""Of the name of a line, and of a title."""
PAGE_INCHES = 12.0
"""The width from which maps stand below each other."""
PALEST, FULLEST = 0.08, 0.6
"""The opacity of a tie, and of a lead of LARGE or more; text stays legible on it. Between them it grows with the lead's root."""
LARGE = 0.5
LOST = "#b3261e"
"""The colour of backends that are wrong or failed."""
MARKS = 3  # of backends that tie; of more of them there is a number, and one mark less
TICK_POINTS = 7.5
MOST = 200  # values of an axis


@style.look()
def figure(rows: Sequence[Row], groups: Sequence[Group]) -> Figure:
    """A map of each operation, direction and dtype: M by N, or the shapes of N-D cases below each other.

    The axis with more values goes down. A cell has the mark and the colour of the fastest backend, stronger with its lead, and its lead as
    a number. Backends within noise of the fastest tie with it.

    Raises:
        ResultsError: an axis has more than MOST values, which would be no legible picture, or only the yardstick has a time.
    """
    maps = [(group, part) for group, some in by_group(groups, rows) for part in _map(group, some).parts()]
    every = [found for _, one in maps for found in one.standings.values()]
    first = dict.fromkeys(row.backend for found in every if found.rows for row in found.tied)
    looks = {row.backend: style.own(row.backend) for row in rows if row.backend in first}
    if not looks:
        raise ResultsError("plot --kind heatmap: no backend but the yardstick has a time, so there is nothing to draw")
    made = style.canvas()
    several = len({group.op for group in groups}) > 1
    right = top = low = 0.0
    for number, (group, one) in enumerate(maps):
        width, height = one.inches
        left = right + one.gap if right else 0.0
        if left + width > PAGE_INCHES:
            left, top = 0.0, low
        panel = style.panel(made, left, top, width, height)
        _draw(panel, one, looks)
        name = f"{group.op} {group.direction} {group.dtype}" if several else f"{group.direction} {group.dtype}"
        title = name if not number or maps[number - 1][0] != group else ""
        panel.set_title(title, fontsize=9, loc="left", fontweight="bold")
        right = left + max(width, LETTER_INCHES[1] * len(title) - one.gap)
        low = max(low, top + height + GAP_INCHES[1])
    ops = few(list(dict.fromkeys(group.op.partition("(")[0] for group in groups)))
    wins = {name: sum(bool(one.rows) and one.parted and one.rows[0].backend == name for one in every) for name in looks}
    best = max(wins, key=lambda name: wins[name])
    ties = sum(len(one.tied) > 1 for one in every if one.rows)
    answer = f"{best} is ahead of all others in {wins[best]} of {count(len(every), 'case')}; {ties} tie"
    if not wins[best]:
        answer = f"no backend is ahead of all others in any of {count(len(every), 'case')}; {ties} tie"
    style.head(made, f"{ops}: the fastest backend, {style.devices(rows)}", answer, up=0.2)
    style.foot(made, low - GAP_INCHES[1] + 0.5, *_key(every, looks, wins))
    return made


@dataclass(frozen=True, slots=True)
class _Map:
    """The standings of one map by line and column, and the names of both axes. Sparse maps have a line for each shape."""

    standings: Mapping[tuple[int, int], Standing]
    down: Sequence[Any]
    across: Sequence[Any]
    names: tuple[str, str]
    listed: bool
    """True if each line is a shape, so that neighbours are no neighbours of an axis."""

    def parts(self) -> list[_Map]:
        """The map, or a long list of shapes in parts of at most LONG lines."""
        number = -(-len(self.down) // LONG) if self.listed else 1
        length = -(-len(self.down) // number)
        found = []
        for start in range(0, len(self.down), length):
            standings = {(y - start, x): one for (y, x), one in self.standings.items() if start <= y < start + length}
            found.append(replace(self, standings=standings, down=self.down[start : start + length]))
        return found

    @property
    def inches(self) -> tuple[float, float]:
        return CELL_INCHES[0] * len(self.across), CELL_INCHES[1] * len(self.down)

    @property
    def gap(self) -> float:
        """Inches on the left of the map."""
        return max(GAP_INCHES[0], 0.2 + LETTER_INCHES[0] * max(len(str(value)) for value in self.down))


def _map(group: Group, rows: Sequence[Row]) -> _Map:
    Ms, Ns = (sorted({getattr(row, axis) for row in rows}) for axis in "MN")
    cases = grouped(rows, lambda row: row.case)
    listed = group.shaped or len(cases) < SPARSE * len(Ms) * len(Ns)
    down_n = len(Ns) >= len(Ms)

    def place_of(case: CaseKey) -> tuple[Any, Any]:
        return (case.size, "") if listed else (case.N, case.M) if down_n else (case.M, case.N)

    ordered = cases if group.shaped else sorted(cases, key=lambda case: (case.M, case.N))
    down: list[Any] = list(dict.fromkeys(case.size for case in ordered)) if listed else Ns if down_n else Ms
    across: list[Any] = [""] if listed else Ms if down_n else Ns
    if (most := max(len(down), len(across))) > MOST:
        some = "softbench plot FILE --kind heatmap --M ... --N ..."
        raise ResultsError(f"plot --kind heatmap: {most} shapes in a line, at most {MOST}; select some: {some}")
    lines, columns = ({value: place for place, value in enumerate(values)} for values in (down, across))
    names = ("", "") if listed else ("N, columns of a row", "M, rows") if down_n else ("M, rows", "N, columns of a row")
    places = {case: place_of(case) for case in cases}
    return _Map(
        {(lines[places[case][0]], columns[places[case][1]]): standing(some) for case, some in cases.items()}, down, across, names, listed
    )


def _draw(panel: Axes, one: _Map, looks: Mapping[str, Style]) -> None:
    panel.grid(visible=False)
    for place, found in one.standings.items():
        _cell(panel, place, found, looks)
    if not one.listed:
        _crossovers(panel, one.standings)
    panel.set_xlim(-0.5, len(one.across) - 0.5)
    panel.set_ylim(len(one.down) - 0.5, -0.5)
    panel.tick_params(length=0, labelsize=TICK_POINTS)
    panel.spines[:].set_visible(False)
    panel.set_xticks(range(len(one.across)), list(map(str, one.across)))
    panel.set_yticks(range(len(one.down)), list(map(str, one.down)))
    panel.set_xlabel(one.names[1], fontsize=TICK_POINTS)
    long = LETTER_INCHES[0] * len(one.names[0]) > one.inches[1]
    panel.set_ylabel(one.names[0].partition(",")[0] if long else one.names[0], fontsize=TICK_POINTS)


def _cell(panel: Axes, place: tuple[int, int], found: Standing, looks: Mapping[str, Style]) -> None:
    """One case: the marks of the fastest, its lead or `tie`, and the number of backends without a result."""
    from matplotlib.patches import Rectangle

    y, x = place
    box: dict[str, Any] = {"xy": (x - 0.48, y - 0.46), "width": 0.96, "height": 0.92}
    lost = " ".join(f"{sign}{number}" for sign, number in (("x", found.failed), ("-", found.skipped)) if number)
    if not found.rows:
        panel.add_patch(Rectangle(**box, facecolor="none", edgecolor=INK, hatch="////", linewidth=0.5, alpha=0.45))
        panel.text(x, y, found.status, fontsize=6.5, ha="center", va="center", color=LOST if found.failed else INK)
        return
    best, lead = looks[found.rows[0].backend], found.lead
    part = min(1.0, (lead or 0) / LARGE) ** 0.5 if found.parted else 0.0
    panel.add_patch(Rectangle(**box, facecolor=(best.colour, PALEST + (FULLEST - PALEST) * part), linewidth=0))
    for i, row in enumerate(found.tied[: MARKS - (len(found.tied) > MARKS)]):
        own = looks[row.backend]
        panel.plot(x - 0.39 + 0.14 * i, y, marker=own.marker, color=own.colour, markersize=6, markeredgecolor=INK, markeredgewidth=0.5)
    text = "alone" if lead is None else "tie" if len(found.tied) > 1 else f"+{lead:.1%}" if lead < 0.0995 else f"+{lead:.0%}"
    if len(found.tied) > MARKS:
        text = f"tie of {len(found.tied)}"
    text = f"({text})" if lead is not None and len(found.tied) == 1 and not found.parted else text
    text += "!" if any(row.doubtful for row in found.rows[:2]) else ""
    panel.text(x + 0.46 - 0.058 * len(lost) - 0.03 * bool(lost), y, text, fontsize=6.5, ha="right", va="center")
    if lost:
        panel.text(x + 0.46, y, lost, fontsize=5.5, ha="right", va="center", color=LOST if found.failed else INK)


def _crossovers(panel: Axes, standings: Mapping[tuple[int, int], Standing]) -> None:
    """A line between two neighbours with unlike fastest backends, if these two tie in neither case."""
    for (y, x), found in standings.items():
        for down, right in ((0, 1), (1, 0)):
            other = standings.get((y + down, x + right))
            if not crossover(found, other):
                continue
            xs = [x + 0.5, x + 0.5] if right else [x - 0.5, x + 0.5]
            ys = [y - 0.5, y + 0.5] if right else [y + 0.5, y + 0.5]
            panel.plot(xs, ys, color=INK, linewidth=1.8, solid_capstyle="butt")


def _key(found: Sequence[Standing], looks: Mapping[str, Style], wins: Mapping[str, int]) -> tuple[list[Any], list[str]]:
    """The entries of the backends, and the meaning of the signs."""
    handles = [
        axes.sign(
            f"{style.label(name, ())} ahead in {wins[name]}", marker=own.marker, color=own.colour, markeredgecolor=INK, markeredgewidth=0.5
        )
        for name, own in sorted(looks.items(), key=lambda item: -wins[item[0]])
    ]
    lines = ["tie: the 95 % interval of the ratio contains 1. +N %: how much longer the next backend takes."]
    if any(one.rows and one.lead is not None and len(one.tied) == 1 and not one.parted for one in found):
        lines.append("In parentheses: the file has no interval.")
    if any(one.failed or one.skipped for one in found):
        lines.append("xN: N backends are wrong or failed. -N: N were not run there.")
    lines.append("Thick line: crossover of two backends that tie on neither side. !: doubtful, see its labels.")
    return handles, lines
