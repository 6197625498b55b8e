"""The main table: a row per shape and a column per backend, or the other way round if that fits better. Prints nothing.

Signs are ASCII, so that every encoding has them: `*` the fastest of a shape beyond noise, `=` those that tie for the fastest,
`~` low-precision or finite-only, `!` doubtful.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from softbench.core import text as units
from softbench.core.case import TIMERS
from softbench.core.outcome import FAILURES, LIMITED, Grade, Status
from softbench.report import markup, rich_tables
from softbench.report.standings import standing
from softbench.results.rows import IMPLAUSIBLE, Row, grouped

WINS, TIES = "*", "="
SIGNS = f"~{WINS}{TIES}!"
DETAILS = (3, 2, 1)  # numbers of a cell: bandwidth or time, % of copy, speed-up
SEPARATOR = " ┃ "  # between the columns of a rich table
WIDE = 12  # backends; a Markdown table of more has a row per backend


Extent = int | str
"""N or M of a case, or the shape of an N-D case."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A table cell: its numbers, or one word."""

    numbers: tuple[str, ...]
    signs: str = ""
    style: str = ""
    word: bool = False


class Section:
    """The rows of one table: one direction and dtype, and one M (or one N, if only M varies), or all N-D shapes."""

    def __init__(self, rows: Sequence[Row], axis: str) -> None:
        """`axis` is `N`, `M` or `shape`: what differs between the cases."""
        self.rows, self.axis = rows, axis
        self.cells = {(self.shape(row), row.backend): row for row in rows}
        self.shapes = list(dict.fromkeys(map(self.shape, rows)))
        names = list(dict.fromkeys(row.backend for row in rows if row.status != Status.UNAVAILABLE))
        self.backends = names or list(dict.fromkeys(row.backend for row in rows))
        """The backends that are available, in the file's order; all of them if none is."""
        self.fastest: dict[Extent, Row] = {}
        """The backend of the smallest median of each shape, if there is a result."""
        self.signs: dict[tuple[Extent, str], str] = {}
        """The sign of each cell that is the fastest of its shape, or ties with it."""
        for shape, some in grouped(rows, self.shape).items():
            found = standing(some)
            self.fastest |= {shape: found.rows[0]} if found.rows else {}
            leaders = found.tied if len(found.rows) > 1 and not found.unknown else ()
            self.signs |= {(shape, row.backend): WINS if len(leaders) == 1 else TIES for row in leaders}

    def shape(self, row: Row) -> Extent:
        """What names the row's case in this section."""
        return row.shape or (row.N if self.axis == "N" else row.M)

    def ranked(self) -> list[str]:
        """The yardstick, then the other backends by their mean time over the fastest of a shape; those without a result last."""
        times: dict[str, list[float]] = {name: [] for name in self.backends}
        for row in self.rows:
            best = self.fastest.get(self.shape(row))
            if row.backend in times and row.median_us and best and best.median_us:
                times[row.backend].append(-1 if row.grade == Grade.YARDSTICK else row.median_us / best.median_us)
        return sorted(times, key=lambda name: fmean(times[name]) if times[name] else inf)


@dataclass(frozen=True, slots=True)
class _Grid:
    """A table's columns as texts: the first one names the lines."""

    head: str
    names: list[str]
    columns: list[tuple[str, list[Text]]]

    def widths(self) -> list[int]:
        """The width of each column with its separator; the first one has none."""
        others = [len(SEPARATOR) + max(cell_len(head), *(text.cell_len for text in texts)) for head, texts in self.columns]
        return [max(map(cell_len, (self.head, *self.names))), *others]

    def table(self, begin: int = 0, end: int | None = None) -> Table:
        heads = (self.head, *(head for head, _ in self.columns[begin:end]))
        table = rich_tables.table(heads, numbers=range(self.head == "backend", len(heads)))
        for i, name in enumerate(self.names):
            table.add_row(name, *(texts[i] for _, texts in self.columns[begin:end]))
        return table

    def parts(self, width: int) -> list[Table]:
        """Tables with as many columns as fit."""
        first, *others = self.widths()
        found, begin, used = [], 0, first
        for i, wide in enumerate(others):
            if used + wide > width and i > begin:
                found.append(self.table(begin, i))
                begin, used = i, first
            used += wide
        return [*found, self.table(begin)]


def sections(rows: Sequence[Row]) -> list[Section]:
    """A section per pass, dtype and M. Where each M has the same single N, one section holds all of them. N-D cases have a section."""
    plain, shaped = ([row for row in rows if bool(row.shape) is some] for some in (False, True))
    of_dtype = grouped(plain, lambda row: (row.of_pass, row.dtype))
    scans = {key for key, some in of_dtype.items() if len({row.M for row in some}) > 1 and len({row.N for row in some}) == 1}
    by_m = grouped(plain, lambda row: (row.of_pass, row.dtype, None if (row.of_pass, row.dtype) in scans else row.M))
    found = [Section(some, "M" if M is None else "N") for (*_, M), some in by_m.items()]
    return found + [Section(some, "shape") for some in grouped(shaped, lambda row: (row.of_pass, row.dtype)).values()]


