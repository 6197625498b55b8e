"""Renders rows as tables for a terminal or a log. Prints nothing."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from softbench.core import text as units
from softbench.core.case import DO_BENCH, TIMERS
from softbench.core.outcome import FAILURES, Grade, Status
from softbench.core.text import count
from softbench.plugins.info import BackendInfo
from softbench.report import answer, markup, matrix, rich_tables, users_calls
from softbench.report.cell_texts import CELL, WORDS, us_text
from softbench.report.standings import standings
from softbench.results.columns import HARMLESS, LABELS, Row, grouped
from softbench.results.select import apart

REASONS = 4
"""Reasons below the tables, unless all are asked for."""
CARDS = 4
"""Cards or GPU models that are shown apart, unless all are asked for."""
HOSTS = 4
"""Backends whose host time is told, those of the longest."""
TABLES = 8
"""Tables of a file, unless all are asked for."""
LINES, ALL_LINES, FEWEST_LINES = 24, 72, 8
"""The most lines of a table, of all tables together in a log, and how many each may always have."""
OTHER_LINES, HEAD_LINES = 14, 4
"""Lines of a terminal that the answer and the notes take, and those around each table."""
MIN_WRAPPED = 30
FINITE_ONLY = "finite-only: NaN in rows that hold -inf"
TOLERANCE = "tolerance: within the problem's own tolerance only"
STARTED = re.compile(r"\brun-(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)\d\d")
LEGEND = {matrix.WINS: "* fastest", matrix.TIES: "= ties for the fastest", "!": "! doubtful"}


def results(rows: Sequence[Row], console: Console, source: str = "", *, wide: bool = False, every: bool = False) -> RenderableType:
    """For each GPU model, or each card if two have one cell: what was measured, the answer, and the tables. Below them the notes.

    Args:
        source: the name of the file.
        wide: all N and backends, with all notes; else what fits the console.
        every: all notes.
    """
    parts, shown, left_out = list[RenderableType](), list[matrix.Shown](), 0
    several = apart(rows)
    told = several if wide else several[:CARDS]
    for some in told:
        found = standings(some)
        sections = matrix.sections(some, found, merged=not wide)
        most = len(sections) if wide else max(1, TABLES // len(told))
        made = [_table(section, console, len(sections[:most]), wide=wide) for section in sections[:most]]
        parts += [Text(heading(some, source), style="dim"), *_answer(answer.lines(some, found), console), Text()]
        parts += [part for one in made for part in (*one.parts(), Text())]
        parts += [users_calls.title(some), calls, Text()] if (calls := users_calls.table(some)) else []
        shown += made
        left_out += len(sections) - len(made)
    cut = [f"{count(len(several) - len(told), 'card')} more"] if len(told) < len(several) else []
    cut += [f"{count(left_out, 'table')} more"] if left_out else []
    cut += ["the tables are cut to fit"] if any(one.cut for one in shown) else []
    parts += [Text(f"{'; '.join(cut)}: --wide shows everything; --op, --direction, --dtype, --M, --N, --backends choose")] if cut else []
    below = notes(rows, signs="".join(matrix.signs(shown)), every=every or wide)
    for note in below if not console.is_terminal else ():
        note.no_wrap, note.overflow = True, "ignore"  # in a log a reason is one line, which a search finds
    return Group(*parts, *below)


def _table(section: matrix.Section, console: Console, tables: int, *, wide: bool) -> matrix.Shown:
    """One of so many tables of a console."""
    graphic = bool(console.is_terminal and console.color_system and not console.no_color and console.encoding.startswith("utf"))
    room = console.height - OTHER_LINES - HEAD_LINES * tables if console.is_terminal else ALL_LINES
    lines = min(LINES, max(FEWEST_LINES, room // tables))
    return matrix.whole(section) if wide else matrix.fitted(section, console.width, lines, graphic=graphic)


def heading(rows: Sequence[Row], source: str = "") -> str:
    """The file, the device, the timer unless it is the default, and the date of rows that are shown together."""
    timers = list(dict.fromkeys((row.timer, row.l2) for row in rows if row.l2))
    clock = f", {timers[0][0]} with {timers[0][1]} L2" if timers and (TIMERS[0], "cold") not in timers else ""
    days = sorted(STARTED.findall(" ".join(dict.fromkeys(row.run for row in rows))))
    dates = ["{}-{}-{} {}:{}".format(*day) for day in dict.fromkeys(days[:1] + days[-1:])]
    if len(dates) > 1 and dates[0].split()[0] == dates[1].split()[0]:
        dates[1] = dates[1].split()[1]
    able = sum(row.status != Status.UNAVAILABLE for row in rows)
    devices = " and ".join(dict.fromkeys(row.device for row in rows))
    about = [f"{count(able, 'cell')} on {devices}{clock}", *([f"{' to '.join(dates)} UTC"] if dates else [])]
    return f"{source}: {', '.join(about)}" if source else ", ".join(about)


def answers(rows: Sequence[Row], console: Console) -> RenderableType:
    """The answer alone, with the device if there are several."""
    several = apart(rows)
    parts = [
        ([Text(heading(some))] if len(several) > 1 else []) + _answer(answer.lines(some, standings(some)), console) for some in several
    ]
    return Group(*(line for lines in parts for line in lines))


def _answer(lines: Sequence[answer.Line], console: Console) -> list[Text]:
    """The lines, wrapped behind their names."""
    indent = max(len(line.name) for line in lines) + 2
    found = []
    for line in lines:
        first, *others = textwrap.wrap(line.text, max(MIN_WRAPPED, console.width - indent), break_long_words=False, break_on_hyphens=False)
        found.append(Text.assemble((line.name.ljust(indent), f"bold {line.style}"), first))
        found += [Text(" " * indent + other) for other in others]
    return found


def failures(rows: Sequence[Row]) -> list[str]:
    """A line per failing status and reason, with the affected backends and cells."""
    return [_reason(status, reason, same).plain for (status, reason), same in _by_reason(rows).items() if status in FAILURES]


def _by_reason(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each status and reason, except cells that are fine."""
    told = (row for row in rows if row.status != Status.OK or row.reason.startswith("no device time"))
    return grouped(told, lambda row: (row.status, row.reason))


