"""`softbench show`, `plot` and `compare`, which read results files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple
from heapq import nsmallest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softbench.cli import completion, options
from softbench.cli.actions import note, printed, read, reject_two_for_stdout, results_file, wrote_to_stdout
from softbench.cli.options import ResultsFile
from softbench.cli.panels import OUTPUT, SHOW, PanelCommand
from softbench.core.errors import InconclusiveError, ResultsError, UsageError
from softbench.core.text import count, one_line, printable, unknown

if TYPE_CHECKING:
    from softbench.results.columns import Row
    from softbench.results.compare import Pair, Tally

LATEST = Path("results") / "latest.csv"
LINES = 30
"""The cells of `compare`'s table, unless more are asked for."""
COMPARE_EPILOG = (
    "Exit codes: 0 fine; 1 with --exit-code, if a cell is worse; 2 usage or unreadable input; 3 other devices, or no common cell."
)

KIND = completion.one(completion.fixed("curves", "bandwidth", "heatmap", "speedup", "costs"))
Backends = Annotated[
    list[str] | None,
    typer.Option(
        help="Names or patterns such as torch,compile:*; '!torch' excludes one. The yardstick stays.",
        rich_help_panel=SHOW,
        autocompletion=options.BACKENDS,
    ),
]
Rows = Annotated[list[str] | None, typer.Option("--M", help="Rows: 4096, or 256,1024, or 256:8192:256.", rich_help_panel=SHOW)]
Columns = Annotated[list[str] | None, typer.Option("--N", help="Columns; written like --M.", rich_help_panel=SHOW)]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Shapes, as names of cases have them: 4096x1024, 64x32x1000@dim1.", rich_help_panel=SHOW),
]
Dtypes = Annotated[list[str] | None, typer.Option(help="fp32, fp16, bf16, or several.", rich_help_panel=SHOW, autocompletion=options.DTYPE)]
Directions = Annotated[
    list[str] | None,
    typer.Option(help="forward, backward, both, fused, or several.", rich_help_panel=SHOW, autocompletion=options.DIRECTION),
]
Operations = Annotated[
    list[str] | None,
    typer.Option("--op", help="One operation or several, or a pattern: NAME, 'NAME(scale=0.7)', 'NAME*'.", rich_help_panel=SHOW),
]
Picture = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--out",
        "--output",
        help="The file: .png, .svg, .pdf or .webp. Several files are OUT-forward.png, ...",
        show_default="FILE.png, or FILE-KIND.png",
    ),
]
Kind = Annotated[
    str,
    typer.Option(
        help="curves: fraction of copy; bandwidth; heatmap: the fastest; speedup over a backend; costs: time, host, build, memory.",
        autocompletion=KIND,
        show_default="curves",
    ),
]
RelativeTo = Annotated[
    str | None,
    typer.Option(
        metavar="BACKEND",
        help="The backend of the speed-ups.",
        rich_help_panel=SHOW,
        autocompletion=options.BACKEND,
        show_default="of the run",
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        metavar="PERCENT",
        help="A change of fewer percent counts as noise.",
        show_default="0; with --exit-code the gate's margin, 5",
        rich_help_panel=OUTPUT,
    ),
]
ExitCode = Annotated[
    bool,
    typer.Option(
        "--exit-code",
        help="Exit with 1 if a cell has no result in B, or its whole interval is slower than the threshold.",
        rich_help_panel=OUTPUT,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (show, plot):
        app.command(cls=PanelCommand)(command)
    app.command(cls=PanelCommand, epilog=COMPARE_EPILOG)(compare)


def show(
    file: ResultsFile = LATEST,
    backends: Backends = None,
    M: Rows = None,
    N: Columns = None,
    shape: Shapes = None,
    dtype: Dtypes = None,
    direction: Directions = None,
    op: Operations = None,
    relative_to: RelativeTo = None,
    wide: Annotated[bool, typer.Option("--wide", help="Every N and backend, and every note.", rich_help_panel=OUTPUT)] = False,
    long: Annotated[
        bool, typer.Option("--long", help="One line per cell: latency, spread, samples, build, error over bound.", rich_help_panel=OUTPUT)
    ] = False,
    costs: Annotated[
        bool, typer.Option("--costs", help="One line per backend: build, host time, mean fraction of copy.", rich_help_panel=OUTPUT)
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.", rich_help_panel=OUTPUT)] = False,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE|-", help="Write the selected rows as CSV; - is stdout, without the table.", rich_help_panel=OUTPUT),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE|-", help="Write the selected rows as JSON; - is stdout, without the table.", rich_help_panel=OUTPUT),
    ] = None,
) -> None:
    """Show the table of a results file, or of some of its cells."""
    from softbench.results import select
    from softbench.results.csv import to_csv

    to_stdout = [flag for flag, file in (("--csv -", csv), ("--json -", json)) if str(file) == "-"]
    tables = [flag for flag, given in (("--long", long), ("--costs", costs), ("--markdown", markdown)) if given]
    reject_two_for_stdout([*to_stdout, *(tables if to_stdout else [])])
    if long and costs:
        raise UsageError("show: --long and --costs are two tables; give one of them")
    file = results_file(file)
    rows = read(file)
    rows = rows if relative_to is None else select.relative_to(rows, relative_to)
    rows = _selected(rows, backends, M, N, shape, dtype, direction, op)
    in_csv = csv is not None and printed(to_csv(rows), csv, "--csv")
    if not wrote_to_stdout(lambda: {"cells": [_values(row) for row in rows]}, json) and not in_csv:
        _show(rows, "stdin" if str(file) == "-" else one_line(str(file)), wide=wide, long=long, costs=costs, markdown=markdown)


def _selected(
    rows: Sequence[Row],
    backends: list[str] | None,
    M: list[str] | None,
    N: list[str] | None,
    shape: list[str] | None,
    dtype: list[str] | None,
    direction: list[str] | None,
    op: list[str] | None,
) -> list[Row]:
    """The rows that the options select. Raises UsageError if there is none."""
    from softbench.core.case import shape_of
    from softbench.plan.grammar import parse_axis, parse_directions, parse_dtypes, parse_shapes, split
    from softbench.results.select import select

    return select(
        rows,
        [name.strip() for name in names.split(",")] if (names := joined(backends)) else (),
        M=parse_axis(joined(M), "--M") if M else (),
        N=parse_axis(joined(N), "--N") if N else (),
        dtypes=parse_dtypes(joined(dtype), "--dtype") if dtype else (),
        directions=parse_directions(joined(direction), "--direction") if direction else (),
        ops=split(joined(op)) if op else (),
        shapes=[str(shape_of(text)) for text in parse_shapes(joined(shape), "--shape")] if shape else (),
    )


def joined(values: list[str] | None) -> str:
    """The values of an option that was given several times, as one list with commas."""
    return ",".join(values or ())


def _values(row: Row) -> dict[str, object]:
    """A row by the names of the CSV's columns. JSON has no infinity, so it becomes a text."""
    from softbench.results.csv import COLUMNS

    values = (getattr(row, "grade" if name == "class" else name) for name in COLUMNS)
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in zip(COLUMNS, values, strict=True)
    }


