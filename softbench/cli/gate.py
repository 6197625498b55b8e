"""`softbench gate`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from softbench import __version__
from softbench.cli import options
from softbench.cli.actions import measure, note, try_file, warn, write_text, wrote_to_stdout
from softbench.cli.panels import PanelCommand
from softbench.core.errors import InconclusiveError, SoftbenchError, UsageError

if TYPE_CHECKING:
    from softbench.gate.samples import RunSamples
    from softbench.gate.verdicts import GateReport, Rules
    from softbench.run.request import Request


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand, epilog=options.GATE_EPILOG)(gate)


def gate(
    files: Annotated[list[Path] | None, typer.Argument(help="Results CSVs to judge; their processes add up.")] = None,
    baseline: options.Baseline = None,
    candidate: options.Candidate = None,
    reference: options.Reference = None,
    self_test: options.SelfTest = False,
    families: options.Families = None,
    margin: options.Margin = None,
    max_ambiguous: options.MaxAmbiguous = 10.0,
    allow_env_mismatch: options.Mismatch = None,
    folder: options.Folder = options.BASELINES,
    long: options.LongVerdicts = False,
    json: options.VerdictsJson = None,
    markdown: options.VerdictsMarkdown = None,
    junit: options.VerdictsJunit = None,
    plot: options.VerdictsPlot = None,
    M: options.Rows = None,
    N: options.Columns = None,
    dtype: options.Dtype = None,
    direction: options.Directions = None,
    config: options.Config = None,
    device: options.Device = None,
    rounds: options.GateRounds = None,
    processes: options.GateProcesses = None,
    seed: options.Seed = None,
    timeout: options.Timeout = None,
    plugin: options.Plugin = None,
    output: options.GateOutput = Path("results") / "gate",
    resume: options.GateResume = False,
) -> None:
    """Judge whether a backend became slower: 0 pass, 1 regression, 3 inconclusive.

    With --baseline, stored runs (3 processes at least) are compared with a baseline (5 at least) of the same GPU model.
    The test is a moderated t test on each cell's process medians, with Holm's correction over all cells.

    With --candidate and --reference, both are measured now, interleaved, over the sweep of the other flags. Cells that are not
    clearly within the margin are measured again in 3 to 12 fresh process pairs. Only these decide: the test is a
    moderated t test on the pairs' median ratios, with Holm's correction over the cells and a part of its error rate for each look.

    With --self-test, --reference is measured with its A/A copy and with slowed copies, each A/A repetition in fresh processes.
    The result bounds false alarms and power. Exit code 1: a false alarm, or fewer than 95 % of the repetitions pass.

    If $GITHUB_STEP_SUMMARY is set, the report is appended there.
    """
    outputs = _Outputs(json, markdown, junit, plot, long)
    outputs.check()
    sweep: dict[str, Any] = {"M": M, "N": N, "dtype": dtype, "direction": direction, "device": device, "plugins": plugin}
    sweep |= {"rounds": rounds, "processes": processes, "seed": seed, "timeout": timeout}
    stored = _Stored(baseline, folder, allow_env_mismatch or [])
    strictness = _Strictness(margin, max_ambiguous)
    if self_test:
        _reject_with_self_test(candidate, baseline, processes, markdown, junit)
        _self_test(files, reference, families, _request(sweep, config, output, resume), strictness, stored, outputs)
    _reject_without_self_test(families, resume)
    if candidate is not None or reference is not None:
        outputs.render(_ab_run(*_pair(candidate, reference, files), _request(sweep, config, output), strictness, stored))
    _reject_with_stored_runs({**sweep, "config": config})
    if not files or baseline is None:
        raise UsageError("gate: give results and a baseline: softbench gate results/latest.csv --baseline NAME|FILE")
    outputs.render(_against_baseline(files, baseline, strictness, stored))


def _reject_with_self_test(*values: object) -> None:
    if any(value is not None for value in values):
        raise UsageError("gate: --self-test goes with --reference, --families, --json, --plot and the sweep; leave out the others")


def _reject_without_self_test(families: int | None, resume: bool) -> None:
    if families is not None or resume:
        raise UsageError(f"gate: --{'resume' if resume else 'families'} goes with --self-test")


def _pair(candidate: str | None, reference: str | None, files: list[Path] | None) -> tuple[str, str]:
    if candidate is None or reference is None or files:
        raise UsageError("gate: --candidate and --reference go together, and without results files")
    return candidate, reference


def _reject_with_stored_runs(sweep: dict[str, Any]) -> None:
    if rejected := [name for name, value in sweep.items() if value not in (None, [])]:
        flag = "plugin" if rejected[0] == "plugins" else rejected[0]
        raise UsageError(f"gate: --{flag} is for a measurement, which needs --candidate and --reference")


@dataclass(frozen=True, slots=True)
class _Stored:
    """The baseline to compare with, and the facts of the environment that may differ."""

    name: str | None
    folder: Path
    allowed: list[str]

    def __post_init__(self) -> None:
        from softbench.gate.environment_match import validate

        validate(self.allowed)

    def open(self) -> RunSamples | None:
        """The baseline, if one is named."""
        from softbench.gate.baselines import open_baseline

        return open_baseline(self.name, self.folder) if self.name else None


@dataclass(frozen=True, slots=True)
class _Strictness:
    """Percentages from the command line; `rules` checks them."""

    margin: float | None
    ambiguous: float

    def rules(self, default_margin: float) -> Rules:
        """The gate's rules; raises UsageError for a value that is not a percentage."""
        from softbench.gate.verdicts import Rules

        for name, value in (("--margin", self.margin), ("--max-ambiguous", self.ambiguous)):
            if value is not None and not 0 <= value <= 100:
                raise UsageError(f"{name} {value:g}: must be a percentage from 0 to 100")
        if self.margin is not None and not self.margin > 0:
            raise UsageError("--margin 0: no measurement is that exact; give the percentage that passes, such as 3")
        return Rules(margin=self.margin / 100 if self.margin else default_margin, most_ambiguous=self.ambiguous / 100)


