"""Names the lines of a figure: beside their ends where there is room, and else in the legend."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from softbench.core.text import count
from softbench.report.scales import spread
from softbench.report.style import GREY, INK, PAPER, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABEL = 0.15  # inches between two labels
PER_LINE = 3  # entries of a legend
SHORT, LONG = 0.025, 0.055  # of the axes; half the length of a mark beside a name


class End(NamedTuple):
    """The end of a line that wants a name."""

    text: str
    x: float
    y: float
    style: Style
    gid: str


def beside(panel: Axes, ends: Sequence[End], *, long: bool = False) -> list[End]:
    """Name the lines right of the axes, each joined with its last point. The first ends come first where there is no room for all.

    A `long` mark shows the dash on both sides of its marker.

    Returns:
        The ends that had no room.
    """
    height = panel.get_window_extent().height / panel.get_figure(root=True).dpi  # type: ignore[union-attr]
    room = int(height / LABEL) + 1
    half = LONG if long else SHORT
    inside = panel.transData + panel.transAxes.inverted()
    placed = sorted(((float(inside.transform((end.x, end.y))[1]), end) for end in ends[:room]), key=lambda item: item[0])
    for y, (_, end) in zip(spread([place for place, _ in placed], LABEL / height), placed, strict=True):
        own, at = end.style, panel.transAxes
        arrow = {"arrowstyle": "-", "color": own.colour, "linewidth": 0.7, "alpha": 0.6, "shrinkA": 0, "shrinkB": 3}
        panel.annotate("", (end.x, end.y), (1.03, y), textcoords=at, arrowprops=arrow, annotation_clip=False)
        (mark,) = panel.plot(
            [1.03, 1.03 + half, 1.03 + 2 * half], [y] * 3, color=own.colour, linestyle=own.dash, transform=at, clip_on=False
        )
        mark.set(marker=own.marker or "", markersize=4.5, markevery=[1], gid=f"{end.gid}-name")
        panel.text(1.05 + 2 * half, y, end.text, transform=at, fontsize=8.5, va="center")
    return list(ends[room:])


def legend(panel: Axes, handles: Sequence[Any], below: float, *, long: bool = False) -> None:
    """The legend under the panel, `below` inches from it. `long`: as in `beside`."""
    height = panel.get_window_extent().height / panel.get_figure(root=True).dpi  # type: ignore[union-attr]
    place = (0.5, -below / height)
    columns, length = min(PER_LINE, len(handles)), 3.5 if long else 2.0
    panel.legend(handles=handles, loc="upper center", bbox_to_anchor=place, ncols=columns, frameon=False, handlelength=length)


def sign(label: str, **settings: Any) -> Any:
    """An entry of the legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **{"color": INK, "markersize": 4.5, "linestyle": "", **settings})


def entry(end: End) -> Any:
    """The legend's entry of a line without a name beside it."""
    return sign(end.text, color=end.style.colour, marker=end.style.marker, linestyle=end.style.dash)


def signs(*, spread: str, segment: bool, doubtful: bool, missing: bool, others: int) -> list[Any]:
    """The entries for the signs that a figure has."""
    from matplotlib.patches import Patch

    found: list[Any] = []
    if spread:
        found.append(sign(spread, linestyle="-") if segment else Patch(color=INK, alpha=0.2, linewidth=0, label=spread))
    if doubtful:
        found.append(sign("doubtful: see the labels", marker="o", markerfacecolor=PAPER))
    if missing:
        found.append(sign("no result", marker="x"))
    if others:
        found.append(sign(count(others, "other backend"), color=GREY, marker="."))
    return found


def below(panel: Axes, texts: Sequence[str], lines_above: int) -> None:
    """Texts below a legend of so many lines."""
    if not texts:
        return
    wrapped = "\n".join(line for text in texts for line in textwrap.wrap(text, 100, break_on_hyphens=False))
    place = -44 - 13 * lines_above
    panel.annotate(wrapped, (0, 0), (0, place), "axes fraction", "offset points", fontsize=6.5, va="top", annotation_clip=False)