def _show(rows: Sequence[Row], source: str, *, wide: bool, long: bool, costs: bool, markdown: bool) -> None:
    from softbench.cli import output
    from softbench.report import listing, tables
    from softbench.results.costs import by_backend
    from softbench.results.select import apart

    console = output.console(log_width=output.LOG_WIDTH if wide or long or costs else output.TABLE_WIDTH)
    if costs:
        parts = apart(rows)
        for some in parts:
            if len(parts) > 1:
                typer.echo(printable(f"{some[0].device}:"))
            found = by_backend(some)
            typer.echo(listing.markdown(found)) if markdown else output.show(listing.costs(found), console)
    elif markdown:
        typer.echo(tables.as_markdown(rows, source, long=long))
    else:
        output.show(tables.cells(rows, source) if long else tables.results(rows, console, source, wide=wide), console)


def plot(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Results CSVs or folders; several are overlaid; - is stdin.", show_default="results/latest.csv"),
    ] = None,
    out: Picture = None,
    kind: Kind = "",
    backends: Backends = None,
    M: Rows = None,
    N: Columns = None,
    shape: Shapes = None,
    dtype: Dtypes = None,
    direction: Directions = None,
    op: Operations = None,
    relative_to: RelativeTo = None,
) -> None:
    """Draw how close each backend comes to copy over N or M, or another kind of figure.

    Hollow points are doubtful. docs/results-format.md describes the figures.
    """
    from softbench.report import plots

    files = [results_file(file) for file in files or [LATEST]]
    kind = kind or plots.KINDS[0]
    if kind not in plots.KINDS:
        raise UsageError(f"--kind: {unknown(kind, plots.KINDS, 'kind')}")
    if relative_to is not None and kind != "speedup":
        raise UsageError(f"--relative-to {relative_to}: goes with --kind speedup, not with {kind}")
    _reject_two_stdins(files)
    target = plots.target(out, files[0], kind)
    runs = [(file, _selected(read(file), backends, M, N, shape, dtype, direction, op)) for file in files]
    for written in plots.write(runs, target, kind, relative_to or ""):
        typer.echo(printable(str(written.file)))
        if written.note:
            note(written.note)
    others = [name for name in plots.KINDS if name != kind]
    note(f"other figures: --kind {', '.join(others[:-1])} or {others[-1]}; --M, --N, --dtype, --direction or --backends draw a part")


