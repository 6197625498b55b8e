"""The command line. Each command parses, makes one call, renders, and ends with an exit code.

Only the source prints (this module, `cli_gate`, `cli_baseline`, `cli_inspect`, and `commands`, which they share): data on stdout, progress
on stderr.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from softbench import __version__
from softbench.cli import baseline as cli_baseline, gate as cli_gate, inspect as cli_inspect
from softbench.cli.options import (
    BackendsOption,
    ConfigOption,
    DeviceOption,
    DirectionOption,
    DtypeOption,
    FileArgument,
    MOption,
    NOption,
    PluginOption,
    RoundsOption,
    SeedOption,
    TimeoutOption,
    measure,
    read,
    try_json,
    working,
    write_text,
    wrote_to_stdout,
)
from softbench.core.errors import SoftbenchError, UsageError
from softbench.core.text import one_line

EPILOG = "Exit codes: 0 fine; 1 a backend is wrong or failed, or nothing was measured; 2 usage; 130 interrupted (143 by SIGTERM)."

app = typer.Typer(
    help="Compare softmax strategies on the GPU: checked, isolated, interleaved, in GB/s.",
    epilog=f"{EPILOG} gate and baseline: 3 inconclusive or not comparable.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help comes up in half the time
    pretty_exceptions_enable=False,
)


TimerOption = Annotated[str | None, typer.Option(help="Of the headline on a GPU: do_bench, device, graph or host. [do_bench]")]
cli_gate.register(app)
cli_baseline.register(app)
cli_inspect.register(app)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False) -> None:
    if version:
        typer.echo(f"softbench {__version__}")
        raise typer.Exit


@app.command(epilog=EPILOG)
def run(
    backends: BackendsOption = None,
    M: MOption = None,
    N: NOption = None,
    dtype: DtypeOption = None,
    direction: DirectionOption = None,
    config: ConfigOption = None,
    device: DeviceOption = None,
    rounds: RoundsOption = None,
    max_rounds: Annotated[int | None, typer.Option(help="Go on to so many rounds where the figure is not known before.")] = None,
    precision: Annotated[float | None, typer.Option(help="Known: the 95 % interval of the median is within this fraction. [0.005]")] = None,
    processes: Annotated[int | None, typer.Option(help="Fresh sets of worker processes, each measuring everything. [1]")] = None,
    seed: SeedOption = None,
    relative_to: Annotated[str | None, typer.Option(help="The backend that speed-ups are over. [torch]")] = None,
    timer: TimerOption = None,
    l2: Annotated[str | None, typer.Option(help="cold: flush L2 before every timed call; warm: do not. [cold]")] = None,
    profile: Annotated[str | None, typer.Option(help="off: no device and host time of a call, for shorter runs. [on]")] = None,
    timeout: TimeoutOption = None,
    plugin: PluginOption = None,
    output: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest interrupted run of these settings here.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the cells and an estimate of the time; measure nothing.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Three short rounds and, without --N, six N at most: a first look.")] = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE|-", help="Write the whole result as JSON there; - is stdout, without the table.")
    ] = None,
) -> None:
    """Check and time every backend on every shape; write a table, DIR/latest.csv and DIR/latest.json.

    Without shapes: on a GPU the sweep of Triton's fused-softmax tutorial (M=4096, N=256:6272:128, fp32), else a short one.
    """
    from softbench.cli import output as terminal
    from softbench.plan.config_file import load
    from softbench.plan.flags import from_flags
    from softbench.run import run as runner

    flags = from_flags(
        {"backends": backends, "M": M, "N": N, "dtype": dtype, "direction": direction, "device": device, "plugins": plugin}
        | {"rounds": rounds, "processes": processes, "seed": seed, "relative_to": relative_to, "timeout": timeout}
        | {"timer": timer, "l2": l2, "profile": profile, "max_rounds": max_rounds, "precision": precision}
    )
    command = terminal.command_line(sys.argv[1:])
    request = runner.Request(load(config) if config is not None else {}, flags, quick, output, resume, command, __version__)
    try_json(json, dry_run)
    if dry_run:
        _show_plan(runner.dry_run(request))
        return
    kept = measure(request)
    _report(kept, json)
    raise typer.Exit(runner.exit_code(kept.records()))


@app.command(epilog=EPILOG)
def check(
    backends: Annotated[str | None, typer.Option(help="all (but extras), names, or patterns: torch,compile:*.")] = None,
    case: Annotated[
        str,
        typer.Option(
            metavar="PATTERN", help="Only cases whose name matches, as a shell's pattern: 'layout *'; with ! before it, the others."
        ),
    ] = "*",
    dtype: Annotated[str, typer.Option(help="fp32, fp16, bf16, or several.")] = "fp32,fp16,bf16",
    direction: Annotated[str, typer.Option(help="forward, backward, or both of them.")] = "forward,backward",
    device: DeviceOption = None,
    seed: SeedOption = None,
    timeout: TimeoutOption = None,
    plugin: PluginOption = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE|-", help="Write the findings as JSON there; - is stdout, without the table.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the findings as JUnit XML there.")] = None,
    long: Annotated[bool, typer.Option("--long", help="A line a case: error over bound, ULP, row sum, Frobenius, reason.")] = False,
) -> None:
    """Check every backend on the catalogue of cases: shapes, layouts, values, gradients, contract. Nothing is timed.

    A sign for each dtype: . pass, ~ low-precision, X wrong, ! failed, ? unverified, - skipped.
    """
    from softbench.cli import output as terminal
    from softbench.plan import sweep
    from softbench.plan.flags import from_flags
    from softbench.plan.settings import Settings
    from softbench.run import check as checking

    flags = from_flags({"backends": backends, "device": device, "seed": seed, "timeout": timeout, "plugins": plugin})
    directions = sweep.parse_choices(direction, "--direction", ["forward", "backward"])
    try_json(json)
    try_json(junit, flag="--junit")
    wanted = checking.CheckRequest(Settings.from_sources({}, flags), case, sweep.parse_dtypes(dtype, "--dtype"), directions)
    with working():
        found = checking.examine(wanted, terminal.counter("cases"))
    files = [str(path) for path in plugin or ()]
    if junit is not None:
        from softbench.report import check_report as checks

        write_text(junit, checks.junit(found, files), "--junit")
    _report_checks(found, json, files, long=long)
    raise typer.Exit(found.exit_code)


@app.command()
def show(
    file: FileArgument,
    long: Annotated[bool, typer.Option("--long", help="A line for every cell: latency, spread, samples, build, error over bound.")] = False,
    costs: Annotated[bool, typer.Option("--costs", help="A line for every backend: build, host time, mean fraction of copy.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="With --costs: as a Markdown table.")] = False,
) -> None:
    """Show the table of a results file."""
    from softbench.cli import output as terminal
    from softbench.report import listing, tables
    from softbench.results import by_backend as costing

    rows, console = read(file), terminal.console()
    if markdown:
        typer.echo(listing.markdown(costing.by_backend(rows)))
    elif costs:
        terminal.show(listing.costs(costing.by_backend(rows)), console)
    else:
        terminal.show(tables.cells(rows) if long else tables.results(rows, console), console)


@app.command()
def plot(
    files: Annotated[list[Path], typer.Argument(help="One or several results CSVs; several are overlaid.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="out.png, .svg or .pdf; by default the first FILE with .png.")] = None,
    costs: Annotated[bool, typer.Option("--costs", help="Instead: a bar for every backend, its mean fraction of copy.")] = False,
) -> None:
    """Plot bandwidth over N, with copy drawn, and the fraction of copy; one figure for each direction, dtype and M."""
    if costs and len(files) > 1:
        raise UsageError("plot --costs: draws one file at a time")
    runs = [(file, read(file)) for file in files]
    from softbench.report import plots

    target = out or files[0].with_suffix(".png")
    for written in [plots.backends(runs[0][1], target)] if costs else plots.write(runs, target):
        typer.echo(written)


@app.command()
def compare(a: FileArgument, b: FileArgument) -> None:
    """Compare two results files cell by cell: the ratio of their bandwidths, marked only where it is beyond the noise of both."""
    from softbench.cli import output as terminal
    from softbench.report import tables
    from softbench.results import compare as comparing

    found = comparing.pairs(read(a), read(b))
    if not found:
        raise UsageError(f"{a} and {b}: no cell of either has a figure")
    terminal.show(tables.comparison(found, (str(a), str(b))), terminal.console())
    typer.echo(comparing.summary(found))


@app.command()
def doctor() -> None:
    """Look at what a run needs: GPU, driver, torch, triton, compilers; say what to install. Exit code 1 when something is missing."""
    from softbench.cli import output as terminal
    from softbench.report import tables
    from softbench.run import doctor as doctors

    with working():
        findings = doctors.examine(deadline=120)
    terminal.show(tables.facts(findings), terminal.console())
    raise typer.Exit(0 if doctors.healthy(findings) else 1)


def _report(kept: Any, json: Path | None) -> None:
    """The table on stdout (or the JSON), and where the files are on stderr."""
    from softbench.cli import output as terminal
    from softbench.report import tables

    if not wrote_to_stdout(kept.document, json):
        console = terminal.console()
        terminal.show(tables.results(kept.rows(), console), console)
    logs = f"; what failed wrote to {kept.log}" if kept.log.exists() else ""
    typer.echo(f"softbench: wrote {kept.csv} and {kept.json}{logs}", err=True)


def _show_plan(plan: Any) -> None:
    from softbench.cli import output as terminal
    from softbench.core import text as units
    from softbench.report import tables

    able = [info.name for info in plan.infos if not (info.broken or info.unavailable)]
    for text in plan.notes:
        typer.echo(f"softbench: {text}", err=True)
    pairs = [(case.key, units.size(case.tensor_bytes), "takes turns" if plan.takes_turns(case, len(able)) else "") for case in plan.cases]
    pairs += [tables.info(info) for info in plan.infos if info.broken or info.unavailable]
    terminal.show(tables.facts(pairs), terminal.console())
    settings = plan.settings
    adaptive = settings.rounds < settings.max_rounds
    rounds = f"{settings.rounds} to {settings.max_rounds} rounds" if adaptive else units.count(settings.rounds, "round")
    typer.echo(
        f"{units.count(len(plan.cases), 'case')} x {units.count(len(able), 'backend')} ({', '.join(able)}) = "
        f"{units.count(len(plan.cases) * len(able), 'cell')}, {rounds}, "
        f"{settings.processes} set(s) of processes, on {plan.device_name}: about {units.duration(plan.estimate_seconds())}"
    )


def _report_checks(found: Any, json: Path | None, plugins: list[str], *, long: bool) -> None:
    from softbench.cli import output as terminal
    from softbench.report import check_report as checks
    from softbench.run import check as checking

    if not wrote_to_stdout(found.document, json):
        console = terminal.console()
        terminal.show(checks.lines(found.findings) if long else checks.table(found.findings), console)
    for text in found.notes:
        typer.echo(f"softbench: {text}", err=True)
    for finding, again in found.to_repeat(plugins):
        verdict = "failed" if finding.verdict == checking.FAILED else f"is {finding.verdict}"
        typer.echo(f"softbench: {finding.backend} {verdict}: {finding.reason}\n  {again}", err=True)


def main() -> NoReturn:
    """The console script: every expected error is one line on stderr."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - it lives as long as the process
        getattr(sys, name).reconfigure(errors="replace")  # a locale without some character must not end a run
    try:
        app(standalone_mode=True)
        sys.stdout.flush()
    except SoftbenchError as error:
        typer.echo(f"softbench: {one_line(str(error), 2000)}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # `softbench show | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # of a stream; everything else has been caught where it happened
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        typer.echo(f"softbench: the output cannot be written: {error.strerror}", err=True)
        sys.exit(2)
    sys.exit(0)


if __name__ == "__main__":
    main()
