"""The command line of the gate and its baselines; `softbench.cli` has the other commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from softbench.commands import (
    ConfigOption,
    DeviceOption,
    DirectionOption,
    DtypeOption,
    MOption,
    NOption,
    PluginOption,
    SeedOption,
    TimeoutOption,
    measure,
    try_json,
    wrote_to_stdout,
)
from softbench.errors import SoftbenchError, UsageError

EPILOG = (
    "Exit codes: 0 pass; 1 a regression, or cells missing or wrong; 2 usage or unreadable input; "
    "3 inconclusive or not comparable; 130 interrupted (143 by SIGTERM)."
)
RunsArgument = Annotated[list[Path], typer.Argument(help="Results CSVs of runs on one machine; their processes add up.")]
MismatchOption = Annotated[
    list[str] | None, typer.Option(metavar="FIELD", help="Compare although this field of the environment differs. Repeatable.")
]
FolderOption = Annotated[Path, typer.Option(help="Folder of the baselines.")]
FOLDER = Path("results") / "baselines"

baselines = typer.Typer(
    help="Baselines of the gate: what several processes measured on one machine, in a readable file.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the program."""
    app.command(epilog=EPILOG)(gate)
    app.add_typer(baselines, name="baseline")


def gate(
    files: Annotated[list[Path] | None, typer.Argument(help="Results CSVs to judge; their processes add up.")] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="A saved baseline, or a file: the runs are judged against it.")
    ] = None,
    candidate: Annotated[str | None, typer.Option(metavar="NAME", help="A backend to measure now, against --reference.")] = None,
    reference: Annotated[str | None, typer.Option(metavar="NAME", help="The backend that --candidate is held against.")] = None,
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
) -> None:
    """Judge whether anything became slower: 0 pass, 1 regression, 3 inconclusive.

    With --baseline, stored runs (3 processes at least) are judged against a baseline (5 at least) of the same GPU model:
    a moderated t test on each cell's process medians, Holm's correction over all cells.

    With --candidate and --reference, both are measured now, interleaved, over the sweep that the other flags describe: a
    signed-rank test on the ratios of the rounds; what is flagged is measured again in two fresh pairs of processes, and
    only if all agree is it a regression.

    Where $GITHUB_STEP_SUMMARY is set, the report is appended there.
    """
    outputs = _Outputs(json, markdown, junit, plot, long)
    outputs.check()
    sweep: dict[str, Any] = {"M": M, "N": N, "dtype": dtype, "direction": direction, "device": device, "plugins": plugin}
    sweep |= {"rounds": rounds, "processes": processes, "seed": seed, "timeout": timeout}
    if candidate is not None or reference is not None:
        if candidate is None or reference is None or files or baseline:
            raise UsageError("gate: --candidate and --reference go together, and without results files or --baseline")
        outputs.render(_contest(candidate, reference, _request(sweep, config, output), margin, max_ambiguous))
    if given := [name for name, value in sweep.items() if value] + (["config"] if config else []):
        raise UsageError(f"gate: --{given[0].removesuffix('s')} says what to measure, which needs --candidate and --reference")
    if not files or baseline is None:
        raise UsageError("gate: give results and what to hold them against: softbench gate results/latest.csv --baseline NAME|FILE")
    outputs.render(_against_baseline(files, baseline, folder, margin, max_ambiguous, allow_env_mismatch or []))


def _against_baseline(files: list[Path], name: str, folder: Path, margin: float | None, ambiguous: float, allowed: list[str]) -> Any:
    from softbench import against_baseline, comparable, evidence
    from softbench.baseline import open_baseline

    base = open_baseline(name, folder)
    runs = [evidence.read(file) for file in files]
    notes = [note for run in runs for note in comparable.check(run, base, allowed)]
    notes += comparable.one_machine(runs, allowed)
    rules = _rules(margin, ambiguous, against_baseline.MARGIN)
    return against_baseline.judge(evidence.join(runs), base, rules, tuple(dict.fromkeys(notes)))


