"""The command line of the gate; `softbench.cli.main` has the other commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from softbench.cli.options import (
    BASELINES as FOLDER,
    GATE_EPILOG as EPILOG,
    ConfigOption,
    DeviceOption,
    DirectionOption,
    DtypeOption,
    FolderOption,
    MismatchOption,
    MOption,
    NOption,
    PluginOption,
    SeedOption,
    TimeoutOption,
    measure,
    try_json,
    warn,
    wrote_to_stdout,
)
from softbench.core.errors import InconclusiveError, SoftbenchError, UsageError


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the program."""
    app.command(epilog=EPILOG)(gate)


def gate(
    files: Annotated[list[Path] | None, typer.Argument(help="Results CSVs to judge; their processes add up.")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="A saved baseline, or a file, to judge runs against; with --candidate it tells the noise."),
    ] = None,
    candidate: Annotated[str | None, typer.Option(metavar="NAME", help="A backend to measure now, against --reference.")] = None,
    reference: Annotated[str | None, typer.Option(metavar="NAME", help="The backend that --candidate is held against.")] = None,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Measure the gate's own false alarms and power; with FILES, add up earlier self-tests.")
    ] = False,
    families: Annotated[int | None, typer.Option(help="Families of the self-test: sets of fresh processes. [59]")] = None,
    margin: Annotated[float | None, typer.Option(metavar="PERCENT", help="A slowdown that is let pass. [5; with --candidate 3]")] = None,
    max_ambiguous: Annotated[float, typer.Option(metavar="PERCENT", help="More ambiguous cells than this: exit code 3.")] = 10.0,
    allow_env_mismatch: MismatchOption = None,
    folder: FolderOption = FOLDER,
    long: Annotated[bool, typer.Option("--long", help="A line for every cell, not only for those that changed.")] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE|-", help="Write the verdicts as JSON; - is stdout, without the table.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the report as Markdown there.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML there: a test case a cell.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the ratios with the margin as a forest plot: .png, .svg or .pdf.")] = None,
    M: MOption = None,
    N: NOption = None,
    dtype: DtypeOption = None,
    direction: DirectionOption = None,
    config: ConfigOption = None,
    device: DeviceOption = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of a process pair. [20]")] = None,
    processes: Annotated[int | None, typer.Option(help="Fresh pairs of processes to screen with; all must agree. [1]")] = None,
    seed: SeedOption = None,
    timeout: TimeoutOption = None,
    plugin: PluginOption = None,
    output: Annotated[Path, typer.Option(help="Folder of what is measured.")] = Path("results") / "gate",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted self-test of these settings in that folder.")] = False,
) -> None:
    """Judge whether anything became slower: 0 pass, 1 regression, 3 inconclusive.

    With --baseline, stored runs (3 processes at least) are judged against a baseline (5 at least) of the same GPU model:
    a moderated t test on each cell's process medians, Holm's correction over all cells.

    With --candidate and --reference, both are measured now, interleaved, over the sweep that the other flags describe: a
    signed-rank test on the ratios of the rounds; what is flagged is measured again in two fresh pairs of processes, and
    only if all agree is it a regression. Where processes differ (--processes K or --baseline tell), the margin is raised.

    With --self-test, --reference (torch) is measured beside its own twin and with slowdowns planted, in fresh processes each
    time: false alarms with their upper bound, power with its lower bounds. Exit code 1 when it alarmed at nothing.

    Where $GITHUB_STEP_SUMMARY is set, the report is appended there.
    """
    from softbench.gate.environment_match import validate
    from softbench.gate.paired import MARGIN

    outputs = _Outputs(json, markdown, junit, plot, long)
    outputs.check()
    sweep: dict[str, Any] = {"M": M, "N": N, "dtype": dtype, "direction": direction, "device": device, "plugins": plugin}
    sweep |= {"rounds": rounds, "processes": processes, "seed": seed, "timeout": timeout}
    validate(allowed := allow_env_mismatch or [])
    if self_test:
        if any(one is not None for one in (candidate, baseline, processes, markdown, junit)):
            raise UsageError("gate: --self-test goes with --reference, --families, --json, --plot and the sweep; leave out the others")
        rules = _rules(margin, max_ambiguous, MARGIN)
        _self_test(files or [], reference or "torch", families, _request(sweep, config, output, resume), rules, allowed, outputs)
    if families is not None or resume:
        raise UsageError(f"gate: --{'resume' if resume else 'families'} goes with --self-test")
    if candidate is not None or reference is not None:
        if candidate is None or reference is None or files:
            raise UsageError("gate: --candidate and --reference go together, and without results files")
        stored = (baseline, folder, allowed)
        outputs.render(_versus(candidate, reference, _request(sweep, config, output), margin, max_ambiguous, *stored))
    if given := [name for name, value in {**sweep, "config": config}.items() if value not in (None, [])]:
        flag = "plugin" if given[0] == "plugins" else given[0]
        raise UsageError(f"gate: --{flag} says what to measure, which needs --candidate and --reference")
    if not files or baseline is None:
        raise UsageError("gate: give results and what to hold them against: softbench gate results/latest.csv --baseline NAME|FILE")
    outputs.render(_against_baseline(files, baseline, folder, margin, max_ambiguous, allowed))


