"""The result of a comparison: its rows, tables, figures and samples, and how a notebook shows them."""

from __future__ import annotations

import base64
import html
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from softbench.api import options
from softbench.core.errors import ResultsError, UsageError
from softbench.core.outcome import Measured, Record
from softbench.core.text import count, few, one_line, unknown
from softbench.results.columns import Row
from softbench.results.rows import rows_of_run

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Console, ConsoleOptions, RenderableType

    from softbench.core.json import JsonObject
    from softbench.results.writer import Run


class Sample(NamedTuple):
    """One latency of a cell, with the columns of the CSV that name the cell."""

    backend: str
    """Name of the backend."""
    op: str
    """The operation with the parameters that are not at their default."""
    direction: str
    """`forward`, `backward`, `both` or `fused`."""
    dtype: str
    """`fp32`, `fp16` or `bf16`."""
    M: int
    """Rows."""
    N: int
    """Columns: the reduced axis."""
    shape: str
    """Shape of an N-D case; empty if it is (M, N)."""
    process: int
    """Number of the process set, from 0."""
    round: int
    """Number of the round in that set, from 0."""
    position: int
    """The backend's place in the round's order, from 0."""
    us: float
    """The latency in microseconds."""
    throttled: bool
    """True if the GPU was throttled or the CPU busy during the batch."""