def _against_baseline(files: list[Path], name: str, strictness: _Strictness, stored: _Stored) -> GateReport:
    from softbench.gate import environment_match, run_files, samples, unpaired
    from softbench.gate.baselines import open_baseline

    base = open_baseline(name, stored.folder)
    runs = [run_files.read(file) for file in files]
    notes = [text for run in runs for text in environment_match.check(run, base, stored.allowed)]
    notes += environment_match.one_machine(runs, stored.allowed)
    rules = strictness.rules(unpaired.MARGIN)
    for run in runs:
        if shared := sorted(set(run.runs) & set(base.runs)):
            raise InconclusiveError(
                f"{run.source}: {shared[0]} is part of the baseline {name}; a run cannot be compared with itself: measure again"
            )
    return unpaired.judge(samples.join(runs), base, rules, tuple(dict.fromkeys(notes)))


def _request(sweep: dict[str, Any], config: str | None, folder: Path, resume: bool = False) -> Request:
    from softbench.cli.output import command_line
    from softbench.plan.config_file import load
    from softbench.plan.flags import from_flags
    from softbench.run.request import Request

    layer = load(config) if config is not None else {}
    return Request(layer, from_flags(sweep), False, folder, resume, command_line(sys.argv[1:]), __version__)


def _ab_run(candidate: str, reference: str, request: Request, strictness: _Strictness, stored: _Stored) -> GateReport:
    from softbench.gate import ab_run, paired

    rules, base = strictness.rules(paired.MARGIN), stored.open()
    ab_request = ab_run.ab_request(request, candidate, reference)
    warn(ab_run.rounds_notes(request))
    measuring = partial(measure, resumable=False, announced=[ab_run.plan_text(ab_request, rules)])
    return ab_run.judge(measuring, ab_request, candidate, reference, rules, base, stored.allowed)