def _against_baseline(files: list[Path], name: str, folder: Path, margin: float | None, ambiguous: float, allowed: list[str]) -> Any:
    from softbench.gate import environment_match as comparable, samples as evidence, unpaired as against_baseline
    from softbench.gate.baselines import open_baseline

    base = open_baseline(name, folder)
    runs = [evidence.read(file) for file in files]
    notes = [note for run in runs for note in comparable.check(run, base, allowed)]
    notes += comparable.one_machine(runs, allowed)
    rules = _rules(margin, ambiguous, against_baseline.MARGIN)
    for run in runs:
        if again := sorted(set(run.runs) & set(base.runs)):
            told = f"{again[0]} is part of the baseline {name}"
            raise InconclusiveError(f"{run.source}: {told}; a run cannot be judged by itself: measure anew")
    return against_baseline.judge(evidence.join(runs), base, rules, tuple(dict.fromkeys(notes)))


def _request(sweep: dict[str, Any], config: str | None, output: Path, resume: bool = False) -> Any:
    import sys

    from softbench import __version__
    from softbench.cli import output as terminal
    from softbench.plan.config_file import load
    from softbench.plan.flags import from_flags
    from softbench.run import run as runner

    command = terminal.command_line(sys.argv[1:])
    file = load(config) if config is not None else {}
    return runner.Request(file, from_flags(sweep), False, output, resume, command, __version__)


def _versus(
    candidate: str,
    reference: str,
    request: Any,
    margin: float | None,
    ambiguous: float,
    baseline: str | None,
    folder: Path,
    allowed: list[str],
) -> Any:
    from functools import partial

    from softbench.gate import ab_run as versus, paired as same_run
    from softbench.gate.baselines import open_baseline

    rules = _rules(margin, ambiguous, same_run.MARGIN)
    base = open_baseline(baseline, folder) if baseline else None
    warn(versus.rounds_told(request))
    asked = versus.ask(request, candidate, reference)
    return versus.judge(partial(measure, resumable=False), asked, candidate, reference, rules, base, allowed)