def notes(rows: Sequence[Row], *, signs: str = "", every: bool = False) -> list[Text]:
    """The meaning of these signs, and a line per status and reason with the affected backends and cells.

    Unless `every` reason is asked for, failures come first, and many unavailable backends and labels are left to the answer.
    """
    cards = _cards(rows) if len({row.unit for row in rows}) > 1 else []
    found = [line for line in (_legend(rows, signs), *cards, *_without_copy(rows), *_hosts(rows)) if line]
    reasons = sorted(_by_reason(rows).items(), key=lambda item: item[0][0] not in FAILURES)
    if every:
        return [*found, *_limited(rows), *(_reason(*which, same) for which, same in reasons), *_labels(rows)]
    if len({row.backend for row in rows if row.status == Status.UNAVAILABLE}) > answer.FEW:
        reasons = [one for one in reasons if one[0][0] != Status.UNAVAILABLE]
    found += [_reason(*which, same) for which, same in reasons[:REASONS]]
    more = len(reasons) - REASONS
    return [*found, *([Text(f"{count(more, 'reason')} more: --wide or --long shows all")] if more > 0 else [])]


def _legend(rows: Sequence[Row], signs: str) -> Text | None:
    """What the signs mean; without signs what the classes mean."""
    low = {row.dtype for row in rows if row.grade == Grade.LOW_PRECISION and row.gbps}
    limits = ["low-precision" + (": rounds intermediates to 16 bits" if low - {"fp32"} else "")] if low else []
    limits += (
        ["tolerance: within the problem's own tolerance only"] if any(row.grade == Grade.TOLERANCE and row.gbps for row in rows) else []
    )
    limits += [FINITE_ONLY] if any(row.grade == Grade.FINITE_ONLY and row.gbps for row in rows) else []
    texts = [meaning for sign, meaning in LEGEND.items() if sign in signs]
    texts += [f"{'~ ' if signs else ''}{limit}" for limit in limits if "~" in signs or not signs]
    texts += ["us: the tensors fit the GPU's L2"] if signs and any(row.in_l2 for row in rows) else []
    if (bound := [row for row in rows if row.of_copy and row.compute_bound]) and (signs or texts):
        mixed = any(row.of_copy and not row.compute_bound for row in rows)
        texts += ["the roof: the matrix products alone" + (f" in {count(len(bound), 'cell')}, else copy" if mixed else "")]
    return Text("; ".join(texts), style="dim") if texts else None


def _labels(rows: Sequence[Row]) -> Iterator[Text]:
    """A line for each label, with its meaning and its cells."""
    for label, meaning in LABELS.items():
        cells = Counter(row.backend for row in rows if label in row.labels.split())
        if cells:
            where = ", ".join(f"{count(number, 'cell')} of {name}" for name, number in cells.items())
            where = where if len(cells) <= units.NAMED else f"{count(cells.total(), 'cell')} of {count(len(cells), 'backend')}"
            yield Text.assemble((label, "dim" if label in HARMLESS else "yellow"), f" ({where}): {meaning}")


def _cards(rows: Sequence[Row]) -> list[Text]:
    """A line for each GPU model whose cards shared a sweep. Cards that have one cell are shown apart, and need none."""
    found = [list(dict.fromkeys(row.unit for row in some)) for some in apart(rows)]
    return [
        Text(f"cells of {count(len(cards), 'card')}: {units.few(cards)}; --long has the card of each") for cards in found if len(cards) > 1
    ]


def _without_copy(rows: Sequence[Row]) -> list[Text]:
    """Why cells beside a measured `copy` have no percentage."""
    copies = {(row.run, row.unit, row.case) for row in rows if row.grade == Grade.YARDSTICK and row.median_us}
    lacking = [row for row in rows if row.timed and not row.of_copy and row.grade != Grade.YARDSTICK and row.timer != "host"]
    cells = sum((row.run, row.unit, row.case) in copies for row in lacking)
    what = "copy has a doubtful label there, or took 1.5 times as long as the cell: measure again when nothing else runs"
    return [Text(f"without % of copy ({count(cells, 'cell')}): {what}")] if cells else []