def _request(sweep: dict[str, Any], config: str | None, output: Path) -> Any:
    import sys

    from softbench import __version__, runner, terminal
    from softbench import config as configs

    command = terminal.command_line(sys.argv[1:])
    file = configs.load(config) if config is not None else {}
    return runner.Request(file, configs.from_flags(sweep), False, output, False, command, __version__)


def _contest(candidate: str, reference: str, request: Any, margin: float | None, ambiguous: float) -> Any:
    from functools import partial

    from softbench import contest, same_run

    rules = _rules(margin, ambiguous, same_run.MARGIN)
    asked = contest.ask(request, candidate, reference)
    return contest.judge(partial(measure, resumable=False), asked, candidate, reference, rules)


def _rules(margin: float | None, ambiguous: float, default: float) -> Any:
    from softbench.gate import Rules

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
        from softbench import forest

        try_json(self.json)
        for flag, file in (("--markdown", self.markdown), ("--junit", self.junit), ("--plot", self.plot)):
            if file is not None and (not file.parent.is_dir() or file.is_dir()):
                raise UsageError(f"{flag} {file}: cannot be written: {'is a folder' if file.is_dir() else 'no such folder'}")
        if self.plot is not None:
            forest.check(self.plot)

    def render(self, report: Any) -> None:
        """Write everything that was asked for, and end with the report's exit code."""
        from softbench import terminal, verdicts

        for note in report.notes:
            typer.echo(f"softbench: {note}", err=True)
        if not wrote_to_stdout(report.document(), self.json):
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
        from softbench import forest

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


@baselines.command(epilog=EPILOG)
def save(
    files: RunsArgument,
    name: Annotated[str, typer.Option(help="What to call it; the file is FOLDER/NAME.json.")],
    folder: FolderOption = FOLDER,
    force: Annotated[bool, typer.Option("--force", help="Replace a baseline of that name.")] = False,
) -> None:
    """Save runs (5 processes at least, 10 recommended) as a baseline: softbench baseline save results/latest.csv --name h200."""
    from softbench import baseline, evidence

    file, warnings = baseline.save([evidence.read(path) for path in files], name, folder, force=force)
    _told(warnings)
    typer.echo(file)


@baselines.command(name="list")
def list_baselines(folder: FolderOption = FOLDER) -> None:
    """List the baselines, and which of them cannot be read."""
    from softbench import baseline, tables, terminal, verdicts

    found: list[Any] = []
    for file in baseline.saved(folder):
        try:
            found.append((file.stem, baseline.open_baseline(str(file), folder)))
        except SoftbenchError as error:
            found.append((file.stem, str(error)))
    if not found:
        raise UsageError(f"{folder}: no baselines; save one with: softbench baseline save results/latest.csv --name NAME")
    terminal.show(tables.facts(verdicts.baselines(found)), terminal.console())


@baselines.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A saved baseline, or a file.")], folder: FolderOption = FOLDER
) -> None:
    """Show a baseline: where it was measured, and each cell's figure with its spread between processes."""
    from softbench import baseline, terminal, verdicts

    terminal.show(verdicts.baseline(baseline.open_baseline(name, folder)), terminal.console())


@baselines.command(epilog=EPILOG)
def promote(
    candidate: Annotated[str, typer.Argument(metavar="NAME|FILE", help="The baseline that becomes the one to hold runs against.")],
    name: Annotated[str, typer.Argument(help="The name it takes; what had it is kept as NAME.previous.")],
    allow_env_mismatch: MismatchOption = None,
    folder: FolderOption = FOLDER,
) -> None:
    """Make a saved baseline the one of a name, after a change that is meant to stay; the old one is kept as NAME.previous."""
    from softbench import baseline

    file, previous, warnings = baseline.promote(candidate, name, folder, allow_env_mismatch or [])
    _told(warnings + ([f"the former one is {previous}"] if previous else []))
    typer.echo(file)


def _told(warnings: list[str]) -> None:
    for text in dict.fromkeys(warnings):
        typer.echo(f"softbench: {text}", err=True)
