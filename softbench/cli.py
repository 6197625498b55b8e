"""The command line. Each command parses, makes one call, renders, and ends with an exit code.

Only this module prints: data on stdout, progress and warnings on stderr.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from softbench import __version__
from softbench.errors import Interrupted, SoftbenchError, UsageError
from softbench.units import one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

EPILOG = "Exit codes: 0 fine; 1 a backend is wrong or failed, or nothing was measured; 2 usage; 130 interrupted (143 by SIGTERM)."
LOG_WIDTH = 400  # where nobody's terminal sets a width, tables keep their own

app = typer.Typer(
    help="Compare softmax strategies on the GPU: checked, isolated, interleaved, in GB/s.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help comes up in half the time
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False) -> None:
    if version:
        typer.echo(f"softbench {__version__}")
        raise typer.Exit


@app.command(epilog=EPILOG)
def run(
    backends: Annotated[str | None, typer.Option(help="all, or names: torch,compile. The yardstick, copy, is always added.")] = None,
    M: Annotated[str | None, typer.Option("--M", help="Rows: 4096, or 256,1024, or 256:8192:256, or 256:65536:*2.")] = None,
    N: Annotated[str | None, typer.Option("--N", help="Columns, the reduced axis; written like --M.")] = None,
    dtype: Annotated[str | None, typer.Option(help="fp32, fp16, bf16, or several: fp32,bf16.")] = None,
    direction: Annotated[str | None, typer.Option(help="forward, backward, both (through autograd), or several.")] = None,
    config: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="tutorial, powers, cpu, or a TOML file; flags override it.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:K.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds: passes over the backends of a case. [5]")] = None,
    processes: Annotated[int | None, typer.Option(help="Fresh sets of worker processes, each measuring everything. [1]")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the inputs. [0]")] = None,
    relative_to: Annotated[str | None, typer.Option(help="The backend that speed-ups are over. [torch]")] = None,
    timeout: Annotated[
        str | None, typer.Option(help="Deadline in seconds: 60 for every phase, or import=10,build=600,check=60,time=60.")
    ] = None,
    plugin: Annotated[
        list[Path] | None, typer.Option(help="A Python file that defines backends; it is code that you run. Repeatable.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest interrupted run of these settings here.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the cells and an estimate of the time; measure nothing.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Two short rounds and at most six N of each sweep: a first look.")] = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE|-", help="Write the whole result as JSON there; - is stdout, without the table.")
    ] = None,
) -> None:
    """Check and time every backend on every shape; write a table, DIR/latest.csv and DIR/latest.json.

    Without shapes: on a GPU the sweep of Triton's fused-softmax tutorial (M=4096, N=256:6272:128, fp32), else a short one.
    """
    from softbench import config as configs
    from softbench import runner

    flags = configs.from_flags(
        {"backends": backends, "M": M, "N": N, "dtype": dtype, "direction": direction, "device": device, "plugins": plugin}
        | {"rounds": rounds, "processes": processes, "seed": seed, "relative_to": relative_to, "timeout": timeout}
    )
    command = shlex.join(["softbench", *sys.argv[1:]])
    request = runner.Request(configs.load(config) if config else {}, flags, quick, output, resume, command, __version__)
    if dry_run:
        _show_plan(runner.dry_run(request))
        return
    kept = _measure(request)
    _report(kept, json)
    raise typer.Exit(runner.exit_code(kept.records()))


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A results CSV, such as results/latest.csv.")],
    long: Annotated[bool, typer.Option("--long", help="A line for every cell: latency, spread, samples, build, error over bound.")] = False,
) -> None:
    """Show the table of a results file."""
    from softbench import tables

    console = _console()
    rows = _read(file)
    _print(console, tables.cells(rows) if long else tables.results(rows, console))


@app.command()
def plot(
    file: Annotated[Path, typer.Argument(help="A results CSV, such as results/latest.csv.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="out.png, .svg or .pdf; by default FILE with .png.")] = None,
) -> None:
    """Plot bandwidth over N, with copy drawn; one figure for each direction, dtype and M."""
    rows = _read(file)
    from softbench import plots

    for written in plots.write(rows, out or file.with_suffix(".png")):
        typer.echo(written)


@app.command(name="list")
def list_backends(
    plugin: Annotated[
        list[Path] | None, typer.Option(help="A Python file that defines backends; it is code that you run. Repeatable.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:K.")] = None,
) -> None:
    """List the backends: where they come from, and whether they can run here."""
    from softbench import config as configs
    from softbench import runner, tables

    flags = configs.from_flags({"plugins": plugin, "device": device})
    with _ending():
        offers = runner.offers(configs.resolve({}, flags))
    states = [
        ("broken", o.broken) if o.broken else ("unavailable", o.unavailable) if o.unavailable else ("available", o.summary) for o in offers
    ]
    pairs = [(o.name, state, f"{text} [{o.origin.shown}]") for o, (state, text) in zip(offers, states, strict=True)]
    _print(_console(), tables.facts(pairs))


@app.command()
def doctor() -> None:
    """Look at what a run needs: GPU, driver, torch, triton, compilers; say what to install. Exit code 1 when something is missing."""
    from softbench import doctor as doctors
    from softbench import tables

    with _ending():
        findings = doctors.examine(deadline=120)
    _print(_console(), tables.facts(findings))
    raise typer.Exit(0 if doctors.healthy(findings) else 1)


def _measure(request: Any) -> Any:
    """Run with progress on stderr; an interruption says what is kept."""
    from softbench import runner
    from softbench.progress import Progress

    started: list[Any] = []
    console = _console(stderr=True)
    try:
        with _ending(), Progress(console) as progress:
            return runner.run(request, progress, started.append)
    except Interrupted as stop:
        if started:
            again = request.command + ("" if request.resume else " --resume")
            typer.echo(f"softbench: interrupted; what was measured is in {started[0].csv}; go on with: {again}", err=True)
        raise typer.Exit(stop.exit_code) from None  # Typer would make 130 of every KeyboardInterrupt


def _report(kept: Any, json: Path | None) -> None:
    """The table on stdout (or the JSON), and where the files are on stderr."""
    import json as encoder

    from softbench import tables

    if json is not None:
        text = encoder.dumps(kept.document(), allow_nan=False)
        if str(json) == "-":
            typer.echo(text)
        else:
            _write(json, text + "\n")
    if json is None or str(json) != "-":
        console = _console()
        _print(console, tables.results(kept.rows(), console))
    typer.echo(f"softbench: wrote {kept.csv} and {kept.json}", err=True)


def _show_plan(plan: Any) -> None:
    from softbench import tables, units

    able = [offer.name for offer in plan.offers if not (offer.broken or offer.unavailable)]
    for text in plan.notes:
        typer.echo(f"softbench: {text}", err=True)
    pairs = [(case.key, units.size(case.tensor_bytes), "takes turns" if plan.takes_turns(case, len(able)) else "") for case in plan.cases]
    _print(_console(), tables.facts(pairs))
    settings = plan.settings
    typer.echo(
        f"{units.count(len(plan.cases), 'case')} x {units.count(len(able), 'backend')} ({', '.join(able)}) = "
        f"{units.count(len(plan.cases) * len(able), 'cell')}, {units.count(settings.rounds, 'round')}, "
        f"{settings.processes} set(s) of processes, on {plan.device_name}: about {units.duration(plan.estimate_seconds())}"
    )


def _read(file: Path) -> Any:
    from softbench.results import read_csv

    rows, warnings = read_csv(file)
    for text in warnings:
        typer.echo(f"softbench: {text}", err=True)
    return rows


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"--json {path}: cannot be written: {error.strerror}") from None


def _console(*, stderr: bool = False) -> Console:
    """A console that keeps a terminal's width, and in a log lets tables be as wide as they are. NO_COLOR is rich's own affair."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr) if stream.isatty() else Console(stderr=stderr, width=LOG_WIDTH)


def _print(console: Console, what: RenderableType) -> None:
    console.print(what, markup=False, highlight=False)


@contextmanager
def _ending() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP unwind as Interrupted, so that workers are ended; a second one ends this process at once."""

    def first(signum: int, frame: FrameType | None) -> NoReturn:
        for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(other, lambda number, _: os._exit(128 + number))  # workers are killed with their nursery
        raise Interrupted(signum)

    before = {signum: signal.signal(signum, first) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def main() -> NoReturn:
    """The console script: every expected error is one line on stderr."""
    try:
        app(standalone_mode=True)
    except SoftbenchError as error:
        typer.echo(f"softbench: {one_line(str(error), 2000)}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # `softbench show | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    sys.exit(0)


if __name__ == "__main__":
    main()
