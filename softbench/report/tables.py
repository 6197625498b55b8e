"""Renders rows as tables for a terminal or a log. Prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from softbench.core import text as units
from softbench.core.case import DO_BENCH, TIMERS
from softbench.core.outcome import FAILURES, Grade, Status
from softbench.plugins.info import BackendInfo
from softbench.report import markup, matrix, rich_tables
from softbench.report.cell_texts import CELL, WORDS, us_text
from softbench.results import labels
from softbench.results.rows import Row, grouped
from softbench.results.select import apart

FEW = 2  # unavailable backends whose reasons a table gives; of more it gives the names
FINITE_ONLY = "finite-only: NaN in rows that hold -inf"


def results(rows: Sequence[Row], console: Console, *, all_reasons: bool = False) -> RenderableType:
    """A table for each section of `matrix`; below them the notes."""
    parts: list[RenderableType] = []
    for section in _sections(rows):
        parts += [*matrix.tables(section, console), Text()]
    parts += notes(rows, all_reasons=all_reasons)
    return Group(*parts)


def _sections(rows: Sequence[Row]) -> list[matrix.Section]:
    """The sections of each GPU model, or of each card if two have one cell."""
    return [section for some in apart(rows) for section in matrix.sections(some)]


def failures(rows: Sequence[Row]) -> list[str]:
    """A line per failing status and reason, with the affected backends and cells."""
    return [_reason(status, reason, same).plain for (status, reason), same in _by_reason(rows).items() if status in FAILURES]


def _by_reason(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each status and reason, except cells that are fine."""
    told = (row for row in rows if row.status != Status.OK or row.reason.startswith("no device time"))
    return grouped(told, lambda row: (row.status, row.reason))


def notes(rows: Sequence[Row], *, all_reasons: bool = False, signs: bool = True) -> list[Text]:
    """The meaning of the signs, and a line per status and reason with the affected backends and cells.

    Without `signs` the table has the classes as words. Many unavailable backends are one line without reasons, unless `all_reasons`.
    """
    legend, limited = (["* fastest", "= ties for the fastest"], "~ ") if signs else ([], "")
    low = {row.dtype for row in rows if row.grade == Grade.LOW_PRECISION and row.gbps}
    if low:
        legend.append(f"{limited}low-precision" + (": rounds intermediates to 16 bits" if low - {"fp32"} else ", for the reason below"))
    if any(row.grade == Grade.FINITE_ONLY and row.gbps for row in rows):
        legend.append(f"{limited}{FINITE_ONLY}")
    if signs and any(row.doubtful for row in rows):
        legend.append("! doubtful, for the reason below")
    lines = [Text("; ".join(legend), style="dim")] if legend and any(row.median_us for row in rows) else []
    lines += [*_right(rows), *_cards(rows), *_without_copy(rows), *_hosts(rows), *_limited(rows)]
    unavailable = list(dict.fromkeys(row.backend for row in rows if row.status == Status.UNAVAILABLE))
    folded = len(unavailable) > FEW and not all_reasons
    reasons = _by_reason(rows).items()
    lines += [_reason(status, reason, same) for (status, reason), same in reasons if not (folded and status == Status.UNAVAILABLE)]
    if folded:
        lines.append(Text(f"unavailable: {units.few(unavailable)}; the reasons: softbench show --long, or softbench list on this machine"))
    for label, meaning in labels.MEANING.items():
        cells = Counter(row.backend for row in rows if label in row.labels.split())
        if cells:
            where = ", ".join(f"{units.count(count, 'cell')} of {name}" for name, count in cells.items())
            where = where if len(cells) <= units.NAMED else f"{units.count(cells.total(), 'cell')} of {units.count(len(cells), 'backend')}"
            lines.append(Text.assemble((label, "dim" if label in labels.HARMLESS else "yellow"), f" ({where}): {meaning}"))
    return lines


def _right(rows: Sequence[Row]) -> list[Text]:
    """How many timed cells lie within the bound; none without a check."""
    right = sum(row.timed and row.grade == Grade.PASS for row in rows)
    return [Text(f"correct: {units.count(right, 'timed cell')} within the bound", style="dim")] if right else []


def _cards(rows: Sequence[Row]) -> list[Text]:
    """A line for each GPU model whose cards shared a sweep. Cards that have one cell are shown apart, and need none."""
    found = [list(dict.fromkeys(row.unit for row in some)) for some in apart(rows)]
    return [
        Text(f"cells of {units.count(len(cards), 'card')}: {units.few(cards)}; --long has the card of each")
        for cards in found
        if len(cards) > 1
    ]


def _without_copy(rows: Sequence[Row]) -> list[Text]:
    """Why cells beside a measured `copy` have no percentage."""
    copies = {(row.run, row.unit, row.case) for row in rows if row.grade == Grade.YARDSTICK and row.median_us}
    lacking = [row for row in rows if row.timed and not row.of_copy and row.grade != Grade.YARDSTICK]
    cells = sum((row.run, row.unit, row.case) in copies for row in lacking)
    what = "copy has a doubtful label there, or took 1.5 times as long as the cell: measure again when nothing else runs"
    return [Text(f"without % of copy ({units.count(cells, 'cell')}): {what}")] if cells else []


