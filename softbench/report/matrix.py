"""The main table: a row per shape and a column per backend, or the other way round if that fits better. Prints nothing.

Signs are ASCII, so that every encoding has them: `*` the fastest of a shape, `~` low-precision, `!` doubtful.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from softbench.core import text as units
from softbench.core.case import TIMERS
from softbench.core.outcome import FAILURES, Grade, Status
from softbench.report import markdown
from softbench.results import labels
from softbench.results.rows import IMPLAUSIBLE, Row

DETAILS = (3, 2, 1)  # numbers of a cell: bandwidth, % of copy, speed-up
LARGE = 10_000  # columns, more than any table needs: asks rich for a natural width
WIDE = 12  # backends; a Markdown table of more has a row per backend


@dataclass(frozen=True, slots=True)
class _Cell:
    """A table cell: its numbers, or one word."""

    numbers: tuple[str, ...]
    signs: str = ""
    style: str = ""
    word: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """The rows of one table: one direction and dtype, and one M (or one N, if only M varies)."""

    rows: tuple[Row, ...]
    axis: str
    """`N` or `M`: what differs between the shapes."""

    @property
    def shapes(self) -> list[int]:
        return list(dict.fromkeys(getattr(row, self.axis) for row in self.rows))

    @property
    def backends(self) -> list[str]:
        """The backends that are available, in the file's order; all of them if none is."""
        names = list(dict.fromkeys(row.backend for row in self.rows if row.status != Status.UNAVAILABLE))
        return names or list(dict.fromkeys(row.backend for row in self.rows))

    @property
    def ranked(self) -> list[str]:
        """The yardstick, then the other backends by their mean time over the fastest of a shape; those without a result last."""
        fastest = {shape: row.median_us or 0 for shape in self.shapes if (row := self.fastest(shape))}
        times: dict[str, list[float]] = {name: [] for name in self.backends}
        for row in self.rows:
            best = fastest.get(getattr(row, self.axis))
            if row.backend in times and row.median_us and best:
                times[row.backend].append(-1 if row.grade == Grade.YARDSTICK else row.median_us / best)
        return sorted(times, key=lambda name: fmean(times[name]) if times[name] else inf)

    def fastest(self, shape: int) -> Row | None:
        """The fastest backend of a shape. The yardstick and implausible cells do not count."""
        rows = [
            row
            for row in self.rows
            if getattr(row, self.axis) == shape
            and row.status == Status.OK
            and IMPLAUSIBLE not in row.labels
            and row.grade != Grade.YARDSTICK
        ]
        return min(rows, key=lambda row: row.median_us or 0, default=None)


def sections(rows: Sequence[Row]) -> list[Section]:
    """A section per direction, dtype and M. Where each M has the same single N, one section holds all of them."""
    by_m: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        by_m.setdefault((row.direction, row.dtype, row.M), []).append(row)
    columns = {key: {row.N for row in some} for key, some in by_m.items()}
    merged: dict[tuple[str, str, int | None, int | None], list[Row]] = {}
    for (direction, dtype, M), some in by_m.items():
        of_dtype = [found for key, found in columns.items() if key[:2] == (direction, dtype)]
        scan = len(of_dtype) > 1 and all(found == of_dtype[0] and len(found) == 1 for found in of_dtype)
        merged.setdefault((direction, dtype, None, some[0].N) if scan else (direction, dtype, M, None), []).extend(some)
    return [Section(tuple(some), "M" if key[2] is None else "N") for key, some in merged.items()]


def tables(section: Section, console: Console) -> list[RenderableType]:
    """The title, and the section in the most detail that fits the console; several tables if none fits."""
    for detail in DETAILS:
        for turned in (False, True):
            table = _table(section, detail, turned=turned)
            if _width(table, console) <= console.width:
                return [Text(title(section, detail), style="bold"), table]
    found = min((_split(section, console, turned=turned) for turned in (False, True)), key=lambda some: sum(1 + t.row_count for t in some))
    return [Text(title(section, DETAILS[-1]), style="bold"), *found]


def _split(section: Section, console: Console, *, turned: bool) -> list[Table]:
    """Tables with as many columns as fit."""
    across = list(map(str, section.shapes)) if turned else section.backends
    found, begin = [], 0
    while begin < len(across):
        end = begin + 1
        while end < len(across) and _width(_table(section, DETAILS[-1], turned=turned, part=(begin, end + 1)), console) <= console.width:
            end += 1
        found.append(_table(section, DETAILS[-1], turned=turned, part=(begin, end)))
        begin = end
    return found


def _width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(width=LARGE), table).maximum