def tables(section: Section, console: Console) -> list[RenderableType]:
    """The title, and the section in the most detail that fits the console; several tables if none fits."""
    for detail in DETAILS:
        for turned in (False, True):
            grid = _grid(section, detail, turned=turned)
            if sum(grid.widths()) <= console.width:
                return [Text(title(section, detail), style="bold"), grid.table()]
    found = [_grid(section, DETAILS[-1], turned=turned).parts(console.width) for turned in (False, True)]
    return [Text(title(section, DETAILS[-1]), style="bold"), *min(found, key=lambda some: sum(1 + table.row_count for table in some))]


def title(section: Section, detail: int) -> str:
    """What the section is, and what its cells hold."""
    first = section.rows[0]
    timers = list(dict.fromkeys((row.timer, row.l2) for row in section.rows if row.l2))
    clock = f" ({timers[0][0]}, {timers[0][1]} L2)" if timers and (TIMERS[0], "cold") not in timers else ""
    relative = next((row.relative_to for row in section.rows if row.relative_to), "")
    unit, _ = _unit(section)
    parts = [unit, "% of copy", *([f"speed-up over {relative}"] if relative else [])]
    fixed = {"N": f" M={first.M},", "M": f" N={first.N},"}.get(section.axis, "")
    return f"{first.of_pass} {first.dtype},{fixed} {first.device}{clock}: {', '.join(parts[:detail])}"


def _unit(section: Section) -> tuple[str, float]:
    """The unit of the bandwidths and its factor; `time` if all tensors fit L2."""
    shown = [row.gbps for row in section.rows if row.gbps and not row.in_l2]
    return units.bandwidth_unit(shown) if shown or not any(row.in_l2 for row in section.rows) else ("time", 1.0)


def _grid(section: Section, detail: int, *, turned: bool) -> _Grid:
    """The section with a line per shape, or a line per backend if `turned`."""
    names = section.ranked() if turned else section.backends
    factor = _unit(section)[1]

    def column(head: str, keys: Iterable[tuple[Extent, str]]) -> tuple[str, list[Text]]:
        cells = [_cell(section.cells.get(key), detail, section.signs.get(key, ""), factor) for key in keys]
        return head, _aligned(cells, cell_len(head))

    if turned:
        start = "" if section.axis == "shape" else f"{section.axis}="
        return _Grid("backend", names, [column(f"{start}{N}", ((N, name) for name in names)) for N in section.shapes])
    return _Grid(section.axis, list(map(str, section.shapes)), [column(name, ((N, name) for N in section.shapes)) for name in names])


def _aligned(cells: Sequence[_Cell], least: int) -> list[Text]:
    """A column's cells, at least this wide, with each number and each sign below its like. A space separates the signs."""
    numbers = [cell.numbers for cell in cells if not cell.word]
    widths = [max(len(some[i]) for some in numbers if i < len(some)) for i in range(max(map(len, numbers), default=0))]
    lines = []
    for cell in cells:
        padded = [cell.numbers[i].rjust(width) if i < len(cell.numbers) else " " * width for i, width in enumerate(widths)]
        lines.append(cell.numbers[0] if cell.word else " ".join(part for part in padded if part))
    used = [sign for sign in SIGNS if any(sign in cell.signs for cell in cells)]
    width = max([least - len(used) - bool(used), *map(len, lines)])
    texts = []
    for line, cell in zip(lines, cells, strict=True):
        signs = "".join(sign if sign in cell.signs else " " for sign in used)
        texts.append(Text(line.rjust(width) + (f" {signs}" if used else ""), style=cell.style, justify="left"))  # `right` strips spaces
    return texts


def _cell(row: Row | None, detail: int, place: str, factor: float) -> _Cell:
    """`place`: the sign of the fastest, or of those that tie for it."""
    if row is None:
        return _Cell(("-",), style="dim", word=True)
    if row.status != Status.OK:
        return _Cell((row.status,), style="red" if row.status in FAILURES else "dim", word=True)
    signs = "!" * row.doubtful
    if IMPLAUSIBLE in row.labels:
        return _Cell((IMPLAUSIBLE,), signs, "red", word=True)
    numbers = [units.three_digits(factor * row.gbps) if row.gbps and not row.in_l2 else units.micros(row.median_us or 0)]
    if row.grade == Grade.YARDSTICK:
        return _Cell(tuple(numbers), signs, "dim")
    numbers += [units.percent(row.of_copy) if row.of_copy else "", units.ratio(row.speedup) + "x" if row.speedup else ""]
    signs += "~" * (row.grade in LIMITED) + place
    return _Cell(tuple(numbers[:detail]), signs, "bold green" if place else "")


def as_markdown(section: Section) -> str:
    """The title and the section as a Markdown table in full detail."""
    grid = _grid(section, DETAILS[0], turned=len(section.backends) > WIDE)
    lines = [(name, *(" ".join(texts[i].plain.split()) for _, texts in grid.columns)) for i, name in enumerate(grid.names)]
    table = markup.table((grid.head, *(head for head, _ in grid.columns)), lines, numbers=range(1, 1 + len(grid.columns)))
    return f"{markup.safe(title(section, DETAILS[0]))}\n\n{table}"
