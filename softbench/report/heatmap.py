"""Draws who is fastest at each M and N, and by how much. A crossover is drawn only between two backends that tie on neither side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from softbench.core.errors import ResultsError
from softbench.core.text import count
from softbench.report import axes, style
from softbench.report.figure_data import Group, group_name
from softbench.report.standings import Standing, crossover, standing
from softbench.report.style import COLOURS, INK, LINE_COLOURS, MARKERS, OTHER, Drawing, Style
from softbench.results.rows import Row, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL_INCHES = (0.8, 0.27)
PALEST, FULLEST = 0.08, 0.6
"""The opacity of a tie, and of a lead of LARGE or more; text stays legible on it. Between them it grows with the lead's root."""
LARGE = 0.5
MARKS = 3  # of backends that tie; more of them are a number
TICK_POINTS = 7.5
MOST = 200  # values of an axis


@style.look()
def figure(rows: Sequence[Row], group: Group, styles: Mapping[str, Style]) -> Drawing:
    """The cells of one operation, direction and dtype: M by N, or the shapes of N-D cases below each other.

    The axis with more values goes down. A cell has the mark and the colour of the fastest backend, stronger with its lead, and its lead as
    a number. Backends within noise of the fastest tie with it.

    Raises:
        ResultsError: an axis has more than MOST values, which would be no legible picture.
    """
    kept = group.of(rows)
    shaped = bool(group.shaped)
    Ms, Ns = (sorted({getattr(row, axis) for row in kept}) for axis in "MN")
    down_n = len(Ns) >= len(Ms)
    down: list[Any] = list(dict.fromkeys(row.shape for row in kept)) if shaped else Ns if down_n else Ms
    across: list[Any] = [""] if shaped else Ms if down_n else Ns
    if max(len(down), len(across)) > MOST:
        some = "softbench show FILE --M ... --N ... --csv - | softbench plot - --kind heatmap -o NAME.png"
        raise ResultsError(f"plot --kind heatmap: {max(len(down), len(across))} shapes in a line, at most {MOST}; select some: {some}")

    def place_of(row: Row) -> tuple[int, int]:
        place = (row.shape, "") if shaped else (row.N, row.M) if down_n else (row.M, row.N)
        return down.index(place[0]), across.index(place[1])

    standings = {place: standing(some) for place, some in grouped(kept, place_of).items()}
    looks = _looks(standings.values(), styles)
    size = (CELL_INCHES[0] * len(across) + 0.9, CELL_INCHES[1] * len(down) + 0.6)
    made, ((panel,),) = style.subplots(1, 1, size)
    panel.grid(visible=False)
    for place, found in standings.items():
        _cell(panel, place, found, looks)
    _crossovers(panel, standings)
    panel.set_xlim(-0.5, len(across) - 0.5)
    panel.set_ylim(len(down) - 0.5, -0.5)
    panel.tick_params(length=0, labelsize=TICK_POINTS)
    panel.spines[:].set_visible(False)
    panel.set_xticks(range(len(across)), list(map(str, across)))
    panel.set_yticks(range(len(down)), list(map(str, down)))
    panel.set_xlabel("" if shaped else "M, rows" if down_n else "N, columns of a row")
    panel.set_ylabel("shape" if shaped else "N, columns of a row" if down_n else "M, rows")
    devices = " and ".join(dict.fromkeys(row.device for row in kept))
    panel.set_title(f"fastest: {group.op} {group.direction}, {group.dtype}\n{devices}")
    _key(panel, standings.values(), looks)
    points = {_gid(place): found.rows[0] for place, found in standings.items() if found.rows}
    numbers = style.numbers(rows)
    series = {numbers[name]: style.label(name, [row for row in kept if row.backend == name]) for name in looks}
    return Drawing(group_name(group), made, series, points)


def _gid(place: tuple[int, int]) -> str:
    return f"cell-{place[0]}-{place[1]}"


def _looks(standings: Any, styles: Mapping[str, Style]) -> dict[str, Style]:
    """The style of each backend that is fastest or ties somewhere: that of the other figures, or a free one if it is grey there."""
    names = dict.fromkeys(row.backend for found in standings if found.rows for row in found.tied)
    taken = {(own.colour, own.marker) for own in styles.values()}
    used = {own.colour for name, own in styles.items() if own.named and name in names}
    colours = sorted(LINE_COLOURS, key=lambda colour: colour in used)
    free = (Style(colour, marker, "-", named=True) for marker in MARKERS for colour in colours if (colour, marker) not in taken)
    return {name: own if (own := styles.get(name, OTHER)).named else next(free, OTHER) for name in styles if name in names}


