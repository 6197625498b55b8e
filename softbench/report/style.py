"""What the figures share: formats, colours, the backends that are named, and how a file is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from softbench.core.errors import UsageError
from softbench.core.files import not_written
from softbench.core.outcome import LIMITED, Grade
from softbench.results.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's palette, which colour-blind readers can tell apart; markers repeat the distinction in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#F0E442")
LINE_COLOURS = COLOURS[:7]  # a yellow line is hard to see on white
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")  # 9 markers and 7 colours make 63 pairs
DASHES = ("-", "--", ":", "-.")
GREY, DARK = "0.75", "0.35"
FEW, NAMED = 9, 7
"""Up to FEW backends all have a colour. Of more, NAMED have one, and the others are grey."""
PEERS = ("torch", "compile")
"""These backends have a colour in every run. So has the reference backend."""
LONGEST = 44  # characters of a name in a figure
CROWDED = 30  # half of the figures lie below this part of the largest: a linear axis would hide them


@dataclass(frozen=True, slots=True)
class Style:
    """How one backend is drawn in all figures of a run."""

    colour: str
    marker: str
    dash: str
    named: bool
    """False for a grey backend without a label."""


OTHER = Style(GREY, ".", "-", named=False)


def styles(rows: Sequence[Row]) -> dict[str, Style]:
    """A style for each backend with a bandwidth, in the order of the rows. Each named backend has its own colour and marker."""
    names = list(dict.fromkeys(row.backend for row in rows if row.gbps and row.grade != Grade.YARDSTICK))
    chosen = _named(rows, names)
    found = dict.fromkeys(names, OTHER)
    for i, name in enumerate(name for name in names if name in chosen):
        dash = DASHES[i // len(LINE_COLOURS) % len(DASHES)]
        found[name] = Style(LINE_COLOURS[i % len(LINE_COLOURS)], MARKERS[i % len(MARKERS)], dash, named=True)
    return found


def _named(rows: Sequence[Row], names: Sequence[str]) -> set[str]:
    """All backends if they are few; else the peers, the best of each direction and dtype, and the best of all."""
    if len(names) <= FEW:
        return set(names)
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.of_pass, row.dtype), []).append(row)
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
    return plain(short + mark + source)


def crowded(values: Sequence[float]) -> bool:
    """True if a linear axis from 0 would hide most of the values."""
    return bool(values) and median(values) < max(values) / CROWDED


def plain(text: str) -> str:
    """Text for matplotlib, in which a dollar sign would start a formula."""
    return text.replace("$", r"\$")


def check_format(out: Path, flag: str) -> None:
    """Raise UsageError if the file's suffix is not a supported format."""
    if out.suffix not in FORMATS:
        raise UsageError(f"{flag} {out}: the file must end in {', '.join(FORMATS)}")


def saved(figure: Figure, file: Path, flag: str) -> Path:
    """Write and close the figure. The page grows to hold all of it, so that no label is cut.

    Raises:
        ResultsError: the file cannot be written.
    """
    from matplotlib import pyplot

    try:
        figure.savefig(file, dpi=150, bbox_inches="tight", pad_inches=0.15)
    except OSError as error:
        raise not_written(f"{flag} {file}", error) from None
    finally:
        pyplot.close(figure)
    return file


def sources(runs: Sequence[tuple[Path, Sequence[Row]]]) -> Mapping[int, str]:
    """What a label says about each run: nothing for one run, else its device if the devices differ, else its file's name or path."""
    if len(runs) == 1:
        return {0: ""}
    devices = [rows[0].device for _, rows in runs]
    ways = (devices, [path.stem for path, _ in runs], [str(path) for path, _ in runs])
    shown = next((way for way in ways if len(set(way)) == len(runs)), ways[-1])
    return {i: f", {name}" for i, name in enumerate(shown)}