def _hosts(rows: Sequence[Row]) -> list[Text]:
    """Which backends keep the host busy for longer than the GPU, and which calls cannot be queued, as they wait for the GPU."""
    slow = [row for row in rows if row.timer == TIMERS[0] and row.host_us and row.median_us and row.host_us > row.median_us]
    takes = [
        f"{name} {us_text(median(row.host_us for row in some if row.host_us))} ({units.count(len(some), 'cell')})"
        for name, some in grouped(slow, lambda row: row.backend).items()
    ]
    found = [Text(f"host time, where it is longer than the GPU's and an eager program waits for it: {', '.join(takes)}")] if takes else []
    waiting = Counter(row.backend for row in rows if row.timer == DO_BENCH) if any(row.timer == TIMERS[0] for row in rows) else Counter()
    for name, cells in waiting.items():
        found.append(
            Text(f"{name}: timed by do_bench ({units.count(cells, 'cell')}), since its calls wait for the GPU; the host is in the time")
        )
    return found


def _reason(status: str, reason: str, rows: Sequence[Row]) -> Text:
    names = list(dict.fromkeys(row.backend for row in rows))
    where = _span(rows) if len(names) == 1 else units.count(len(rows), "cell")
    style = "red" if status in FAILURES else "" if status == Status.OK else "yellow"
    return Text.assemble((f"{units.few(names)}: {status}", style), f" ({where}): {reason}")


def _span(rows: Sequence[Row]) -> str:
    """`forward fp32 8x16`, or `3 cells, ... to ...`."""
    first, last = (f"{row.of_pass} {row.dtype} {row.case.size}" for row in (rows[0], rows[-1]))
    return first if len(rows) == 1 else f"{units.count(len(rows), 'cell')}, {first} to {last}"


def _limited(rows: Sequence[Row]) -> list[Text]:
    """A line per backend that is finite-only, or of low precision in fp32, with the reason of its worst cell."""
    told = [row for row in rows if row.grade == Grade.FINITE_ONLY or (row.grade == Grade.LOW_PRECISION and row.dtype == "fp32")]
    limited = grouped((row for row in told if row.status == Status.OK and row.reason), lambda row: (row.backend, row.grade))
    worst = {which: max(some, key=lambda row: row.error_over_bound or 0) for which, some in limited.items()}
    return [Text(f"{name}: {grade} ({_span(some)}): {worst[name, grade].reason}") for (name, grade), some in limited.items()]


def cells(rows: Sequence[Row]) -> RenderableType:
    """One line per cell, with its latency, spread, build and check."""
    head, lines, numbers = _cells(rows)
    table = rich_tables.table(head, numbers)
    for line in lines:
        table.add_row(*line)
    found = notes(rows, all_reasons=True, signs=False)
    return Group(table, *([Text(), *found] if found else []))


def _cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]], set[int]]:
    """The names of the columns, the lines, and the indexes of the right-aligned columns."""
    several = len({row.unit for row in rows}) > 1
    head = [name for name in CELL if several or name != "unit"]
    return head, [[CELL[name](row) for name in head] for row in rows], {i for i, name in enumerate(head) if name not in WORDS}


def as_markdown(rows: Sequence[Row], *, long: bool = False) -> str:
    """The tables of `results`, or of `cells` if `long`, as Markdown; below them the notes as a list."""
    parts = [markup.table(*_cells(rows))] if long else [matrix.as_markdown(section) for section in _sections(rows)]
    below = [f"- {markup.safe(note.plain)}" for note in notes(rows, all_reasons=long, signs=not long)]
    return "\n\n".join([*parts, *(["\n".join(below)] if below else [])])


def state(backend: BackendInfo) -> tuple[str, str]:
    """`available`, `unavailable`, `broken` or `not loaded`, and the reason of the second and third."""
    if backend.broken:
        return "broken", backend.broken
    if backend.unavailable:
        return "unavailable", backend.unavailable
    return "available" if backend.loaded else "not loaded", ""


def info(backend: BackendInfo) -> tuple[str, str, str]:
    """A backend's row for `facts`. Where it comes from is told of plugins only."""
    now, reason = state(backend)
    reuse = "; reuses its output" if backend.reuses_output else ""
    return backend.name, now, f"{reason or backend.summary}{reuse}{'' if backend.origin.own else f' [{backend.origin.shown}]'}"


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


def verdict(found: Mapping[str, Any]) -> Table:
    """A verdict of the judge (`softbench.run.signed_verdict`)."""
    had = [level for level, there in found["confinement"].items() if there]
    lacking = [level for level, there in found["confinement"].items() if not there]
    rows = [
        (
            "plugin",
            "",
            ", ".join(word for word in (found["backend"], found["plugin"], found["sha256"] and f"sha256 {found['sha256'][:16]}") if word),
        ),
        ("case", "", f"{found['case']} on {found['device']}"),
        ("verdict", str(found["status"]), str(found["reason"] or f"every output is right ({found['class']})")),
    ]
    if found["status"] == Status.OK:
        about = f"{units.micros(found['us'])} a call; " if found["us"] else ""
        if found.get("low_us"):
            low, high = (units.micros(found[name]) for name in ("low_us", "high_us"))
            about = f"{units.micros(found['us'])} a call, 95 % interval {low} to {high}; "
        rows.append(("time", "", f"{about}at most {units.micros(found['at_most_us'])}, over {found['calls']} calls in a row"))
    if found["gbps"]:
        rows.append(("bandwidth", "", f"{units.three_digits(found['gbps'])} GB/s"))
    rows.append(("confined", "", ", ".join(had) or "not at all"))
    return facts([*rows, *([("not confined", "", ", ".join(lacking))] if lacking else [])])
