"""What the figures share: colours for light and dark pages, names of their parts, the backends that are named, and files.

A figure has no background. Text, axes and frames have the colour INK; hollow points have the colour PAPER. A page decides both
(`softbench.report.page.figures`). `saved` puts a white page behind a figure.

Parts have these gids, which are the ids of their groups in SVG:

- `series-K-...`: a backend. The ids of all its parts start with `series-K-`, where K is its key in
  `Drawing.series`. A backend has the same K in all figures of a run (`numbers`).
- `series-K-pP-line-L`: line L of panel P, from 0. A backend has a line for each kind of length (`softbench.report.curves`); further
  pieces of a line end in `-1`, `-2`.
- `series-K-pP-point-I`: point I of panel P, in the order of its values along the axis. `Drawing.points` has its row. A line with many
  points has them in few parts, `series-K-pP-points-L`, without rows.
- `series-K-name`: the name of a line, with its mark.
- `series-K-pP-point-0`: the bar of a backend in panel P of the costs, or its point in panel P of rows of points.
- `cell-R-C`: a cell of a heatmap: line R, column C, from 0. `Drawing.points` has the row of the fastest backend.
- `edge-I`: a crossover of a heatmap. `change-I`: a change point of a trend. `verdict-I`: a verdict of the forest plot, from the top.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from softbench.core.errors import UsageError
from softbench.core.files import not_written
from softbench.core.outcome import FAILURES, LIMITED, Grade
from softbench.results.rows import Row, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
INK, PAPER = "#1b1c1d", "#fefefd"
"""The colours of text and of hollow points. No backend has them, so a page can replace them."""
FAINT, GREY = f"{INK}26", f"{INK}4d"
"""Ink of 15 % and of 30 % opacity, for either page."""
# Okabe and Ito's palette, which colour-blind readers can tell apart; markers repeat the distinction in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#F0E442")
LINE_COLOURS = COLOURS[:7]  # a yellow line is hard to see on white
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")  # 9 markers and 7 colours make 63 pairs
DASHES = ("-", "--", ":", "-.")
FEW, NAMED = 9, 7
"""Up to FEW backends all have a colour. Of more, NAMED have one, and the others are grey."""
PEERS = ("torch", "compile")
"""These backends have a colour in every run. So has the reference backend."""
LONGEST = 44  # characters of a name in a figure
LOOK: dict[Any, Any] = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor", "savefig.edgecolor"), "none"),
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK),
    **{"font.size": 9, "axes.titlesize": 9.5, "legend.fontsize": 8, "legend.frameon": False},
    "text.parse_math": False,  # a dollar sign in the name of a device or of a file starts no formula
    **{"grid.alpha": 0.13, "axes.axisbelow": True, "svg.hashsalt": "softbench"},
}


@dataclass(frozen=True, slots=True)
class Style:
    """How one backend is drawn in all figures of a run."""

    colour: str
    marker: str
    dash: str
    named: bool
    """False for a grey backend without a label."""


OTHER = Style(GREY, ".", "-", named=False)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure, and what its parts show."""

    name: str
    """The figure's part of a file name; empty if a file has one figure."""
    figure: Figure
    series: Mapping[int, str] = field(default_factory=dict)
    """The label of each drawn backend by its K (`numbers`), which is the same in all figures of a run."""
    points: Mapping[str, Row] = field(default_factory=dict)
    """The row that each point or cell shows, by its gid."""


@contextmanager
def look() -> Iterator[None]:
    """Matplotlib's settings for drawing and saving. The decorator of each function that returns a figure."""
    import matplotlib

    with matplotlib.rc_context(LOOK):
        yield


