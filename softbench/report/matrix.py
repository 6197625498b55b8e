"""The main table: a row per shape and a column per backend. If the backends do not fit, they are rows, best first. Prints nothing.

Signs are ASCII, so that every encoding has them: `*` the fastest of a shape beyond noise, `=` those that tie for the fastest,
`~` low-precision or finite-only, `!` doubtful.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from statistics import fmean
from typing import TypeVar

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from softbench.core import text as units
from softbench.core.case import CaseKey
from softbench.core.outcome import FAILURES, LIMITED, Grade, Status
from softbench.report import colours, markup, rich_tables
from softbench.report.standings import Standing
from softbench.results.columns import IMPLAUSIBLE, Row, grouped

WINS, TIES = "*", "="
SIGNS = f"~{WINS}{TIES}!"
DETAILS = (3, 2, 1)  # numbers of a cell: bandwidth or time, % of copy, speed-up
SEPARATOR = " ┃ "  # between the columns of a rich table
WIDE = 12  # backends; a Markdown table of more has a row per backend
COLUMNS = 6
"""Shapes that are columns, at most. With fewer than FEWEST a table gives up detail first."""
FEWEST = 3
SCANS = 3
"""Tables of one M each; more of them become one table of all shapes."""
BAR = 8
"""Characters of a bar."""
BLOCKS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"

Extent = int | str
"""N or M of a case, or its whole shape."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Cell:
    """A table cell: its numbers, or one word."""

    numbers: tuple[str, ...]
    signs: str = ""
    style: str = ""
    word: bool = False


class Section:
    """The rows of one table: one direction and dtype, and one M (or one N, if only M varies), or all shapes."""

    def __init__(self, of_case: Mapping[CaseKey, Sequence[Row]], axis: str, found: Mapping[CaseKey, Standing]) -> None:
        """`axis` is `N`, `M` or `shape`: what differs between the cases. `found`: the standings of all cases."""
        self.axis = axis
        self.rows = [row for some in of_case.values() for row in some]
        self._at = {self.shape(case): some for case, some in of_case.items()}
        self._cells: dict[Extent, dict[str, Row]] = {}
        self.shapes = [*self._at]
        self.standings = {self.shape(case): found.get(case) for case in of_case}
        """The standing of each shape in the file's order; None without a result."""
        names = list(dict.fromkeys(row.backend for row in self.rows if row.status != Status.UNAVAILABLE))
        self.backends = names or list(dict.fromkeys(row.backend for row in self.rows))
        """The backends that are available, in the file's order; all of them if none is."""

    def shape(self, case: CaseKey) -> Extent:
        """What names the case in this section."""
        if self.axis == "N":
            return case.N
        return case.M if self.axis == "M" else case.size

    def cell(self, shape: Extent, backend: str) -> Row | None:
        """The row of a backend on a shape."""
        if shape not in self._cells:
            self._cells[shape] = {row.backend: row for row in self._at[shape]}
        return self._cells[shape].get(backend)

    @cached_property
    def unit(self) -> tuple[str, float]:
        """The unit of the bandwidths and its factor; `time` and 0 if all tensors fit L2, or matrix products take longer than the bytes."""
        shown = [row.gbps for row in self.rows if row.gbps and not row.in_l2]
        by_time = any(row.compute_bound for row in self.rows) or (not shown and any(row.in_l2 for row in self.rows))
        return ("time", 0.0) if by_time else units.bandwidth_unit(shown)

    def places(self, shape: Extent) -> dict[str, str]:
        """The sign of each backend that is the fastest of a shape, or ties with it."""
        found = self.standings[shape]
        if not found or len(found.rows) < 2 or found.unknown:
            return {}
        return dict.fromkeys((row.backend for row in found.tied), WINS if len(found.tied) == 1 else TIES)

    @cached_property
    def shares(self) -> dict[str, float]:
        """The mean time of each backend over the fastest of a shape, in order; the yardstick first, those without a result last (inf)."""
        times: dict[str, list[float]] = {name: [] for name in self.backends}
        for shape, some in self._at.items():
            best = found.rows[0].median_us if (found := self.standings[shape]) else None
            for row in some if best else ():
                if row.median_us and row.backend in times:
                    times[row.backend].append(-1 if row.grade == Grade.YARDSTICK else row.median_us / (best or inf))
        means = {name: fmean(some) if some else inf for name, some in times.items()}
        return dict(sorted(means.items(), key=lambda item: item[1]))

    def best(self, most: int | None) -> list[str]:
        """The best backends, at most so many, among them the yardstick and the reference backend."""
        ranked = [*self.shares]
        if most is None or len(ranked) <= most:
            return ranked
        reference = next((row.relative_to for row in self.rows if row.relative_to), "")
        kept = ranked[:most]
        return kept if reference in kept or reference not in ranked else [*kept[:-1], reference]


