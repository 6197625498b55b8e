"""Renders rows as tables for a terminal or a log. Prints nothing.

Signs are ASCII, so that every encoding has them: `*` the fastest of a row, `~` low-precision, `!` doubtful.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from softbench.core import text as units
from softbench.core.case import TIMERS
from softbench.core.outcome import FAILURES, Grade, Status
from softbench.plugins.info import BackendInfo
from softbench.results import labels
from softbench.results.compare import Pair
from softbench.results.rows import IMPLAUSIBLE, Row

CAPTIONS = ("GB/s, % of copy, speed-up over {0}", "GB/s, % of copy", "GB/s")
"""The contents of a table cell, most detailed first; a narrow terminal gets less."""
CELL = (
    *("backend", "direction", "dtype", "M", "N", "status", "class"),
    *("median", "p20..p80", "n", "GB/s", "device", "host", "kernels", "build", "error/bound", "labels"),
)
"""The columns of `cells`."""
SEPARATOR = " │ "
"""What stands between two columns."""


def results(rows: Sequence[Row], console: Console) -> RenderableType:
    """A table per (direction, dtype, M) with a row per N and a column per backend; below them every reason once."""
    sections: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        sections.setdefault((row.direction, row.dtype, row.M), []).append(row)
    parts: list[RenderableType] = []
    for section in sections.values():
        parts += [*_fitting(section, console), Text()]
    parts += notes(rows)
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class _Section:
    """The rows of one (direction, dtype, M), as its tables need them."""

    rows: Sequence[Row]
    cells: Mapping[tuple[int, str], Row]
    """By N and backend."""
    best: Mapping[int, Row | None]
    """The fastest cell of each N, in the order of the rows."""
    has_doubtful: bool


def _section(rows: Sequence[Row]) -> _Section:
    contenders: dict[int, list[Row]] = {row.N: [] for row in rows}
    for row in rows:
        if row.status == Status.OK and IMPLAUSIBLE not in row.labels and row.grade != Grade.YARDSTICK:
            contenders[row.N].append(row)
    best = {N: min(some, key=lambda row: row.median_us or 0, default=None) for N, some in contenders.items()}
    return _Section(rows, {(row.N, row.backend): row for row in rows}, best, any(_doubtful(row) for row in rows))


def _fitting(rows: Sequence[Row], console: Console) -> list[RenderableType]:
    """The section's table in the most detail that fits the console, or several tables if none fits."""
    section = _section(rows)
    names = list(dict.fromkeys(row.backend for row in rows if row.status != Status.UNAVAILABLE))
    names = names or list(dict.fromkeys(row.backend for row in rows))
    across = 0
    for detail in range(len(CAPTIONS)):
        across = _across(section, names, detail, console)
        if across == len(names):
            break
    across = max(1, across)
    return [_title(rows, detail), *(_matrix(section, names[i : i + across], detail) for i in range(0, len(names), across))]


def _across(section: _Section, names: Sequence[str], detail: int, console: Console) -> int:
    """How many backends' columns fit the console in this detail; 0 if a column alone does not."""
    lead = max(len(str(N)) for N in section.best)
    ends = [0, *accumulate(len(SEPARATOR) + _width(section, name, detail) for name in names)]
    for across in range(len(names), 0, -1):
        if all(lead + ends[min(i + across, len(names))] - ends[i] <= console.width for i in range(0, len(names), across)):
            return across
    return 0


def _width(section: _Section, name: str, detail: int) -> int:
    """The width of a backend's column, characters."""
    cells = (_cell(section.cells.get((N, name)), detail, best, has_doubtful=section.has_doubtful) for N, best in section.best.items())
    return max(cell_len(name), max(cell.cell_len for cell in cells))


def _title(section: Sequence[Row], detail: int) -> Text:
    first = section[0]
    clock = next((f" ({row.timer}, {row.l2} L2)" for row in section if row.l2 and (row.timer, row.l2) != (TIMERS[0], "cold")), "")
    relative = next((row.relative_to for row in section if row.relative_to), "")
    caption = CAPTIONS[detail if relative else max(detail, 1)].format(relative)
    return Text(f"{first.direction} {first.dtype}, M={first.M}, {first.device}{clock}: {caption}", style="bold")