def subplots(rows: int, columns: int, size: tuple[float, float], **settings: Any) -> tuple[Figure, list[list[Axes]]]:
    """A figure of `size` inches with its panels. pyplot does not know it, so it needs no closing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout=settings.pop("layout", None))
    panels = figure.subplots(rows, columns, squeeze=False, **settings).tolist()
    for panel in (panel for line in panels for panel in line):
        panel.tick_params(color=INK, labelcolor=INK)  # ticks are made when they are drawn, when the settings may be others
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid()
    return figure, panels


def saved(figure: Figure, file: Path, flag: str) -> Path:
    """Write the figure on a white page, which grows to hold all of it, so that no label is cut.

    Raises:
        ResultsError: the file cannot be written.
    """
    with look():
        try:
            figure.savefig(file, dpi=150, bbox_inches="tight", pad_inches=0.12, facecolor="white")
        except OSError as error:
            raise not_written(f"{flag} {file}", error) from None
    return file


def styles(rows: Sequence[Row]) -> dict[str, Style]:
    """A style for each backend with a bandwidth, in the order of the rows. Each named backend has its own colour and marker."""
    names = list(dict.fromkeys(row.backend for row in rows if row.gbps and row.grade != Grade.YARDSTICK))
    chosen = _named(rows, names)
    found = dict.fromkeys(names, OTHER)
    for i, name in enumerate(name for name in names if name in chosen):
        dash = DASHES[i // len(LINE_COLOURS) % len(DASHES)]
        found[name] = Style(LINE_COLOURS[i % len(LINE_COLOURS)], MARKERS[i % len(MARKERS)], dash, named=True)
    return found


def numbers(rows: Sequence[Row]) -> dict[str, int]:
    """The K of each backend: its place in the order of the rows, the yardstick last. The K of the next overlaid run start behind these."""
    yardsticks = {row.backend for row in rows if row.grade == Grade.YARDSTICK}
    return {name: number for number, name in enumerate(sorted(dict.fromkeys(row.backend for row in rows), key=yardsticks.__contains__))}


def _named(rows: Sequence[Row], names: Sequence[str]) -> set[str]:
    """All backends if they are few; else the peers, the best of each direction and dtype, and the best of all."""
    if len(names) <= FEW:
        return set(names)
    groups = grouped(rows, lambda row: (row.of_pass, row.dtype))
    wanted = [name for name in (*PEERS, *dict.fromkeys(row.relative_to for row in rows)) if name in names]
    wanted += [ranked(some)[0] for some in groups.values() if ranked(some)]
    return set(list(dict.fromkeys([*wanted, *ranked(rows)]))[:NAMED])


def ranked(rows: Sequence[Row]) -> list[str]:
    """The backends with a bandwidth, by its mean fraction of the best in each case. A case without a bandwidth counts as 0."""
    best: dict[object, float] = {}
    for row in rows:
        if row.gbps and row.grade != Grade.YARDSTICK:
            best[row.case] = max(best.get(row.case, 0), row.gbps)
    fractions: dict[str, dict[object, float]] = {}
    for row in rows:
        if row.gbps and row.grade != Grade.YARDSTICK:
            fractions.setdefault(row.backend, dict.fromkeys(best, 0.0))[row.case] = row.gbps / best[row.case]
    return sorted(fractions, key=lambda name: -fmean(fractions[name].values()))


def label(name: str, rows: Sequence[Row], source: str = "") -> str:
    """A backend's label in a figure."""
    short = name if len(name) <= LONGEST else name[: LONGEST - 3] + "..."
    mark = " (yardstick)" if rows and rows[0].grade == Grade.YARDSTICK else ""
    mark += "".join(f" ({grade})" for grade in sorted(LIMITED) if any(row.grade == grade for row in rows))
    return short + mark + source


def lost(rows: Sequence[Row]) -> str:
    """How a backend's rows failed, if none has a bandwidth: `oom, wrong`; else empty."""
    return "" if any(row.gbps for row in rows) else ", ".join(sorted(FAILURES & {row.status for row in rows}))


def check_format(out: Path, flag: str) -> None:
    """Raise UsageError if the file's suffix is not a supported format."""
    if out.suffix not in FORMATS:
        raise UsageError(f"{flag} {out}: the file must end in {', '.join(FORMATS)}")


def model(row: Row) -> str:
    """The GPU model of a row whose `device` may end with its card (`softbench.results.select`)."""
    return row.device.removesuffix(row.unit).strip()


def devices(rows: Sequence[Row]) -> str:
    """The devices of a figure, for its title: of several cards of one model the model, as the lines name the cards."""
    found, models = (list(dict.fromkeys(names)) for names in ((row.device for row in rows), map(model, rows)))
    return models[0] if len(models) == 1 < len(found) else " and ".join(found)


def sources(runs: Sequence[tuple[Path, Sequence[Row]]]) -> Mapping[int, str]:
    """What a label says about each run: nothing for one run, else its device if the devices differ, else its file's name or path.

    Of several cards of one model it says the card only.
    """
    if len(runs) == 1:
        return {0: ""}
    devices = [rows[0].device for _, rows in runs]
    cards = [rows[0].device.removeprefix(model(rows[0])).strip() for _, rows in runs]
    if all(cards) and len({model(rows[0]) for _, rows in runs}) == 1:  # the title has the model
        devices = cards
    ways = (devices, [path.stem for path, _ in runs], [str(path) for path, _ in runs])
    shown = next((way for way in ways if len(set(way)) == len(runs)), ways[-1])
    return {i: f", {name}" for i, name in enumerate(shown)}