@dataclass(frozen=True, slots=True)
class _Grid:
    """A table's columns as texts: the first one names the lines."""

    head: str
    names: list[str]
    columns: list[tuple[str, list[Text]]]

    @property
    def width(self) -> int:
        others = (len(SEPARATOR) + max(cell_len(head), *(text.cell_len for text in texts)) for head, texts in self.columns)
        return max(map(cell_len, (self.head, *self.names))) + sum(others)

    def table(self) -> Table:
        heads = (self.head, *(head for head, _ in self.columns))
        table = rich_tables.table(heads, numbers=range(self.head == "backend", len(heads)))
        for i, name in enumerate(self.names):
            table.add_row(name, *(texts[i] for _, texts in self.columns))
        return table


@dataclass(frozen=True, slots=True)
class Shown:
    """A section as a table."""

    title: str
    grid: _Grid
    cut: str
    """What it has of the section, if it does not have every shape and backend."""

    def parts(self) -> list[RenderableType]:
        return [Text(self.title, style="bold"), *([Text(self.cut, style="dim")] if self.cut else []), self.grid.table()]


def sections(rows: Sequence[Row], found: Mapping[CaseKey, Standing], *, merged: bool = True) -> list[Section]:
    """A section per pass, dtype and M; one for all M if each has the same single N, and one for all N-D cases.

    With `merged`, many M of a pass and dtype are one section too.
    """
    of_case, made = grouped(rows, lambda row: row.case), list[Section]()
    for cases in grouped(of_case, lambda case: (case.op, case.direction, case.dtype, bool(case.shape))).values():
        by_m = grouped(cases, lambda case: case.M)
        if cases[0].shape:
            parts = {"shape": [cases]}
        elif len(by_m) > 1 and len({case.N for case in cases}) == 1:
            parts = {"M": [cases]}
        else:
            parts = {"shape": [cases]} if merged and len(by_m) > SCANS else {"N": [*by_m.values()]}
        made += [Section({case: of_case[case] for case in some}, axis, found) for axis, every in parts.items() for some in every]
    return made


def fitted(section: Section, width: int, lines: int, *, graphic: bool = False) -> Shown:
    """The section in a width, with at most so many lines.

    Backends are columns if they fit without their speed-ups. Else they are rows, best first, and a few shapes are columns. `graphic`
    adds bars or sparklines, in colours.
    """
    shapes = spread(section.shapes, lines)
    for detail in DETAILS[:-1]:
        grid = _by_shape(section, shapes, detail)
        if grid.width <= width:
            return _shown(section, _with_sparklines(section, grid) if graphic else grid, detail, shapes, section.backends)
    names = section.best(lines)
    fewest = {detail: min(FEWEST, len(section.shapes)) if detail > DETAILS[-1] else 1 for detail in DETAILS}
    choices = [(detail, n) for detail in DETAILS for n in range(min(COLUMNS, len(section.shapes)), fewest[detail] - 1, -1)]
    for detail, n in choices:
        shapes = spread(section.shapes, n)
        grid = _by_backend(section, shapes, names, detail)
        if grid.width <= width or (detail, n) == choices[-1]:
            barred = _with_bars(section, grid) if graphic else grid
            return _shown(section, barred if barred.width <= width else grid, detail, shapes, names)
    raise AssertionError("the last choice is taken")


def whole(section: Section) -> Shown:
    """The section with every shape and backend, as a narrow table if one fits a log."""
    names, detail = section.best(None), DETAILS[0]
    by_shape = _by_shape(section, section.shapes, detail)
    grids = [by_shape] if by_shape.width <= rich_tables.LOG_WIDTH else [by_shape, _by_backend(section, section.shapes, names, detail)]
    return _shown(section, min(grids, key=lambda grid: grid.width), detail, section.shapes, names)