def _self_test(
    files: list[Path] | None,
    reference: str | None,
    families: int | None,
    request: Request,
    strictness: _Strictness,
    stored: _Stored,
    outputs: _Outputs,
) -> NoReturn:
    from softbench.cli import output
    from softbench.gate import paired, run_files, samples
    from softbench.gate.environment_match import one_machine
    from softbench.gate.self_test import analysis
    from softbench.report import self_test_report

    backend, rules = reference or "torch", strictness.rules(paired.MARGIN)
    if files:
        if families is not None or request.resume:
            raise UsageError("gate: --families and --resume are for a measurement; with FILES nothing is measured")
        runs = [run_files.read(file) for file in files]
        warn(one_machine(runs, stored.allowed))
        run = samples.join(runs)
    else:
        run = _measure_repetitions(backend, families, request)
    result = analysis.analyse(run, backend, rules)
    if not wrote_to_stdout(result.document, outputs.json):
        output.show(self_test_report.table(result), output.console())
    if outputs.plot is not None:
        note(f"wrote {self_test_report.plot(result, outputs.plot)}")
    raise typer.Exit(result.exit_code)


def _measure_repetitions(reference: str, families: int | None, request: Request) -> RunSamples:
    from softbench.gate.ab_run import rounds_notes
    from softbench.gate.self_test.analysis import MIN_REPETITIONS
    from softbench.gate.self_test.measure import REPETITIONS, measure_repetitions

    count = REPETITIONS if families is None else families
    if not MIN_REPETITIONS <= count <= 1000:
        raise UsageError(f"--families {count}: must be from {MIN_REPETITIONS} to 1000")

    def announce(plan: str) -> None:
        warn([*rounds_notes(request), plan])

    return measure_repetitions(measure, request, reference, count, announce)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """The requested outputs of a report."""

    json: Path | None
    markdown: Path | None
    junit: Path | None
    plot: Path | None
    long: bool

    def check(self) -> None:
        """Before any work: raise UsageError for a file that cannot be written."""
        from softbench.report import forest_plot

        try_file(self.json)
        for flag, file in (("--markdown", self.markdown), ("--junit", self.junit), ("--plot", self.plot)):
            if file is not None and (not file.parent.is_dir() or file.is_dir()):
                raise UsageError(f"{flag} {file}: cannot be written: {'is a folder' if file.is_dir() else 'no such folder'}")
        if self.plot is not None:
            forest_plot.check(self.plot)

    def render(self, report: GateReport) -> NoReturn:
        """Write every requested output, and exit with the report's code."""
        from softbench.cli import output
        from softbench.report import gate_report

        for text in report.notes:
            note(text)
        if not wrote_to_stdout(report.document, self.json):
            output.show(gate_report.text(report, long=self.long), output.console())
        for flag, file, make in (("--markdown", self.markdown, gate_report.markdown), ("--junit", self.junit, gate_report.junit)):
            if file is not None:
                write_text(file, make(report), flag)
                note(f"wrote {file}")
        self._summary(gate_report.markdown(report))
        if self.plot is not None:
            self._draw(report, self.plot)
        raise typer.Exit(report.exit_code)

    def _draw(self, report: GateReport, file: Path) -> None:
        """Draw the forest plot. An error is printed and does not change the exit code."""
        from softbench.report import forest_plot

        try:
            note(f"wrote {forest_plot.write(report, file)}")
        except SoftbenchError as error:
            note(str(error))

    def _summary(self, text: str) -> None:
        """Append to GitHub's job summary. An error is printed and does not change the exit code."""
        if path := os.environ.get("GITHUB_STEP_SUMMARY"):
            try:
                with Path(path).open("a", encoding="utf-8") as file:
                    file.write(text)
            except OSError as error:
                note(f"$GITHUB_STEP_SUMMARY cannot be written: {error.strerror}")
