"""Tables of rich: their columns, and the width in which they are rendered, so that no column is cut."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

LOG_WIDTH = 400  # columns of a log, in which tables keep their natural width
TABLE_WIDTH = 120  # columns of a log that the tables of a run fill
MIN_FOLDED = 24  # minimum width of a column that may be wrapped


def table(head: Sequence[str], numbers: Container[int] = (), folded: Container[int] = ()) -> Table:
    """A table with these columns, and no lines yet. The columns with these indexes are right-aligned, or wrapped where they are long."""
    made = Table(show_edge=False, pad_edge=False)
    for i, name in enumerate(head):
        made.add_column(name, justify="right" if i in numbers else "left", no_wrap=i not in folded, overflow="fold")
    return made


def long_table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Container[int] = ()) -> Iterator[Text]:
    """The head and the lines of a long table, which no console wraps. A `Table` takes a millisecond for each line."""
    widths = [max(map(cell_len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str], between: str) -> str:
        padded = (
            cell.rjust(width) if i in numbers else cell.ljust(width) for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return between.join(padded).rstrip()

    texts = ["━╇━".join("━" * width for width in widths), *(line(cells, " │ ") for cells in rows)]
    yield Text(line(head, " ┃ "), style="bold", no_wrap=True, overflow="ignore")
    yield Text("\n".join(texts), no_wrap=True, overflow="ignore")


def widen(target: Console, renderable: RenderableType) -> None:
    """Make a console wide enough for a renderable, so that no column is cut; a terminal breaks long lines."""
    width = max(target.width, _min_width(renderable, target))
    target.size = ConsoleDimensions(width, target.height)  # rich ignores a width alone if TERM=dumb


def _min_width(renderable: RenderableType, target: Console) -> int:
    """The minimum width of a table whose unwrapped columns are not cut."""
    if isinstance(renderable, Group):
        return max((_min_width(part, target) for part in renderable.renderables), default=0)
    if not isinstance(renderable, Table):
        return 0
    unlimited = target.options.update(width=LOG_WIDTH)
    for column in renderable.columns:
        cells = (column.header, *column.cells)
        if column.no_wrap and all(isinstance(cell, str | Text) for cell in cells):
            column.width = max(map(_width, cells))  # with a given width rich does not measure each cell twice more
            continue
        width = max((Measurement.get(target, unlimited, cell).maximum for cell in cells), default=0)
        column.min_width = width if column.no_wrap else min(width, MIN_FOLDED)
    return Measurement.get(target, unlimited, renderable).minimum


def _width(cell: RenderableType) -> int:
    return cell.cell_len if isinstance(cell, Text) else cell_len(str(cell))