def _reject_two_stdins(files: Sequence[Path]) -> None:
    if [str(file) for file in files].count("-") > 1:
        raise UsageError("-: only one of the files can be stdin")


def compare(
    a: ResultsFile,
    b: ResultsFile,
    threshold: Threshold = None,
    every: Annotated[
        bool, typer.Option("--all", help=f"Print every cell, not only the {LINES} that changed most.", rich_help_panel=OUTPUT)
    ] = False,
    exit_code: ExitCode = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.", rich_help_panel=OUTPUT)] = False,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE|-", help="Write every cell as JSON; - is stdout, without the table.", rich_help_panel=OUTPUT),
    ] = None,
) -> None:
    """Compare two results files cell by cell: the ratio of bandwidths, without the drift of the machine that copy shows.

    The first line is that drift. The table has the cells that changed most beyond it. A cell is faster or slower if the 95 % interval of
    its change does not contain 1, and the change is beyond the threshold. A doubtful cell is neither. Cells of two timers are not compared.
    softbench gate judges whether a backend became slower.
    """
    from softbench.gate.unpaired import MARGIN
    from softbench.results.compare import READS, Tally, TwoFiles, beyond_noise_first

    _reject_two_stdins((a, b))
    reject_two_for_stdout([flag for flag, given in (("--json -", str(json) == "-"), ("--markdown", markdown)) if given])
    if threshold is not None and not 0 <= threshold < math.inf:
        raise UsageError(f"--threshold: must be a percentage from 0, not {threshold:g}")
    least, margin = (0.0, MARGIN) if threshold is None else (threshold / 100, threshold / 100)
    a, b = results_file(a), results_file(b)
    first, second = read(a, READS), read(b, READS)
    names = (one_line(str(a)), one_line(str(b)))
    devices = tuple(" and ".join(dict.fromkeys(row.device for row in rows)) for rows in (first, second))
    both = TwoFiles(first, second)
    tally = Tally(both.without_results, margin)
    same = every or json is not None
    found = (pair for pair in tally.counted(both.pairs(least)) if not pair.missing and (same or pair.changed))
    shown = sorted(found, key=beyond_noise_first) if same else nsmallest(LINES, found, key=beyond_noise_first)
    _reject_nothing_common(tally, a, b, devices)
    if not wrote_to_stdout(lambda: _document(names, devices, 100 * least, both.drift.text, shown, tally.text), json):
        head = [both.drift.text or "no drift is taken off: copy has no clean result in both files"]
        head += [f"{letter}: {name}, {device}" for letter, name, device in zip("AB", names, devices, strict=True)]
        table = shown if every else [pair for pair in shown if pair.changed][:LINES]
        _compare(head, table, [*_rest(tally, len(table), every=every), tally.text], markdown=markdown)
    if devices[0] == devices[1]:
        if different := _different_environments(a, b):
            note(f"the environments differ: {'; '.join(different)}")
        if moved := both.cards_note:
            note(moved)
    else:
        ratios = "; the ratios compare the devices, not the backends" if tally.changes else ""
        note(f"the devices differ: A is {devices[0]}, B is {devices[1]}{ratios}")
        raise typer.Exit(InconclusiveError.exit_code)
    raise typer.Exit(int(exit_code and tally.worse > 0))