def title(section: Section, detail: int) -> str:
    """What the section is, and what its cells hold."""
    first = section.rows[0]
    clock = next((f" ({row.timer}, {row.l2} L2)" for row in section.rows if row.l2 and (row.timer, row.l2) != (TIMERS[0], "cold")), "")
    relative = next((row.relative_to for row in section.rows if row.relative_to), "")
    unit, _ = _unit(section)
    parts = [unit, "% of copy", *([f"speed-up over {relative}"] if relative else [])]
    fixed = f"M={first.M}" if section.axis == "N" else f"N={first.N}"
    return f"{first.direction} {first.dtype}, {fixed}, {first.device}{clock}: {', '.join(parts[:detail])}"


def _unit(section: Section) -> tuple[str, float]:
    return units.bandwidth_unit([row.gbps for row in section.rows if row.gbps])


def _table(section: Section, detail: int, *, turned: bool, part: tuple[int, int] | None = None) -> Table:
    head, *body = _grid(section, detail, turned=turned, part=part)
    table = Table(show_edge=False, pad_edge=False)
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if turned and i == 0 else "right", no_wrap=True)
    for name, *row in body:
        table.add_row(str(name), *row)
    return table


def _grid(section: Section, detail: int, *, turned: bool, part: tuple[int, int] | None = None) -> Iterator[list[str | Text]]:
    """The heading and the lines of a table. `turned` has a line per backend. `part` is a range of its columns."""
    shapes, names = section.shapes, section.ranked if turned else section.backends
    begin, end = part or (0, None)
    if turned:
        shapes = shapes[begin:end]
        yield ["backend", *(f"{section.axis}={shape}" for shape in shapes)]
        columns = [[(shape, name) for name in names] for shape in shapes]
        heads: Sequence[object] = names
    else:
        names = names[begin:end]
        yield [section.axis, *names]
        columns = [[(shape, name) for shape in shapes] for name in names]
        heads = shapes
    rows = {(getattr(row, section.axis), row.backend): row for row in section.rows}
    best = {shape: section.fastest(shape) for shape in shapes}
    signed = any(doubtful(row) for row in section.rows)
    factor = _unit(section)[1]
    made = [_aligned([_cell(rows.get(key), detail, best[key[0]], factor, signed=signed) for key in column]) for column in columns]
    for i, name in enumerate(heads):
        yield [str(name), *(column[i] for column in made)]


def _aligned(cells: Sequence[_Cell]) -> list[Text]:
    """A column's cells, with each number below its like."""
    numbers = [cell.numbers for cell in cells if not cell.word]
    widths = [max(len(some[i]) for some in numbers if i < len(some)) for i in range(max(map(len, numbers), default=0))]
    texts = []
    for cell in cells:
        padded = [cell.numbers[i].rjust(width) if i < len(cell.numbers) else " " * width for i, width in enumerate(widths)]
        text = cell.numbers[0] if cell.word else " ".join(part for part in padded if part)
        texts.append(Text(text + cell.signs, style=cell.style))
    return texts


def doubtful(row: Row) -> bool:
    """True if the cell has a label that is not harmless. L2-resident is harmless."""
    return bool(set(row.labels.split()) - labels.HARMLESS)


def _cell(row: Row | None, detail: int, best: Row | None, factor: float, *, signed: bool) -> _Cell:
    if row is None:
        return _Cell(("-",), style="dim", word=True)
    if row.status != Status.OK:
        return _Cell((row.status,), "  ", "red" if row.status in FAILURES else "dim", word=True)
    sign = ("!" if doubtful(row) else " ") * signed
    if IMPLAUSIBLE in row.labels:
        return _Cell((IMPLAUSIBLE,), "  " + sign, "red", word=True)
    numbers = [units.figure(factor * row.gbps) if row.gbps else units.micros(row.median_us or 0)]
    if row.grade == Grade.YARDSTICK:
        return _Cell(tuple(numbers), "  " + sign, "dim")
    numbers += [units.percent(row.of_copy) if row.of_copy else "", units.ratio(row.speedup) + "x" if row.speedup else ""]
    signs = ("~" if row.grade == Grade.LOW_PRECISION else " ") + ("*" if row is best else " ") + sign
    return _Cell(tuple(numbers[:detail]), signs, "bold green" if row is best else "")


def as_markdown(section: Section) -> str:
    """The title and the section as a Markdown table in full detail."""
    head, *body = _grid(section, DETAILS[0], turned=len(section.backends) > WIDE)
    lines = [tuple(" ".join(str(cell).split()) for cell in line) for line in (head, *body)]
    return f"{markdown.safe(title(section, DETAILS[0]))}\n\n{markdown.table(lines[0], lines[1:], numbers=range(1, len(head)))}"