def _matrix(section: _Section, names: Sequence[str], detail: int) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("N", justify="right", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for N, best in section.best.items():
        shown = (_cell(section.cells.get((N, name)), detail, best, has_doubtful=section.has_doubtful) for name in names)
        table.add_row(str(N), *shown)
    return table


def _doubtful(row: Row) -> bool:
    """True if the cell has a label that is not harmless. L2-resident is harmless."""
    return bool(set(row.labels.split()) - labels.HARMLESS)


def _cell(row: Row | None, detail: int, best: Row | None, *, has_doubtful: bool) -> Text:
    if row is None:
        return Text("-", style="dim")
    if row.status != Status.OK:
        return Text(row.status + "  ", style="red" if row.status in FAILURES else "dim")
    sign = ("!" if _doubtful(row) else " ") * has_doubtful
    if IMPLAUSIBLE in row.labels:
        return Text(IMPLAUSIBLE + "  " + sign, style="red")
    text = units.bandwidth(row.gbps).rjust(5) if row.gbps else units.micros(row.median_us or 0)
    if row.grade == Grade.YARDSTICK:
        return Text(text + "  " + sign, style="dim")
    if detail <= 1 and row.of_copy:
        text += f"{row.of_copy:5.0%}"
    if detail == 0 and row.speedup:
        text += f"{row.speedup:6.2f}x"
    signs = ("~" if row.grade == Grade.LOW_PRECISION else " ") + ("*" if row is best else " ") + sign
    return Text(text + signs, style="bold green" if row is best else "")


def notes(rows: Sequence[Row]) -> list[Text]:
    """The meaning of the signs, and a line per backend, status and reason with the affected cells."""
    legend = ["* fastest"]
    low = {row.dtype for row in rows if row.grade == Grade.LOW_PRECISION and row.gbps}
    if low:
        legend.append("~ low-precision" + (": rounds intermediates to 16 bits" if low - {"fp32"} else ", for the reason below"))
    if any(_doubtful(row) for row in rows):
        legend.append("! doubtful, for the reason below")
    lines = [Text("; ".join(legend), style="dim")] if any(row.median_us for row in rows) else []
    lines += _low_precision(rows)
    grouped: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.status != Status.OK or row.reason.startswith("no device time"):
            grouped.setdefault((row.backend, row.status, row.reason), []).append(row)
    for (name, status, reason), same_reason in grouped.items():
        style = "red" if status in FAILURES else "" if status == Status.OK else "yellow"
        lines.append(Text.assemble((f"{name}: {status}", style), f" ({_span(same_reason)}): {reason}"))
    for label, meaning in labels.MEANING.items():
        backends = Counter(row.backend for row in rows if label in row.labels.split())
        if backends:
            where = ", ".join(f"{units.count(count, 'cell')} of {name}" for name, count in backends.items())
            lines.append(Text.assemble((label, "dim" if label in labels.HARMLESS else "yellow"), f" ({where}): {meaning}"))
    return lines


def _span(rows: Sequence[Row]) -> str:
    """`forward fp32 8x16`, or `3 cells, ... to ...`."""
    first, last = (f"{row.direction} {row.dtype} {row.M}x{row.N}" for row in (rows[0], rows[-1]))
    return first if len(rows) == 1 else f"{units.count(len(rows), 'cell')}, {first} to {last}"


def _low_precision(rows: Sequence[Row]) -> list[Text]:
    """A line per backend of low precision in fp32, with the reason of its worst cell."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        if row.grade == Grade.LOW_PRECISION and row.status == Status.OK and row.dtype == "fp32" and row.reason:
            grouped.setdefault(row.backend, []).append(row)
    worst = {name: max(some, key=lambda row: row.error_over_bound or 0) for name, some in grouped.items()}
    return [Text(f"{name}: low-precision ({_span(some)}): {worst[name].reason}") for name, some in grouped.items()]


def cells(rows: Sequence[Row]) -> RenderableType:
    """One line per cell, with its latency, spread, build and check."""
    table = Table(show_edge=False, pad_edge=False)
    for name in CELL:
        table.add_column(name, justify="right" if name in CELL[7:-1] or name in ("M", "N") else "left", no_wrap=True)
    for row in rows:
        spread = f"{units.micros(row.p20_us)}..{units.micros(row.p80_us)}" if row.p20_us and row.p80_us else ""
        table.add_row(
            *(row.backend, row.direction, row.dtype, str(row.M), str(row.N), row.status, row.grade),
            units.micros(row.median_us) if row.median_us else "",
            spread,
            str(row.n or ""),
            units.bandwidth(row.gbps) if row.gbps else "",
            *(units.micros(us) if us else "" for us in (row.device_us, row.host_us)),
            str(row.kernels or ""),
            f"{row.build_s:.3g} s {row.build_cache}".strip() if row.build_s is not None else "",
            f"{row.error_over_bound:.3g}" if row.error_over_bound is not None else "",
            row.labels,
        )
    return Group(table, Text(), *notes(rows))


def comparison(pairs: Sequence[Pair], names: tuple[str, str]) -> RenderableType:
    """One line per cell: both bandwidths, their ratio, and a sign if it is beyond the noise of both."""
    table = Table(show_edge=False, pad_edge=False)
    for name in ("backend", "direction", "dtype", "M", "N", f"A: {names[0]}", f"B: {names[1]}", "B/A", ""):
        table.add_column(name, justify="left" if name in ("backend", "direction", "dtype", "") else "right", no_wrap=True)
    for pair in pairs:
        style = {"faster": "green", "slower": "red"}.get(pair.verdict, "dim" if pair.verdict == "~" else "yellow")
        figures = [f"{units.bandwidth(gbps)} GB/s" if gbps else "" for gbps in (pair.a_gbps, pair.b_gbps)]
        ratio = f"{pair.ratio:.3f}" if pair.ratio else ""
        direction, dtype, M, N = pair.case
        table.add_row(pair.backend, direction, dtype, str(M), str(N), *figures, ratio, Text(pair.verdict, style=style))
    return table


def info(backend: BackendInfo) -> tuple[str, str, str]:
    """A backend's row for `facts`."""
    state, text = (
        ("broken", backend.broken)
        if backend.broken
        else ("unavailable", backend.unavailable)
        if backend.unavailable
        else ("available", backend.summary)
        if backend.loaded
        else ("not loaded", backend.summary)
    )
    reuse = "; reuses its output" if backend.reuses_output else ""
    return backend.name, state, f"{text}{reuse} [{backend.origin.shown}]"


def facts(pairs: Sequence[tuple[str, str, str]]) -> Table:
    """Three columns: name, state and text."""
    table = Table(show_header=False, show_edge=False, pad_edge=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, state, text in pairs:
        style = {"ok": "green", "available": "green", "missing": "red", "broken": "red"}.get(state, "yellow")
        table.add_row(Text(name), Text(state, style=style), Text(text))
    return table
