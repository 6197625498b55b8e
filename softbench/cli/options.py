"""What the commands share: their common options, and how they read, measure and write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from softbench.core.errors import Interrupted, UsageError

BackendsOption = Annotated[str | None, typer.Option(help="all (but extras), names, or patterns: torch,compile:*. copy is always added.")]
MOption = Annotated[str | None, typer.Option("--M", help="Rows: 4096, or 256,1024, or 256:8192:256, or 256:65536:*2.")]
NOption = Annotated[str | None, typer.Option("--N", help="Columns, the reduced axis; written like --M.")]
DtypeOption = Annotated[str | None, typer.Option(help="fp32, fp16, bf16, or several: fp32,bf16.")]
DirectionOption = Annotated[str | None, typer.Option(help="forward, backward, both (through autograd), or several.")]
ConfigOption = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE", help="tutorial, powers, frontier, small, strategies, gate, cpu, or a file; flags override it."),
]
DeviceOption = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:K.")]
RoundsOption = Annotated[int | None, typer.Option(help="Rounds: passes over the backends of a case. [3 to 10, until it is known]")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of the inputs. [0]")]
PluginOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="[NAME=]FILE", help="A Python file that defines backends; it is code that you run. NAME= renames its backend. Repeatable."
    ),
]
TimeoutOption = Annotated[
    str | None, typer.Option(help="Deadlines in seconds: one for all phases, or some. [import=60,build=300,check=120,time=120]")
]
MismatchOption = Annotated[
    list[str] | None, typer.Option(metavar="FIELD", help="Compare although this field of the environment differs. Repeatable.")
]
FolderOption = Annotated[Path, typer.Option(help="Folder of the baselines.")]
BASELINES = Path("results") / "baselines"
GATE_EPILOG = (
    "Exit codes: 0 pass; 1 a regression, or cells missing or wrong; 2 usage or unreadable input; "
    "3 inconclusive or not comparable; 130 interrupted (143 by SIGTERM)."
)
FileArgument = Annotated[Path, typer.Argument(help="A results CSV, such as results/latest.csv.")]


def measure(request: Any, *, resumable: bool = True) -> Any:
    """Run with progress on stderr; an interruption says what is kept, and how to go on where the command can."""
    from softbench.cli import output as terminal
    from softbench.report.progress import Progress
    from softbench.run import run as runner

    started: list[Any] = []
    try:
        with terminal.ending(), Progress(terminal.console(stderr=True)) as progress:
            return runner.run(request, progress, started.append)
    except Interrupted as stop:
        if started:
            again = request.command + ("" if request.resume else " --resume")
            kept = f"what was measured is in {started[0].csv}" if started[0].cells else "nothing was measured yet"
            typer.echo(f"softbench: interrupted; {kept}" + (f"; go on with: {again}" if resumable else ""), err=True)
        raise typer.Exit(stop.exit_code) from None  # Typer would make 130 of every KeyboardInterrupt


@contextmanager
def working() -> Iterator[None]:
    """A command that keeps nothing: an interruption ends its workers, and it with 130 or 143."""
    from softbench.cli import output as terminal

    try:
        with terminal.ending():
            yield
    except Interrupted as stop:
        typer.echo("softbench: interrupted", err=True)
        raise typer.Exit(stop.exit_code) from None


def read(file: Path) -> Any:
    from softbench.results.csv import read_csv

    rows, warnings = read_csv(file)
    for text in warnings:
        typer.echo(f"softbench: {text}", err=True)
    return rows


def try_json(where: Path | None, dry_run: bool = False, *, flag: str = "--json") -> None:
    """Before any work: the file that is asked for can be written."""
    if where is None or str(where) == "-":
        return
    if dry_run:
        raise UsageError(f"{flag}: a dry run has nothing to write; leave out one of the two")
    try:
        with where.open("a"):
            pass
    except OSError as error:
        raise UsageError(f"{flag} {where}: cannot be written: {error.strerror}") from None


def write_text(where: Path, text: str, flag: str) -> None:
    """A report into the file that was asked for."""
    try:
        where.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{flag} {where}: cannot be written: {error.strerror}") from None


def wrote_to_stdout(document: Callable[[], Any], where: Path | None) -> bool:
    """Make a document and write it as JSON where it was asked for; True when that was stdout, which then belongs to it alone."""
    import json as encoder

    if where is None:
        return False
    text = encoder.dumps(document(), allow_nan=False)
    if str(where) == "-":
        typer.echo(text)
        return True
    write_text(where, text + "\n", "--json")
    return False


def warn(warnings: list[str]) -> None:
    """Each warning once, on stderr."""
    for text in dict.fromkeys(warnings):
        typer.echo(f"softbench: {text}", err=True)
