"""The axes of the figures: scales and ticks, names of lines beside them, and entries of keys."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, log10
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from softbench.report.style import GREY, INK, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SHORT = 8  # points; the axis of a sweep with so few has a tick at each
CROWDED = 30
"""If half of the values are less than the largest one over this, a linear axis would hide them."""
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**4, 10**5)
MIDDLE = (0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5)
NARROW = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.5, 1.75, 2)
"""Ticks of a ratio, those of ratios of which RATIOS has FEWEST or fewer, and those of ratios from 0.5 to 2."""
DIGIT, BLANK = 0.0165, 0.02
"""Parts of the axis of N: the width of a tick's digit, and the space between two ticks."""
FEWEST, MOST = 2, 7
"""Ticks of a ratio: an axis with so few has others, and one with more has powers of ten only."""
LABEL = 0.15  # inches between two labels
NUMBER = 0.095  # of the axes; the width of the numbers before the names
MARK, LONG_MARK = 0.025, 0.055  # of the axes; half the length of a mark beside a name


def places(panel: Axes, values: Sequence[int], scale: float = 1.0) -> None:
    """The axis of N or M. A wide range is logarithmic, with ticks at powers of two; a short sweep has a tick at each value.

    `scale`: how many times as broad as usual the numbers are, as a part of the axis.
    """
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    panel.tick_params(axis="x", labelsize=7.5)
    short = len(values) <= SHORT
    wide = values[-1] >= (4 if short else 32) * values[0]
    if wide:
        panel.set_xscale("log", base=2)
    if short or wide:
        powers = [2**i for i in range(int(log2(values[0])), int(log2(values[-1])) + 1) if 2**i >= values[0]]
        panel.xaxis.set_major_locator(FixedLocator(ticks(values if short else powers, wide=wide, scale=scale)))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))


def amounts(panel: Axes, values: Sequence[float], *, least: float = 0.0) -> None:
    """The axis of a bandwidth or a fraction: from 0 to at least `least`, or logarithmic if most values lie close to 0."""
    if crowded(values):
        panel.set_yscale("log")
        low, high = min(values) / 1.3, max(*values, least) * 1.3
        panel.set_ylim(low, high)
        powers(panel.yaxis, low, high)
    else:
        panel.set_ylim(0, max(1.05 * max(values, default=1.0), least))


def powers(axis: Any, low: float, high: float) -> None:
    """Numbers such as 0.1 and 1000 on a logarithmic axis. Matplotlib's own are formulas, and no text of a figure is one."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 30 * low else (1.0, 2.0, 5.0), numticks=5))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())


def ratios(axis: Any, set_limits: Any, values: Sequence[float]) -> None:
    """The logarithmic axis of a ratio, with 1 inside and ticks such as 0.5x and 2x. `axis` is the scale's; `set_limits` sets its ends."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, StrMethodFormatter

    low, high = min([*values, 1.0]), max([*values, 1.0])
    room = max(1.02, (high / low) ** 0.06)
    low, high = low / room, high * room
    set_limits(low, high)
    inside = [tick for tick in (NARROW if low > NARROW[0] and high < NARROW[-1] else RATIOS) if low <= tick <= high]
    if len(inside) <= FEWEST:
        inside = [tick for tick in MIDDLE if low <= tick <= high]
    if len(inside) > MOST:
        inside = [tick for tick in inside if log10(tick).is_integer()]
    axis.set_major_locator(FixedLocator(inside) if len(inside) > FEWEST else MaxNLocator(5))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:g}x"))


def crowded(values: Sequence[float]) -> bool:
    """True if a linear axis from 0 would hide most of the values."""
    return bool(values) and median(values) < max(values) / CROWDED


def ticks(values: Sequence[int], *, wide: bool, scale: float = 1.0) -> list[int]:
    """The values that have room for their text: powers of two first."""
    at = {value: log2(value) if wide else float(value) for value in values}
    length = max(at.values()) - min(at.values())

    def room(value: int, other: int) -> float:
        return length * scale * (BLANK + DIGIT * len(f"{value}{other}") / 2)

    chosen: list[int] = []
    for value in sorted(values, key=lambda value: (value & (value - 1) != 0, -value)):
        if all(abs(at[value] - at[other]) >= room(value, other) for other in chosen):
            chosen.append(value)
    return sorted(chosen)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Ascending places near the wanted ones (ascending, from 0 to 1), at least `gap` apart and within 0 and 1 if there is room."""
    clusters: list[tuple[float, int]] = []

    def centre(total: float, number: int) -> float:
        half = gap * (number - 1) / 2
        return min(max(total / number, half), max(1 - half, half))

    for place in wanted:
        clusters.append((place, 1))
        while len(clusters) > 1:
            (low, before), (high, after) = clusters[-2:]
            if centre(high, after) - centre(low, before) >= gap * (before + after) / 2:
                break
            clusters[-2:] = [(low + high, before + after)]
    return [centre(total, number) + gap * (i - (number - 1) / 2) for total, number in clusters for i in range(number)]


class End(NamedTuple):
    """The end of a line that wants a name."""

    text: str
    x: float
    y: float
    style: Style
    number: str = ""
    """What stands before the name."""
    joined: bool = True
    """True if a thin line joins the name and the end."""


def beside(panel: Axes, ends: Sequence[End], *, long: bool = False) -> list[End]:
    """Name the lines right of the axes, each joined with its last point. The first ends come first where there is no room for all.

    A `long` mark shows the dash on both sides of its marker.

    Returns:
        The ends that had no room.
    """
    height = panel.get_window_extent().height / panel.get_figure(root=True).dpi  # type: ignore[union-attr]
    room = int(height / LABEL) + 1
    half = LONG_MARK if long else MARK
    numbers = NUMBER if any(end.number for end in ends) else 0.0
    if numbers:
        panel.text(1.03 + 2 * half + numbers, 1.03, "median", transform=panel.transAxes, fontsize=7, ha="right")
    inside = panel.transData + panel.transAxes.inverted()
    placed = sorted(((float(inside.transform((end.x, end.y))[1]), end) for end in ends[:room]), key=lambda item: item[0])
    for y, (_, end) in zip(spread([place for place, _ in placed], LABEL / height), placed, strict=True):
        own, at = end.style, panel.transAxes
        if end.joined:
            arrow = {"arrowstyle": "-", "color": own.colour, "linewidth": 0.7, "alpha": 0.6, "shrinkA": 0, "shrinkB": 3}
            panel.annotate("", (end.x, end.y), (1.03, y), textcoords=at, arrowprops=arrow, annotation_clip=False)
        (mark,) = panel.plot(
            [1.03, 1.03 + half, 1.03 + 2 * half], [y] * 3, color=own.colour, linestyle=own.dash, transform=at, clip_on=False
        )
        mark.set(marker=own.marker or "", markersize=4.5, markevery=[1])
        panel.text(1.05 + 2 * half + numbers, y, end.text, transform=at, fontsize=8.5, va="center")
        panel.text(1.03 + 2 * half + numbers, y, end.number, transform=at, fontsize=8.5, va="center", ha="right")
    return list(ends[room:])


def sign(label: str, **settings: Any) -> Any:
    """An entry of a key."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **{"color": INK, "markersize": 4.5, "linestyle": "", **settings})


def patch(label: str) -> Any:
    """An entry of a key for a shade."""
    from matplotlib.patches import Patch

    return Patch(color=GREY, alpha=0.2, linewidth=0, label=label)


def entry(end: End) -> Any:
    """The key's entry of a line without a name beside it."""
    return sign(end.text, color=end.style.colour, marker=end.style.marker, linestyle=end.style.dash)