class Result:
    """A run of `softbench.compare`, or a results file that `Result.load` read."""

    def __init__(self, rows: Sequence[Row], csv: Path, notes: Sequence[str] = (), records: Sequence[Record] | None = None) -> None:
        """`records` are those of the rows; None if they must be read from the JSON beside the CSV."""
        self.rows: tuple[Row, ...] = tuple(rows)
        """A row per cell, with the columns of the CSV (docs/results-format.md)."""
        self.csv: Path = csv
        """The file of the rows."""
        self.notes: tuple[str, ...] = tuple(notes)
        """The notes that the command line prints."""
        self._records = records
        self._json: Path | None = None
        """The JSON that the rows were read from."""

    @classmethod
    def of_run(cls, run: Run, notes: Sequence[str] = ()) -> Result:
        """The result of a run that was just measured."""
        return cls(run.rows(), run.csv, notes, list(run.records()))

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read a results file: the CSV of a run, or its JSON; of a folder its latest run.

        Raises:
            UsageError: `path` is neither a text nor a path.
            ResultsError: the file is missing, damaged or of another program, or the folder has none.
        """
        from softbench.results.csv import read_csv
        from softbench.results.document import SUFFIXES, csv_of, interrupted
        from softbench.results.records import records_of
        from softbench.results.runs import latest

        file = options.path(path, "path")
        if file.name.endswith(SUFFIXES):
            document = _document(file)
            try:
                notes = [f"{file}: {told}"] if (told := interrupted(document)) else []
                found = cls(list(rows_of_run(records_of(document, file), document)), csv_of(file), notes)
                found._json = file
                return found
            except (KeyError, TypeError, ValueError) as error:
                raise ResultsError(f"{file}: its header is damaged: {type(error).__name__}: {one_line(str(error), 120)}") from None
        file, note = latest(file)
        rows, warnings = read_csv(file)
        return cls(rows, file, [*([note] if note else []), *warnings])

    @property
    def json(self) -> Path:
        """The file with the raw samples and the environment."""
        from softbench.results.document import beside

        return self._json or beside(self.csv)

    @property
    def ok(self) -> bool:
        """True if a backend other than the yardstick was measured, and no cell is wrong or failed."""
        from softbench.run.run import exit_code

        return exit_code(self.rows) == 0

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Every latency of every cell; `pandas.DataFrame(result.samples)` is a table of them.

        Raises:
            ResultsError: the JSON is not beside the CSV, is damaged, or is of another run.
        """
        from softbench.results.records import records_of

        if self._records is None:
            document = _document(self.json)
            if self.rows and document.get("run") != self.rows[0].run:
                raise ResultsError(
                    f"{self.csv}: is of {self.rows[0].run}, but {self.json.name} is of another run; take both files of one run"
                )
            self._records = list(records_of(document, self.json))
        return tuple(
            Sample(record.backend, case.op, case.direction.value, case.dtype, case.M, case.N, case.shape, *where, us, batch.throttled)
            for record in self._records
            if isinstance(record.outcome, Measured)
            for case in (record.case,)
            for batch in record.outcome.timing.batches
            for where in ((batch.process, batch.round, batch.position),)
            for us in batch.samples_us
        )

    def frame(self) -> DataFrame:
        """The rows as a tidy pandas table: a line per cell, and the columns of the CSV (docs/results-format.md)."""
        from pandas import DataFrame  # takes a quarter of a second to import, longer than most commands compute

        from softbench.results.csv import COLUMNS

        values = {name: [getattr(row, "grade" if name == "class" else name) for row in self.rows] for name in COLUMNS}
        return DataFrame(values)

    def table(self, *, long: bool = False, wide: bool = False) -> Shown:
        """The answer and the tables of `softbench show`: text by `print`, with colours by `rich.print`, and HTML in a notebook.

        Args:
            long: one line per cell, with latency, spread and check.
            wide: every N and backend, and every note.
        """
        from softbench.report import tables
        from softbench.report.rich_tables import LOG_WIDTH, TABLE_WIDTH

        def shown(console: Console) -> RenderableType:
            return tables.cells(self.rows, str(self.csv)) if long else tables.results(self.rows, console, str(self.csv), wide=wide)

        return Shown(shown, LOG_WIDTH if long or wide else TABLE_WIDTH)

    def plot(self, out: str | Path | None = None, *, kind: str = "curves", relative_to: str = "") -> Pictures:
        """Draw the figures of `softbench plot`. A notebook shows them.

        Args:
            out: the file, which ends in .png, .svg, .pdf or .webp. The default: the CSV's name with .png. Each of several files adds to it.
            kind: `curves`, `bandwidth`, `heatmap`, `speedup` or `costs`, as `--kind`.
            relative_to: the backend that speed-ups compare with; the default is the reference backend.

        Raises:
            UsageError: another suffix or kind.
            ResultsError: there is nothing to draw, or a file cannot be written.
        """
        from softbench.report import plots

        if kind not in plots.KINDS:
            raise UsageError(f"kind: {unknown(kind, plots.KINDS, 'kind')}")
        target = options.path(out, "out") if out is not None else self.csv.with_suffix(".png")
        with options.as_arguments():
            return Pictures([written.file for written in plots.write([(self.csv, self.rows)], target, kind, relative_to)])

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page of `softbench report`: curves, winners, and cells down to their samples. It needs no network.

        Args:
            out: the HTML file. The default is the CSV's name with .html.

        Returns:
            The file. Without the JSON beside the CSV, the page has no samples and says so.

        Raises:
            ResultsError: there is no row, or the file cannot be written.
            UsageError: the file is a results file or no HTML file, or the results are of several cards.
        """
        from softbench.report.page import document
        from softbench.report.page.source import read_source
        from softbench.results.select import apart

        if not self.rows:
            raise ResultsError(f"{self.csv}: has no row, so there is nothing to show")
        if len(apart(self.rows)) > 1:
            raise UsageError(f"{self.csv}: holds several cards; for a page of each: softbench report {self.csv}")
        target = options.path(out, "out") if out is not None else self.csv.with_suffix(".html")
        if target.resolve() in (self.csv.resolve(), self.json.resolve()):
            raise UsageError(f"out {target}: is a results file; name another one")
        document.check_name(target, "out")
        with options.as_arguments():
            return document.write([read_source(self.csv, self.rows)], target, f"softbench report {shlex.quote(str(self.csv))}")

    def __repr__(self) -> str:
        backends = few(list(dict.fromkeys(row.backend for row in self.rows)))
        state = "ok" if self.ok else "a cell is wrong or failed, or nothing was measured"
        return f"<Result: {count(len(self.rows), 'cell')} of {backends}; {state}; {self.csv}>"

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _document(file: Path) -> JsonObject:
    """A run document, whose cells can be iterated once. Raises ResultsError if it is none."""
    from softbench.results.document import stream

    document = stream(file)
    if not isinstance(document.get("cells"), Iterable):
        raise ResultsError(f"{file}: is not a softbench run: it lacks cells")
    return document


HTML = '<pre style="font-family: monospace; line-height: 1.2; overflow-x: auto; white-space: pre">{code}</pre>'
"""The template of a table; rich fills it with spans of their own style."""
TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


class Shown:
    """A table. `print` and the interpreter show text, `rich.print` shows colours, and a notebook shows HTML."""

    def __init__(self, make: Callable[[Console], RenderableType], width: int) -> None:
        """`make` renders the table for the width of a console; `width`: that of HTML, in characters."""
        self._make, self._width = make, width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self._make(console)

    def __str__(self) -> str:
        return "\n".join(line.rstrip() for line in self._printed().file.getvalue().splitlines()).strip("\n")  # type: ignore[attr-defined]

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._printed(self._width).export_html(code_format=HTML, inline_styles=True)

    def _printed(self, width: int | None = None) -> Console:
        """A console that has printed the table, without cutting a column."""
        from rich.console import Console

        from softbench.report.rich_tables import widen

        columns = width or shutil.get_terminal_size().columns
        # Jupyter has variables of colour, and there rich would display the text itself.
        console = Console(file=StringIO(), width=columns, record=True, force_terminal=False, force_jupyter=False)
        made = self._make(console)
        widen(console, made)
        console.print(made, markup=False, highlight=False, crop=False)
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
