"""What a result shows: tables as text and HTML, and figures."""

from __future__ import annotations

import base64
import html
import shutil
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

HTML = '<pre style="font-family: monospace; line-height: 1.2; overflow-x: auto; white-space: pre">{code}</pre>'
"""The template of a table; rich fills it with spans of their own style."""
TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


class Shown:
    """A table. `print` and the interpreter show text, `rich.print` shows colours, and a notebook shows HTML."""

    def __init__(self, make: Callable[[Console], RenderableType]) -> None:
        """`make` renders the table for the width of a console."""
        self._make = make

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self._make(console)

    def __str__(self) -> str:
        return "\n".join(line.rstrip() for line in self._printed().file.getvalue().splitlines()).strip("\n")  # type: ignore[attr-defined]

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from softbench.report.rich_tables import LOG_WIDTH

        return self._printed(LOG_WIDTH).export_html(code_format=HTML, inline_styles=True)

    def _printed(self, width: int | None = None) -> Console:
        """A console that has printed the table, without cutting a column."""
        from rich.console import Console

        from softbench.report.rich_tables import widen

        columns = width or shutil.get_terminal_size().columns
        # Jupyter has variables of colour, and there rich would display the text itself.
        console = Console(file=StringIO(), width=columns, record=True, force_terminal=False, force_jupyter=False)
        made = self._make(console)
        widen(console, made)
        console.print(made, markup=False, highlight=False)
        return console


class Pictures(tuple[Path, ...]):
    """The files of figures, which a notebook shows."""

    __slots__ = ()

    def __new__(cls, files: Sequence[Path]) -> Pictures:
        return super().__new__(cls, files)

    def _repr_html_(self) -> str:
        return "\n".join(map(_embedded, self))


def _embedded(file: Path) -> str:
    """An image element with the file's content; for a PDF its name."""
    name = html.escape(file.name, quote=True)
    if file.suffix not in TYPES:
        return f"<p>{name}</p>"
    data = base64.b64encode(file.read_bytes()).decode()
    return f'<img alt="{name}" style="max-width: 100%" src="data:{TYPES[file.suffix]};base64,{data}">'