def spread(items: Sequence[T], most: int) -> list[T]:
    """At most so many of the items, evenly spread, with the first and the last one."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / max(1, most - 1))] for i in range(most)]


def _shown(section: Section, grid: _Grid, detail: int, shapes: Sequence[Extent], names: Sequence[str]) -> Shown:
    """`names` and `shapes`: those of the grid."""
    what = {"N": "N", "M": "M", "shape": "shapes"}[section.axis]
    cut = [f"{len(shapes)} of {len(section.shapes)} {what}"] if len(shapes) < len(section.shapes) else []
    cut += [f"the best {len(names)} of {len(section.backends)} backends"] if len(names) < len(section.backends) else []
    cut += [f"without {' and '.join(left)}"] if (left := [*filter(None, _parts(section)[detail:])]) else []
    return Shown(title(section, detail), grid, ", ".join(cut))


def title(section: Section, detail: int) -> str:
    """What the section is, and what its cells hold."""
    first = section.rows[0]
    fixed = {"N": [f"M={first.M}"], "M": [f"N={first.N}"]}.get(section.axis, [])
    return f"{', '.join([f'{first.of_pass} {first.dtype}', *fixed])}: {', '.join(filter(None, _parts(section)[:detail]))}"


def _parts(section: Section) -> list[str]:
    """The numbers of a cell, one for each level of detail; empty where no cell has it."""
    rows = [row for row in section.rows if row.status == Status.OK and row.grade != Grade.YARDSTICK]
    share = "% of the roof" if any(row.compute_bound for row in rows) else "% of copy"
    relative = next((row.relative_to for row in rows if row.speedup and row.backend != row.relative_to), "")
    return [section.unit[0], share if any(row.of_copy for row in rows) else "", f"speed-up over {relative}" if relative else ""]


def _by_shape(section: Section, shapes: Sequence[Extent], detail: int) -> _Grid:
    """A line per shape and a column per backend."""
    return _Grid(section.axis, list(map(str, shapes)), _columns(section, shapes, section.backends, detail, turned=False))


def _by_backend(section: Section, shapes: Sequence[Extent], names: Sequence[str], detail: int) -> _Grid:
    """A line per backend and a column per shape."""
    return _Grid("backend", list(names), _columns(section, shapes, names, detail, turned=True))


def _columns(
    section: Section, shapes: Sequence[Extent], names: Sequence[str], detail: int, *, turned: bool
) -> list[tuple[str, list[Text]]]:
    factor, places = section.unit[1], {shape: section.places(shape) for shape in shapes}

    def column(head: str, keys: Iterable[tuple[Extent, str]]) -> tuple[str, list[Text]]:
        cells = [_cell(section.cell(shape, name), detail, places[shape].get(name, ""), factor) for shape, name in keys]
        return head, _aligned(cells, cell_len(head))

    start = "" if section.axis == "shape" else f"{section.axis}="
    if turned:
        return [column(f"{start}{shape}", ((shape, name) for name in names)) for shape in shapes]
    return [column(name, ((shape, name) for shape in shapes)) for name in names]


def _with_bars(section: Section, grid: _Grid) -> _Grid:
    """With a bar per backend: its mean speed, as a fraction of the fastest of each shape."""
    shares = section.shares

    def bar(name: str) -> Text:
        eighths = round(8 * BAR / shares[name]) if 0 < shares[name] < inf else 0
        text = BLOCKS[8] * (eighths // 8) + (BLOCKS[eighths % 8] if eighths % 8 else "")
        return Text(text.ljust(BAR), style=colours.colour(name, dark=True), justify="left")

    return _Grid(grid.head, grid.names, [("speed", list(map(bar, grid.names))), *grid.columns])


def _with_sparklines(section: Section, grid: _Grid) -> _Grid:
    """With a last line that shows each backend's bandwidth over all shapes; as it is if there are few, or they have no order."""
    if section.axis == "shape" or len(section.shapes) < 2 * FEWEST:
        return grid
    order = sorted(section.standings, key=lambda shape: shape if isinstance(shape, int) else 0)
    values = {name: [_gbps(section.cell(shape, name)) for shape in order] for name in section.backends}
    highest = max((value for some in values.values() for value in some), default=0.0)

    def line(name: str, texts: Sequence[Text]) -> Text:
        room = max(cell_len(name), *(text.cell_len for text in texts))
        levels = (round((len(LEVELS) - 1) * value / highest) if highest else 0 for value in spread(values[name], room))
        spark = "".join(LEVELS[level] for level in levels)
        return Text(spark.rjust(room), style=colours.colour(name, dark=True), justify="left")

    return _Grid(grid.head, [*grid.names, "curve"], [(name, [*texts, line(name, texts)]) for name, texts in grid.columns])


def _gbps(row: Row | None) -> float:
    return row.gbps if row and row.gbps and row.timed else 0.0


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
    numbers = [units.three_digits(factor * row.gbps) if factor and row.gbps and not row.in_l2 else units.micros(row.median_us or 0)]
    if row.grade == Grade.YARDSTICK:
        return _Cell(tuple(numbers), signs, "dim")
    speedup = row.speedup if row.backend != row.relative_to else None  # its own is 1
    numbers += [units.percent(row.of_copy) if row.of_copy else "", units.ratio(speedup) + "x" if speedup else ""]
    signs += "~" * (row.grade in LIMITED) + place
    return _Cell(tuple(numbers[:detail]), signs, "bold green" if place else "")


def signs(shown: Iterable[Shown]) -> Iterator[str]:
    """The signs that these tables have, in the order of SIGNS."""
    texts = [text.plain for one in shown for _, column in one.grid.columns for text in column]
    yield from (sign for sign in SIGNS if any(sign in text for text in texts))


def as_markdown(section: Section) -> str:
    """The title and the section as a Markdown table in full detail."""
    turned, names = len(section.backends) > WIDE, section.best(None)
    grid = _by_backend(section, section.shapes, names, DETAILS[0]) if turned else _by_shape(section, section.shapes, DETAILS[0])
    lines = [(name, *(" ".join(texts[i].plain.split()) for _, texts in grid.columns)) for i, name in enumerate(grid.names)]
    table = markup.table((grid.head, *(head for head, _ in grid.columns)), lines, numbers=range(1, 1 + len(grid.columns)))
    return f"{markup.safe(title(section, DETAILS[0]))}\n\n{table}"
