"""Bandwidth over N as a figure. Takes rows, writes a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbench.errors import ResultsError, UsageError
from softbench.model import Grade
from softbench.results import Row

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's palette, which colour-blind readers can tell apart; markers repeat the distinction in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")


def write(rows: Sequence[Row], out: Path) -> list[Path]:
    """One figure for each (direction, dtype, M): GB/s over N, and the fraction of copy below. Returns the files.

    With several figures, each file's name says which it is: `out-forward-bf16-M4096.png`.

    Raises:
        UsageError: a format that is not png, svg or pdf.
        ResultsError: nothing to draw, or the file cannot be written.
    """
    import pandas

    if out.suffix not in FORMATS:
        raise UsageError(f"-o {out}: the file must end in {', '.join(FORMATS)}")
    frame = pandas.DataFrame([{name: getattr(row, name) for name in Row.__slots__} for row in rows if row.gbps])
    if frame.empty:
        raise ResultsError("no cell has a figure, so there is nothing to draw")
    groups = list(frame.groupby(["direction", "dtype", "M"], sort=False))
    files = []
    for (direction, dtype, M), group in groups:
        file = out if len(groups) == 1 else out.with_name(f"{out.stem}-{direction}-{dtype}-M{M}{out.suffix}")
        _figure(group, f"softmax {direction}, {dtype}, M = {M}, {group['device'].iloc[0]}", file)
        files.append(file)
    return files


def _figure(group: pandas.DataFrame, title: str, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    fractions = group["of_copy"].notna().any()
    figure, axes = pyplot.subplots(
        2 if fractions else 1, 1, figsize=(9, 7 if fractions else 5), sharex=True, squeeze=False, layout="constrained"
    )
    panels: list[Any] = list(axes[:, 0])
    names = [name for name in group["backend"].unique() if (group.loc[group["backend"] == name, "grade"] != Grade.YARDSTICK).all()]
    for name in group["backend"].unique():
        lines = group[group["backend"] == name].sort_values("N")
        if name in names:
            place = names.index(name)
            style = {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)], "markersize": 4, "linewidth": 1.5}
        else:
            style = {"color": "0.35", "linestyle": "--", "linewidth": 1.2}
        label = f"{name} (yardstick)" if name not in names else name
        if (lines["grade"] == Grade.LOW_PRECISION).any():
            label += " (low-precision)"
        panels[0].plot(lines["N"], lines["gbps"], label=label, **style)
        bytes_over_us = lines["gbps"] * lines["median_us"]
        panels[0].fill_between(
            lines["N"], bytes_over_us / lines["p80_us"], bytes_over_us / lines["p20_us"], color=style["color"], alpha=0.15, linewidth=0
        )
        if fractions and name in names:
            panels[1].plot(lines["N"], lines["of_copy"], **style)
    _label(panels, group, title, bool(fractions))
    try:
        figure.savefig(file, dpi=150)
    except OSError as error:
        raise ResultsError(f"-o {file}: cannot be written: {error.strerror}") from None
    finally:
        pyplot.close(figure)


def _label(panels: Sequence[Axes], group: pandas.DataFrame, title: str, fractions: bool) -> None:
    panels[0].set_title(title)
    panels[0].set_ylabel("bandwidth (GB/s, higher is better)\nmedian, band p20-p80")
    panels[0].set_ylim(bottom=0)
    panels[0].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    if fractions:
        panels[1].set_ylabel("fraction of the same-bytes copy")
        panels[1].axhline(1, color="0.35", linestyle="--", linewidth=1.2)
        panels[1].set_ylim(bottom=0)
    low, high = group["N"].min(), group["N"].max()
    for panel in panels:
        panel.grid(alpha=0.3)
        if high >= 32 * low:
            panel.set_xscale("log", base=2)
    panels[-1].set_xlabel("N, columns of a row")
