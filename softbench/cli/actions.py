"""Functions that several commands share: measure with progress, read and write files, print notes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NoReturn

import typer

from softbench.cli import verbosity
from softbench.cli.panels import CONTEXT
from softbench.core.errors import Interrupted, ResultsError, StorageError, UsageError
from softbench.core.files import not_written, replace_file
from softbench.core.text import printable
from softbench.results.document import beside

if TYPE_CHECKING:
    from softbench.plan.plan import Plan
    from softbench.results.columns import Row
    from softbench.results.writer import Run
    from softbench.run.fleet.fleet import How
    from softbench.run.request import RunRequest

TO_STDOUT = ("--json", "--csv")
"""Flags whose - is stdout."""


def note(text: str, *, error: bool = False) -> None:
    """Print a note on stderr, without control sequences: it may quote a file. With `--quiet` only errors and losses are printed."""
    if error or not verbosity.quiet():
        typer.echo(f"softbench: {printable(text)}", err=True)


def warn(warnings: Sequence[str]) -> None:
    """Print each warning once, on stderr."""
    for text in dict.fromkeys(warnings):
        note(text)


def end(code: int, message: str = "") -> NoReturn:
    """Exit with this code, also if the message or what the streams still hold cannot be written."""
    with suppress(OSError):
        if message:
            typer.echo(f"softbench: {printable(message)}", err=True)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # Python flushes again when it ends, and would exit with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


class _DryRun(Exception):  # noqa: N818, it is no error
    """Has a plan and what is told of it, in place of a measurement."""


def measure(
    request: RunRequest,
    *,
    resumable: bool = True,
    announced: list[Callable[[Plan], str]] | None = None,
    show: Callable[[Run], None] | None = None,
    several: How | None = None,
) -> Run:
    """Run with progress on stderr. An interruption prints the files that exist, and the command to continue if there is one.

    `several`: the cards, if there are several.

    Each function of `announced` is called once, with the plan of the first measurement. It returns a note, or raises to measure nothing.
    With `--dry-run` the plan is shown then, and nothing is measured.

    Raises:
        StorageError, CardsLostError: the disk is full, or no card is left. `show`, or a table, has printed what was measured.
    """
    from softbench.cli import output
    from softbench.report.progress import Progress
    from softbench.run import run
    from softbench.run.fleet.members import CardsLostError

    started: list[Run] = []
    try:
        with (
            output.interruptible(),
            Progress(output.console(stderr=True), quiet=verbosity.quiet(), verbose=verbosity.verbose()) as progress,
        ):

            def on_start(begun: Run) -> None:
                started.append(begun)
                progress.leader.rows = begun.rows

            def on_plan(plan: Plan) -> None:
                while announced:
                    text = announced.pop(0)(plan)
                    if CONTEXT.get().params.get("dry_run"):
                        raise _DryRun(plan, text)
                    progress.note(text)

            if several is None:
                return run.run(request, progress, on_start, on_plan)
            from softbench.run.fleet import fleet

            return fleet.run(several, request, progress, on_start)
    except _DryRun as planned:
        _show_plan(*planned.args)
        raise typer.Exit(0) from None
    except (StorageError, CardsLostError) as error:
        if not started or not started[0].cells:
            raise
        (show or show_table)(started[0])
        raise type(error)(f"{error}; then continue with: {_continuation(request)}" if resumable else str(error)) from None
    except Interrupted as stop:
        if started:
            state = f"what was measured is in {started[0].csv}" if started[0].cells else "nothing was measured yet"
            end(stop.exit_code, f"interrupted; {state}" + (f"; continue with: {_continuation(request)}" if resumable else ""))
        end(stop.exit_code)


def _show_plan(plan: Plan, told: str) -> None:
    from softbench.cli.plans import show_plan
    from softbench.plan.estimate import run_seconds
    from softbench.plan.plan import nothing_stored

    seconds = run_seconds(plan)
    if not wrote_to_stdout(lambda: plan.document(seconds, "", nothing_stored), CONTEXT.get().params.get("json")):
        show_plan(plan, seconds, "", nothing_stored)
    note(told)


def show_table(measured: Run) -> None:
    """Print the table of a run on stdout."""
    from softbench.cli import output
    from softbench.report import tables

    console = output.console(log_width=output.TABLE_WIDTH)
    output.show(tables.results(measured.rows(), console, str(measured.csv), every=verbosity.verbose()), console)


def _continuation(request: RunRequest) -> str:
    """The command that continues a run."""
    return typed_command() + ("" if request.resume else " --resume")


def typed_command() -> str:
    """This command line as the shell takes it again, with the program as it was called: it may not be on PATH."""
    program = Path(sys.argv[0])
    found = shutil.which("softbench")
    if program.name == "__main__.py":
        words = ["python", "-m", "softbench"]
    elif program.name == "softbench" and found and Path(found).resolve() == program.resolve():
        words = ["softbench"]
    else:
        words = [sys.argv[0]]
    return shlex.join([*words, *sys.argv[1:]])


@contextmanager
def interruptible() -> Iterator[None]:
    """For a command without files: an interruption ends its workers, and its exit code is 130 or 143."""
    from softbench.cli import output

    try:
        with output.interruptible():
            yield
    except Interrupted as stop:
        end(stop.exit_code, "interrupted")


def read(file: Path, keep: Collection[str] | None = None) -> Sequence[Row]:
    """The rows of a results CSV, or of stdin if the file is `-`; warnings go to stderr. `keep`: the fields that rows have; None for all."""
    from softbench.results.csv import read_csv

    if str(file) != "-":
        rows, warnings = read_csv(file, keep)
    else:
        with TemporaryDirectory() as folder:
            copy = Path(folder) / "stdin.csv"
            copy.write_bytes(sys.stdin.buffer.read())
            try:
                rows, warnings = read_csv(copy, keep, stored=False)
            except ResultsError as error:
                raise ResultsError(str(error).replace(str(copy), "stdin")) from None
            warnings = [text.replace(str(copy), "stdin") for text in warnings]
    warn(warnings)
    return rows


def results_file(file: Path) -> Path:
    """The results CSV that an argument names: in place of a folder its latest run, with a note. Raises as `runs.latest`."""
    from softbench.results.runs import latest

    found, text = latest(file)
    warn([text] if text else [])
    return found


def reject_input(file: Path, flag: str) -> None:
    """Check that no other argument of the command names the file, or a CSV whose JSON it is.

    Raises:
        UsageError: one does, so the command would overwrite what it reads or writes.
    """
    context = CONTEXT.get()
    given = [context.params.get(one.name) for one in context.command.params if flag not in one.opts] if context else []
    listed = [value for one in given for value in (one if isinstance(one, list | tuple) else [one])]
    kinds = str | Path if file.exists() else Path  # a name of something else is a file's only if there is that file
    texts = [str(value) for value in listed if isinstance(value, kinds)]
    named = {Path(part) for text in texts for part in (text, text.rpartition("=")[2], text.rpartition("=")[2].partition(":")[0])}
    named |= {beside(path) for path in named if path.suffix == ".csv" and file.exists()}
    if file.resolve() in {path.resolve() for path in named}:
        raise UsageError(f"{flag} {file}: another argument of this command is that file, or its results; name another one")


def reject_two_for_stdout(flags: Sequence[str]) -> None:
    """Raise UsageError if more than one flag asks for stdout."""
    if len(flags) > 1:
        raise UsageError(f"{' and '.join(flags)}: only one of them can have stdout; give a file instead of -")


def reject_stdout(file: Path, flag: str) -> None:
    """Raise UsageError if the file is -, which would be a file of that name."""
    if str(file) == "-":
        raise UsageError(f"{flag} -: only {' and '.join(TO_STDOUT)} write to stdout; give a file")


def try_file(file: Path | None, *, flag: str = "--json") -> None:
    """Check before any work that the requested file can be written.

    Raises:
        UsageError: it cannot be written, or the command reads it, or it is -, and this flag has no stdout.
    """
    if file is None or (str(file) == "-" and flag in TO_STDOUT):
        return
    reject_stdout(file, flag)
    reject_input(file, flag)
    place = file.resolve()
    if file.is_fifo():  # opening it waits for a reader, and closing it ends what the reader gets
        return
    try:
        try:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            with place.open("a"):
                return
        place.unlink(missing_ok=True)  # bad input found later leaves no empty file
    except OSError as error:
        raise not_written(f"{flag} {file}", error) from None


def write_text(file: Path, text: str, flag: str) -> None:
    """Write a report into the requested file. On a full disk an existing file stays as it was.

    Raises:
        UsageError: it cannot be written, or the command reads it.
    """
    reject_input(file, flag)
    try:
        if file.is_file():
            replace_file(file.resolve(), text)
        else:  # a new file, or a pipe
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise not_written(f"{flag} {file}", error) from None


def printed(text: str, file: Path | None, flag: str) -> bool:
    """Write a text into the requested file. True if it went to stdout, which then gets nothing else."""
    if file is None:
        return False
    if str(file) == "-":
        typer.echo(text, nl=False)
        return True
    write_text(file, text, flag)
    return False


def wrote_to_stdout(document: Callable[[], dict[str, object]], file: Path | None) -> bool:
    """Write a document as JSON if requested. True if it went to stdout, which then gets nothing else."""
    return file is not None and printed(json.dumps(document(), allow_nan=False) + "\n", file, "--json")