def _hosts(rows: Sequence[Row]) -> list[Text]:
    """Which backends keep the host busy for longer than the GPU, and which calls cannot be queued, as they wait for the GPU."""
    slow = [row for row in rows if row.timer == TIMERS[0] and row.host_us and row.median_us and row.host_us > row.median_us]
    of_backend = {name: median(row.host_us or 0 for row in some) for name, some in grouped(slow, lambda row: row.backend).items()}
    longest = sorted(of_backend, key=lambda name: -of_backend[name])
    takes = [f"{name} {us_text(of_backend[name])} ({count(sum(row.backend == name for row in slow), 'cell')})" for name in longest[:HOSTS]]
    takes += [f"less for {count(len(longest) - HOSTS, 'backend')}"] if len(longest) > HOSTS else []
    found = [Text(f"host time, where it is longer than the GPU's and an eager program waits for it: {', '.join(takes)}")] if takes else []
    queued = {row.run for row in rows if row.timer == TIMERS[0]}  # other runs asked for do_bench
    waiting = Counter(row.backend for row in rows if row.timer == DO_BENCH and row.run in queued)
    for name, cells in waiting.items():
        found.append(Text(f"{name}: timed by do_bench ({count(cells, 'cell')}), since its calls wait for the GPU; the host is in the time"))
    return found


def _reason(status: str, reason: str, rows: Sequence[Row]) -> Text:
    names = list(dict.fromkeys(row.backend for row in rows))
    where = _span(rows) if len(names) == 1 else count(len(rows), "cell")
    style = "red" if status in FAILURES else "" if status == Status.OK else "yellow"
    return Text.assemble((f"{units.few(names)}: {status}", style), f" ({where}): {reason}")


def _span(rows: Sequence[Row]) -> str:
    """`forward fp32 8x16`, or `3 cells, ... to ...`."""
    first, last = (f"{row.of_pass} {row.dtype} {row.case.size}" for row in (rows[0], rows[-1]))
    return first if len(rows) == 1 else f"{count(len(rows), 'cell')}, {first} to {last}"


def _limited(rows: Sequence[Row]) -> list[Text]:
    """A line per backend that is finite-only, or of low precision in fp32, with the reason of its worst cell."""
    told = [
        row
        for row in rows
        if row.grade in (Grade.FINITE_ONLY, Grade.TOLERANCE) or (row.grade == Grade.LOW_PRECISION and row.dtype == "fp32")
    ]
    limited = grouped((row for row in told if row.status == Status.OK and row.reason), lambda row: (row.backend, row.grade))
    worst = {which: max(some, key=lambda row: row.error_over_bound or 0) for which, some in limited.items()}
    return [Text(f"{name}: {grade} ({_span(some)}): {worst[name, grade].reason}") for (name, grade), some in limited.items()]


def cells(rows: Sequence[Row], source: str = "") -> RenderableType:
    """What was measured, and one line per cell, with its latency, spread, build and check. `source`: the name of the file."""
    found = notes(rows, every=True)
    return Group(Text(heading(rows, source), style="dim"), *rich_tables.long_table(*_cells(rows)), *([Text(), *found] if found else []))


def _cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]], set[int]]:
    """The names of the columns, the lines, and the indexes of the right-aligned columns."""
    several = len({row.unit for row in rows}) > 1
    head = [name for name in CELL if several or name != "unit"]
    return head, [[CELL[name](row) for name in head] for row in rows], {i for i, name in enumerate(head) if name not in WORDS}


def as_markdown(rows: Sequence[Row], source: str = "", *, long: bool = False) -> str:
    """The answer and the whole tables of `results`, or those of `cells` if `long`, as Markdown; below them the notes as a list."""
    parts = [markup.safe(heading(rows, source)), markup.table(*_cells(rows))] if long else []
    for some in () if long else apart(rows):
        found = standings(some)
        lines = "\n".join(f"- **{line.name}**: {markup.safe(line.text)}" for line in answer.lines(some, found))
        parts += [markup.safe(heading(some, source)), lines]
        parts += [matrix.as_markdown(section) for section in matrix.sections(some, found, merged=False)]
        parts += [calls] if (calls := users_calls.as_markdown(some)) else []
    below = [f"- {markup.safe(note.plain)}" for note in notes(rows, signs="" if long else matrix.SIGNS, every=True)]
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
    if found.get("noisy"):
        rows.append(("noisy", "", "the time is uncertain: judge again when no other process of this machine starts or ends"))
    if found["gbps"]:
        rows.append(("bandwidth", "", f"{units.three_digits(found['gbps'])} GB/s"))
    rows.append(("confined", "", ", ".join(had) or "not at all"))
    return facts([*rows, *([("not confined", "", ", ".join(lacking))] if lacking else [])])
