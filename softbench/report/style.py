"""What the figures share: how backends look, parts of a figure in inches, and files.

A figure has no background, and `saved` puts a white page behind it. Text, axes and frames have the colour INK; hollow points are PAPER.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from softbench.core.errors import UsageError
from softbench.core.files import not_written
from softbench.core.outcome import LIMITED, Grade
from softbench.report import colours
from softbench.results.columns import Row, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf", ".webp")
INK, PAPER = "#1b1c1d", "#fefefd"
"""The colours of text and of hollow points."""
FAINT, GREY = f"{INK}26", f"{INK}4d"
"""Ink of 15 % and of 30 % opacity."""
MARKERS, DASHES = colours.MARKERS, ("-", "--", ":", "-.")
"""Those of overlaid runs."""
FEW, NAMED = 14, 10
"""Up to FEW backends all have a colour. Of more, NAMED have one, and the others are grey."""
PEERS = ("torch", "compile")
"""These backends have a colour in every run. So has the reference backend."""
LONGEST = 44  # characters of a name in a figure
KEY_COLUMNS, TEXT_LENGTH = 4, 110
"""Columns of a key, and characters of a line of text below it."""
LETTERS_PER_INCH, SHORTEST = 17, 90
"""Letters of the text above the panels, and the least that a line of it holds."""
LINE_INCHES = 0.17
DPI = 150
LOOK: dict[Any, Any] = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor", "savefig.edgecolor"), "none"),
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK),
    **{"font.size": 9, "axes.titlesize": 9.5, "legend.fontsize": 8, "legend.frameon": False},
    "text.parse_math": False,  # a dollar sign in the name of a device or of a file starts no formula
    **{"grid.alpha": 0.13, "axes.axisbelow": True, "svg.hashsalt": "softbench"},
}


@dataclass(frozen=True, slots=True)
class Style:
    """How one backend is drawn."""

    colour: str
    marker: str
    dash: str
    named: bool
    """False for a grey backend without a label."""


OTHER = Style(GREY, ".", "-", named=False)


@contextmanager
def look() -> Iterator[None]:
    """Matplotlib's settings for drawing and saving. The decorator of each function that returns a figure."""
    import matplotlib

    with matplotlib.rc_context(LOOK):
        yield


def canvas() -> Figure:
    """An empty figure of one inch, whose parts have places in inches. `saved` makes the page as large as they are.

    pyplot does not know it, so it needs no closing.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(1, 1))


def panel(figure: Figure, left: float, top: float, width: float, height: float, sharex: Axes | None = None) -> Axes:
    """A panel of a `canvas`, in inches from its upper left corner."""
    made: Axes = figure.add_axes((left, 1 - top - height, width, height), sharex=sharex)
    made.tick_params(color=INK, labelcolor=INK)  # ticks are made when they are drawn, when the settings may be others
    made.spines[["top", "right"]].set_visible(False)
    made.grid()
    return made


def head(figure: Figure, title: str, answer: str, up: float = 0.0) -> None:
    """The title of a `canvas`, and below it what the figure says, `up` inches above the panels, which are there."""
    length = int(LETTERS_PER_INCH * max(panel.get_position().x1 for panel in figure.axes))
    lines = [part for line in answer.splitlines() for part in textwrap.wrap(line, max(length, SHORTEST), break_on_hyphens=False)]
    below = 1.1 + up + LINE_INCHES * len(lines)
    figure.text(0, below + 0.02, title, fontsize=11, fontweight="bold", va="bottom")
    figure.text(0, below, "\n".join(lines), fontsize=8.5, va="top", linespacing=1.35)


def foot(figure: Figure, top: float, handles: Sequence[Any], texts: Sequence[str]) -> None:
    """The key of a `canvas`, `top` inches from its upper edge, and texts below it."""
    if handles:
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, 1 - top), "borderaxespad": 0, "borderpad": 0}
        figure.legend(handles=handles, ncols=KEY_COLUMNS, **place)
    below = top + 0.18 * -(-len(handles) // KEY_COLUMNS) + 0.08
    lines = [line for text in texts for line in textwrap.wrap(text, TEXT_LENGTH, break_on_hyphens=False)]
    figure.text(0, 1 - below, "\n".join(lines), fontsize=7, va="top", linespacing=1.3)


def saved(figure: Figure, file: Path, flag: str) -> Path:
    """Write the figure on a white page, which grows to hold all of it, so that no label is cut.

    Raises:
        ResultsError: the file cannot be written.
    """
    with look():
        try:
            if figure.get_layout_engine():
                figure.draw_without_rendering()  # places the panels
            figure.set_dpi(DPI)  # letters are wider or narrower at another resolution
            box = figure.get_tightbbox().padded(0.12)  # "tight" would draw the figure twice
            sharp: dict[str, Any] = {"pil_kwargs": {"lossless": True}} if file.suffix == ".webp" else {}  # smaller than with losses, too
            figure.savefig(file, dpi=DPI, bbox_inches=box, facecolor="white", **sharp)
        except OSError as error:
            raise not_written(f"{flag} {file}", error) from None
    return file


def styles(rows: Sequence[Row]) -> dict[str, Style]:
    """A style for each backend with a bandwidth, in the order of the rows; those that are not named are grey."""
    names = list(dict.fromkeys(row.backend for row in rows if row.gbps and row.grade != Grade.YARDSTICK))
    chosen = _named(rows, names)
    return {name: own(name) if name in chosen else OTHER for name in names}


def own(name: str) -> Style:
    """The style of a backend that is named, from its name alone."""
    found = colours.look(name)
    return Style(found.light, found.marker, found.dash, named=True)


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