def _cell(panel: Axes, place: tuple[int, int], found: Standing, looks: Mapping[str, Style]) -> None:
    """One case: the marks of the fastest, its lead or `tie`, and the number of backends without a result."""
    from matplotlib.patches import Rectangle

    y, x = place
    box: dict[str, Any] = {"xy": (x - 0.48, y - 0.46), "width": 0.96, "height": 0.92, "gid": _gid(place)}
    lost = " ".join(f"{sign}{number}" for sign, number in (("x", found.failed), ("-", found.skipped)) if number)
    if not found.rows:
        panel.add_patch(Rectangle(**box, facecolor="none", edgecolor=INK, hatch="////", linewidth=0.5, alpha=0.45))
        panel.text(x, y, found.status, fontsize=6.5, ha="center", va="center", color=COLOURS[1] if found.failed else INK)
        return
    best, lead = looks[found.rows[0].backend], found.lead
    part = min(1.0, (lead or 0) / LARGE) ** 0.5 if found.parted else 0.0
    panel.add_patch(Rectangle(**box, facecolor=(best.colour, PALEST + (FULLEST - PALEST) * part), linewidth=0))
    for i, row in enumerate(found.tied[:MARKS]):
        own = looks[row.backend]
        panel.plot(x - 0.39 + 0.14 * i, y, marker=own.marker, color=own.colour, markersize=6, markeredgecolor=INK, markeredgewidth=0.5)
    text = "alone" if lead is None else "tie" if len(found.tied) > 1 else f"+{lead:.1%}" if lead < 0.0995 else f"+{lead:.0%}"
    if len(found.tied) > MARKS:
        text = f"tie of {len(found.tied)}"
    text = f"({text})" if lead is not None and len(found.tied) == 1 and not found.parted else text
    text += "!" if any(row.doubtful for row in found.rows[:2]) else ""
    panel.text(x + 0.46 - 0.058 * len(lost) - 0.03 * bool(lost), y, text, fontsize=6.5, ha="right", va="center")
    if lost:
        panel.text(x + 0.46, y, lost, fontsize=5.5, ha="right", va="center", color=COLOURS[1] if found.failed else INK)


def _crossovers(panel: Axes, standings: Mapping[tuple[int, int], Standing]) -> None:
    """A line between two neighbours with unlike fastest backends, if these two tie in neither case."""
    number = 0
    for (y, x), found in standings.items():
        for down, right in ((0, 1), (1, 0)):
            other = standings.get((y + down, x + right))
            if not crossover(found, other):
                continue
            xs = [x + 0.5, x + 0.5] if right else [x - 0.5, x + 0.5]
            ys = [y - 0.5, y + 0.5] if right else [y + 0.5, y + 0.5]
            panel.plot(xs, ys, color=INK, linewidth=1.8, solid_capstyle="butt", gid=f"edge-{number}")
            number += 1


def _key(panel: Axes, standings: Any, looks: Mapping[str, Style]) -> None:
    found = list(standings)
    wins = {name: sum(bool(one.rows) and one.parted and one.rows[0].backend == name for one in found) for name in looks}
    handles = [
        axes.sign(
            f"{style.label(name, ())} leads in {wins[name]}", marker=own.marker, color=own.colour, markeredgecolor=INK, markeredgewidth=0.5
        )
        for name, own in sorted(looks.items(), key=lambda item: -wins[item[0]])
    ]
    axes.legend(panel, handles, 0.45)
    ties = sum(len(one.tied) > 1 for one in found if one.rows)
    lines = [f"Of {count(len(found), 'case')}, {ties} tie: the 95 % interval of a ratio contains 1. +N %: the next one takes N % longer."]
    if any(one.rows and one.lead is not None and len(one.tied) == 1 and not one.parted for one in found):
        lines.append("In parentheses: the file has no interval.")
    if any(one.failed or one.skipped for one in found):
        lines.append("xN: N backends are wrong or failed. -N: N were not run there.")
    lines.append("Thick line: crossover of two backends that tie on neither side. !: doubtful.")
    place = (0, -32 - 13 * -(-len(handles) // axes.PER_LINE) - 12)
    panel.annotate("\n".join(lines), (0, 0), place, "axes fraction", "offset points", fontsize=6.5, va="top", annotation_clip=False)