def _self_test(
    files: list[Path], base: str, families: int | None, request: Any, rules: Any, allowed: list[str], outputs: _Outputs
) -> NoReturn:
    from functools import partial

    from softbench.cli import output as terminal
    from softbench.gate import samples as evidence
    from softbench.gate.environment_match import one_machine
    from softbench.gate.self_test import analysis as calibration
    from softbench.report import self_test_report as power

    if files:
        if families is not None or request.resume:
            raise UsageError("gate: --families and --resume are of a measurement; with FILES nothing is measured")
        runs = [evidence.read(file) for file in files]
        warn(one_machine(runs, allowed))
        run = evidence.join(runs)
    else:
        from softbench.gate.ab_run import rounds_told
        from softbench.gate.self_test.measure import FAMILIES, measure_families

        count = FAMILIES if families is None else families
        if not calibration.LEAST_FAMILIES <= count <= 1000:
            raise UsageError(f"--families {count}: must be from {calibration.LEAST_FAMILIES} to 1000")

        def announce(plan: str) -> None:
            warn([*rounds_told(request), plan])

        run = measure_families(partial(measure, resumable=True), request, base, count, announce)
    found = calibration.analyse(run, base, rules)
    if not wrote_to_stdout(found.document, outputs.json):
        terminal.show(power.table(found), terminal.console())
    if outputs.plot is not None:
        typer.echo(f"softbench: wrote {power.plot(found, outputs.plot)}", err=True)
    raise typer.Exit(found.exit_code)


def _rules(margin: float | None, ambiguous: float, default: float) -> Any:
    from softbench.gate.verdicts import Rules

    for name, value in (("--margin", margin), ("--max-ambiguous", ambiguous)):
        if value is not None and not 0 <= value <= 100:
            raise UsageError(f"{name} {value:g}: must be a percentage from 0 to 100")
    if margin is not None and not margin > 0:
        raise UsageError("--margin 0: nothing is measured that exactly; give the percentage that you let pass, such as 3")
    return Rules(margin=margin / 100 if margin else default, most_ambiguous=ambiguous / 100)


class _Outputs:
    """Where a report goes; looked at before any work."""

    def __init__(self, json: Path | None, markdown: Path | None, junit: Path | None, plot: Path | None, long: bool) -> None:
        self.json, self.markdown, self.junit, self.plot, self.long = json, markdown, junit, plot, long

    def check(self) -> None:
        """UsageError where a file cannot be written."""
        from softbench.report import forest_plot as forest

        try_json(self.json)
        for flag, file in (("--markdown", self.markdown), ("--junit", self.junit), ("--plot", self.plot)):
            if file is not None and (not file.parent.is_dir() or file.is_dir()):
                raise UsageError(f"{flag} {file}: cannot be written: {'is a folder' if file.is_dir() else 'no such folder'}")
        if self.plot is not None:
            forest.check(self.plot)

    def render(self, report: Any) -> None:
        """Write everything that was asked for, and end with the report's exit code."""
        from softbench.cli import output as terminal
        from softbench.report import gate_report as verdicts

        for note in report.notes:
            typer.echo(f"softbench: {note}", err=True)
        if not wrote_to_stdout(report.document, self.json):
            terminal.show(verdicts.text(report, long=self.long), terminal.console())
        for flag, file, make in (("--markdown", self.markdown, verdicts.markdown), ("--junit", self.junit, verdicts.junit)):
            if file is not None:
                self._write(flag, file, make(report))
        self._summary(verdicts.markdown(report))
        if self.plot is not None:
            self._draw(report, self.plot)
        raise typer.Exit(report.exit_code)

    def _write(self, flag: str, file: Path, words: str) -> None:
        try:
            file.write_text(words, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{flag} {file}: cannot be written: {error.strerror}") from None
        typer.echo(f"softbench: wrote {file}", err=True)

    def _draw(self, report: Any, file: Path) -> None:
        """A figure that cannot be drawn must not hide the verdict: it is said, and the exit code stays."""
        from softbench.report import forest_plot as forest

        try:
            typer.echo(f"softbench: wrote {forest.write(report, file)}", err=True)
        except SoftbenchError as error:
            typer.echo(f"softbench: {error}", err=True)

    def _summary(self, words: str) -> None:
        """GitHub shows what is appended to this file on the job's page. A CI that cannot take it must not lose the verdict."""
        if where := os.environ.get("GITHUB_STEP_SUMMARY"):
            try:
                with Path(where).open("a", encoding="utf-8") as file:
                    file.write(words)
            except OSError as error:
                typer.echo(f"softbench: $GITHUB_STEP_SUMMARY cannot be written: {error.strerror}", err=True)