def _reject_nothing_common(tally: Tally, a: Path, b: Path, devices: Sequence[str]) -> None:
    if not tally.cells:
        raise UsageError(f"{a} and {b}: neither file has a cell with a bandwidth; host times have none: softbench show FILE prints them")
    files = f"{a} ({devices[0]}) and {b} ({devices[1]})"
    if tally.missing == tally.cells:
        raise InconclusiveError(f"{files} share no cell with a result; softbench show FILE lists them")
    if (refused := sum(tally.refused.values())) and tally.missing + refused == tally.cells:
        raise InconclusiveError(f"{files} share no cell of one timer: {'; '.join(tally.refused)}; measure both with one --timer")


def _rest(tally: Tally, shown: int, *, every: bool) -> list[str]:
    """What the table leaves out, and the cells of two timers."""
    found = [f"{count(cells, 'cell')} {verdict}; their ratio would compare the timers" for verdict, cells in tally.refused.items()]
    if every:
        return found
    more = tally.changed - shown
    same = tally.cells - tally.missing - tally.changed - sum(tally.refused.values())
    left = [f"{count(more, 'more changed cell')}"] if more > 0 else []
    left += [f"{count(same, 'cell')} without a change beyond noise"] if same else []
    return [*found, f"not shown: {', '.join(left)}; --all shows every cell"] if left else found


def _different_environments(a: Path, b: Path) -> list[str]:
    """How the environments of two results files differ, from the JSON beside each; none if one has no JSON."""
    from softbench.gate.environment_match import differences
    from softbench.gate.run_files import environment_and_units
    from softbench.results.document import beside, load_header

    with suppress(ResultsError, KeyError, TypeError, ValueError):
        first, second = (environment_and_units(load_header(beside(file)))[0] for file in (a, b))
        return differences(first, second)
    return []


def _document(
    names: Sequence[str], devices: Sequence[str], threshold: float, drift: str, shown: Sequence[Pair], summary: str
) -> dict[str, object]:
    cells = [
        {
            **{"backend": pair.backend, **pair.case._asdict(), "a_gbps": pair.a_gbps, "b_gbps": pair.b_gbps},
            **{"ratio": pair.ratio, "verdict": pair.verdict, "unit": pair.unit},
            **dict(zip(("change", "low", "high"), astuple(pair.change) if pair.change else (None,) * 3, strict=True)),
        }
        for pair in shown
    ]
    files = {letter: {"file": name, "device": device} for letter, name, device in zip("ab", names, devices, strict=True)}
    return {**files, "threshold_percent": threshold, "drift": drift, "summary": summary, "cells": cells}


def _compare(head: Sequence[str], shown: Sequence[Pair], below: Sequence[str], *, markdown: bool) -> None:
    from softbench.cli import output
    from softbench.report import markup, pair_table

    if markdown:
        parts = ["\n".join(f"- {markup.safe(line)}" for line in head), *([pair_table.comparison_markdown(shown)] if shown else [])]
        typer.echo("\n\n".join([*parts, *map(markup.safe, below)]))
        return
    typer.echo("\n".join(head))
    if shown:
        console = output.console()
        output.show(pair_table.comparison(shown, console.width), console)
    typer.echo("\n".join(below))
