"""Draws figures from rows: bandwidth over N, or one bar per backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbench.core.errors import ResultsError, UsageError
from softbench.core.outcome import Grade
from softbench.results import by_backend
from softbench.results.rows import Row

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's palette, which colour-blind readers can tell apart; markers repeat the distinction in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#F0E442")
LINES = ("-", "--", ":", "-.")  # of the first file, the second, and so on
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")


def write(runs: Sequence[tuple[Path, Sequence[Row]]], out: Path) -> list[Path]:
    """One figure for each (direction, dtype, M): GB/s over N, and the fraction of copy below. Returns the files.

    Several runs are overlaid: the first solid, the next dashed, dotted. With several figures, each file's name
    has the group: `out-forward-bf16-M4096.png`.

    Raises:
        UsageError: a format that is not png, svg or pdf.
        ResultsError: nothing to draw, or the file cannot be written.
    """
    import pandas

    if out.suffix not in FORMATS:
        raise UsageError(f"-o {out}: the file must end in {', '.join(FORMATS)}")
    rows = [
        {"source": number, **{name: getattr(row, name) for name in Row.__slots__}}
        for number, (_, run) in enumerate(runs)
        for row in run
        if row.gbps
    ]
    frame = pandas.DataFrame(rows)
    if frame.empty:
        raise ResultsError("no cell has a bandwidth, so there is nothing to draw")
    labels = _source_labels(runs)
    groups = list(frame.groupby(["direction", "dtype", "M"], sort=False))
    files = []
    for (direction, dtype, M), group in groups:
        file = out if len(groups) == 1 else out.with_name(f"{out.stem}-{direction}-{dtype}-M{M}{out.suffix}")
        _figure(group, _plain(f"softmax {direction}, {dtype}, M = {M}, {' and '.join(group['device'].unique())}"), labels, file)
        files.append(file)
    return files


def backends(run: Sequence[Row], out: Path) -> Path:
    """Draw one bar per backend: the mean fraction of copy over the cells of a direction, best first.

    Raises:
        UsageError, ResultsError: as `write`.
    """
    if out.suffix not in FORMATS:
        raise UsageError(f"-o {out}: the file must end in {', '.join(FORMATS)}")
    costs = {name: cost for name, cost in by_backend.by_backend(run).items() if cost.of_copy}
    directions = list(dict.fromkeys(direction for cost in costs.values() for direction in cost.of_copy))
    if not directions:
        raise ResultsError("no cell has a fraction of copy, so there is nothing to draw")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (7 * len(directions), 1.5 + 0.22 * len(costs))
    figure, axes = pyplot.subplots(1, len(directions), figsize=size, squeeze=False, layout="constrained")
    for panel, direction, colour in zip(axes[0], directions, COLOURS, strict=False):
        bars = sorted((cost.of_copy[direction], name) for name, cost in costs.items() if direction in cost.of_copy)
        drawn = panel.barh([_plain(name) for _, name in bars], [fraction for fraction, _ in bars], color=colour)
        panel.bar_label(drawn, fmt="{:.0%}", padding=2, fontsize=7)
        panel.tick_params(axis="y", labelsize=7)
        panel.set_xlim(0, 1.1)
        panel.margins(y=0.01)
        panel.grid(axis="x", alpha=0.3)
        panel.set_title(_plain(f"softmax {direction}, {run[0].device}"))
        times = " by device times" if any(cost.by_device for cost in costs.values()) else ""
        means = "geometric mean over its measured cells, each at most 1"
        panel.set_xlabel(f"fraction of the same-bytes yardstick{times}\n{means}\nhigher is better")
    return _saved(figure, out)


def _source_labels(runs: Sequence[tuple[Path, Sequence[Row]]]) -> list[str]:
    """The runs' names in the legend: the devices if they differ, else the files."""
    if len(runs) == 1:
        return [""]
    devices = [rows[0].device for _, rows in runs]
    return [f", {_plain(name)}" for name in (devices if len(set(devices)) == len(runs) else [str(path) for path, _ in runs])]


def _plain(text: str) -> str:
    """Text for matplotlib, in which a dollar sign would start a formula."""
    return text.replace("$", r"\$")


def _figure(group: pandas.DataFrame, title: str, labels: Sequence[str], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    fractions = bool(group.loc[group["grade"] != Grade.YARDSTICK, "of_copy"].notna().any())
    size = (9, 7 if fractions else 5)
    figure, axes = pyplot.subplots(2 if fractions else 1, 1, figsize=size, sharex=True, squeeze=False, layout="constrained")
    panels: list[Any] = list(axes[:, 0])
    names = list(group.loc[group["grade"] != Grade.YARDSTICK, "backend"].unique())
    for (source, name), lines in group.groupby(["source", "backend"], sort=False):
        _curve(panels, lines.sort_values("N"), name, names, LINES[source % len(LINES)], labels[source])
    _label(panels, group, title)
    _saved(figure, file)


def _saved(figure: Figure, file: Path) -> Path:
    from matplotlib import pyplot

    try:
        figure.savefig(file, dpi=150)
    except OSError as error:
        raise ResultsError(f"-o {file}: cannot be written: {error.strerror}") from None
    finally:
        pyplot.close(figure)
    return file


def _curve(panels: Sequence[Axes], lines: pandas.DataFrame, name: str, names: Sequence[str], line: str, source: str) -> None:
    """Draw one backend of one run: its bandwidth with the p20..p80 band, and its fraction of copy below."""
    yardstick = name not in names
    if yardstick:
        style: dict[str, Any] = {"color": "0.35", "linestyle": line, "linewidth": 1}
    else:
        index = names.index(name)
        style = {"color": COLOURS[index % len(COLOURS)], "linestyle": line, "linewidth": 1.5, "markersize": 4}
        style["marker"] = MARKERS[index % len(MARKERS)]
    label = _plain(name) + (" (yardstick)" if yardstick else "") + source
    if (lines["grade"] == Grade.LOW_PRECISION).any():
        label += " (low-precision)"
    panels[0].plot(lines["N"], lines["gbps"], label=label, **style)
    bytes_moved = lines["gbps"] * lines["median_us"]
    low, high = bytes_moved / lines["p80_us"], bytes_moved / lines["p20_us"]
    panels[0].fill_between(lines["N"], low, high, color=style["color"], alpha=0.15, linewidth=0)
    if len(panels) > 1 and not yardstick:
        panels[1].plot(lines["N"], lines["of_copy"], **style)


def _label(panels: Sequence[Axes], group: pandas.DataFrame, title: str) -> None:
    panels[0].set_title(title)
    peaks = {round(float(peak)) for peak in (group["gbps"] / group["of_peak"]).dropna()}
    if len(peaks) == 1:  # several devices have different peaks
        panels[0].axhline(*peaks, color="0.6", linewidth=1, linestyle="--", label="datasheet peak")
    panels[0].set_ylabel("bandwidth (GB/s, higher is better)\nmedian, band p20-p80")
    panels[0].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)  # outside the axes, so that it hides no data
    if len(panels) > 1:
        panels[1].set_ylabel("fraction of the same-bytes yardstick")
        panels[1].axhline(1, color="0.35", linewidth=1)
    wide = group["N"].max() >= 32 * group["N"].min()
    for panel in panels:
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        if wide:
            panel.set_xscale("log", base=2)
    panels[-1].set_xlabel("N, columns of a row")
