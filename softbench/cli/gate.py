"""`softbench gate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from softbench import __version__
from softbench.cli import options
from softbench.cli.actions import measure, note, typed_command, warn, wrote_to_stdout
from softbench.cli.gate_outputs import Outputs
from softbench.cli.panels import PanelCommand
from softbench.core.errors import InconclusiveError, UsageError

if TYPE_CHECKING:
    from softbench.gate.samples import RunSamples
    from softbench.gate.verdicts import GateReport, Rules
    from softbench.plan.plan import Plan
    from softbench.run.request import RunRequest


SWEEP = ("M", "N", "shape", "dim", "set", "dtype", "direction", "device", "threads", "rounds", "processes", "seed", "timeout")
"""The options of a measurement that are settings under their own name."""


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
    quiet: options.Quiet = False,
    json: options.VerdictsJson = None,
    markdown: options.VerdictsMarkdown = None,
    junit: options.VerdictsJunit = None,
    plot: options.VerdictsPlot = None,
    M: options.Rows = None,
    N: options.Columns = None,
    shape: options.Shapes = None,
    dim: options.Dims = None,
    dtype: options.Dtype = None,
    direction: options.Directions = None,
    op: options.Operations = None,
    set: options.Parameters = None,
    config: options.Config = None,
    device: options.Device = None,
    threads: options.Threads = None,
    rounds: options.GateRounds = None,
    processes: options.GateProcesses = None,
    seed: options.Seed = None,
    timeout: options.Timeout = None,
    plugin: options.Plugin = None,
    output: options.GateOutput = Path("results") / "gate",
    resume: options.GateResume = False,
) -> None:
    """Judge whether a backend became slower: 0 pass, 1 regression, 3 inconclusive.

    With --candidate and --reference, both are measured now, interleaved; 3 to 12 fresh process pairs decide undecided cells.
    With --baseline, the baseline's cells are measured in 3 new processes, and undecided cells in 6 more. With FILES too,
    nothing is measured, and the gate judges these runs. The tests are moderated t tests with Holm's correction.

    With --self-test, --reference is measured beside its A/A copy and slowed copies, to measure false alarms and power.
    Exit code 1: a false alarm, or fewer than 95 % pass. With --baseline and FILES of unchanged code, each file is judged.
    """
    outputs = Outputs(json, markdown, junit, plot, long, quiet).checked()
    from softbench.run.operations import names

    sweep: dict[str, Any] = {name: value for name, value in locals().items() if name in SWEEP} | {"op": names(op), "plugins": plugin}
    stored, strictness = _Stored(baseline, folder, allow_env_mismatch or []), _Strictness(margin, max_ambiguous)
    _reject_mixed(self_test, families, resume, (candidate, processes, markdown, junit), sittings=bool(baseline and (plot or resume)))
    if self_test:
        if baseline is not None:
            _sitting_test(files, dict(sweep, config=config, families=families, reference=reference), baseline, strictness, stored, outputs)
        _self_test(files, reference, families, _request(sweep, config, output, resume), strictness, stored, outputs)
    if candidate is not None or reference is not None:
        outputs.render(_ab_run(*_pair(candidate, reference, files), _request(sweep, config, output), strictness, stored))
    if baseline is not None and not files:
        outputs.render(_new_processes(_request(sweep, config, output), strictness, stored))
    outputs.render(_against_baseline(files, {**sweep, "config": config}, baseline, strictness, stored))


def _reject_mixed(self_test: bool, families: int | None, resume: bool, others: Sequence[object], *, sittings: bool) -> None:
    """Raises a UsageError for options that do not go with `--self-test`, or only with it."""
    if not self_test and (families is not None or resume):
        raise UsageError(f"gate: --{'resume' if resume else 'families'} goes with --self-test")
    if self_test and any(value is not None for value in others):
        raise UsageError(
            "gate: --self-test goes with --reference, --families, --baseline, --json, --plot and the sweep; leave out the others"
        )
    if self_test and sittings:
        raise UsageError("gate: --plot and --resume do not go with --self-test --baseline, which judges files")


def _pair(candidate: str | None, reference: str | None, files: list[Path] | None) -> tuple[str, str]:
    if candidate is None or reference is None or files:
        raise UsageError("gate: --candidate and --reference go together, and without results files")
    return candidate, reference


def _reject_with_stored_runs(sweep: dict[str, Any]) -> None:
    if rejected := [name for name, value in sweep.items() if value not in (None, [])]:
        flag = "plugin" if rejected[0] == "plugins" else rejected[0]
        raise UsageError(f"gate: --{flag} is for a measurement; leave out the results files, or give --candidate and --reference")


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


def _new_processes(request: RunRequest, strictness: _Strictness, stored: _Stored) -> GateReport:
    from softbench.gate import baseline_run, next_step, unpaired

    rules, base = strictness.rules(unpaired.MARGIN), stored.open()
    if base is None:
        raise UsageError("gate: --baseline is missing")
    adjusted = baseline_run.baseline_request(request, base)
    measuring = partial(measure, resumable=False, announced=[partial(baseline_run.plan_text, base=base, rules=rules)])
    report = baseline_run.compare(measuring, adjusted, base, rules, stored.allowed)
    return replace(report, next_step=next_step.after_new_processes(report, typed_command(), base, adjusted.settings().processes))


def _sitting_test(
    files: list[Path] | None, others: dict[str, Any], name: str, strictness: _Strictness, stored: _Stored, outputs: Outputs
) -> NoReturn:
    _reject_with_stored_runs(others)
    from softbench.cli import output
    from softbench.gate import run_files, self_test, unpaired
    from softbench.gate.baselines import open_baseline
    from softbench.gate.environment_match import check
    from softbench.report import gate_report

    if not files:
        raise UsageError("gate: --self-test --baseline needs results of unchanged code, a file for each sitting")
    base, runs = open_baseline(name, stored.folder), [run_files.read(file) for file in files]
    warn([text for run in runs for text in check(run, base, stored.allowed)])
    result = self_test.analyse_sittings(runs, base, strictness.rules(unpaired.MARGIN))
    if not wrote_to_stdout(result.document, outputs.json):
        output.show(gate_report.sittings(result), output.console())
    raise typer.Exit(result.exit_code)


def _against_baseline(
    files: list[Path] | None, others: dict[str, Any], name: str | None, strictness: _Strictness, stored: _Stored
) -> GateReport:
    _reject_with_stored_runs(others)
    if not files or name is None:
        raise UsageError(
            "gate: give --candidate and --reference, or --baseline NAME|FILE with results files or without; see: softbench gate -h"
        )
    from softbench.gate import environment_match, next_step, run_files, samples, units, unpaired
    from softbench.gate.baselines import open_baseline

    base = open_baseline(name, stored.folder)
    runs = [run_files.read(file) for file in files]
    notes = environment_match.one_machine(runs, stored.allowed)
    rules = strictness.rules(unpaired.MARGIN)
    for run in runs:
        if shared := sorted(set(run.runs) & set(base.runs)):
            raise InconclusiveError(
                f"{run.source}: {shared[0]} is part of the baseline {name}; a run cannot be compared with itself: measure again"
            )
    new = samples.join(runs)
    report = units.compare(new, base, rules, notes, stored.allowed)
    return replace(report, next_step=next_step.after_files(report, typed_command(), files, new, base))


def _request(sweep: dict[str, Any], config: str | None, folder: Path, resume: bool = False) -> RunRequest:
    from softbench.cli.output import command_line
    from softbench.plan.config_file import load
    from softbench.plan.flags import from_flags
    from softbench.run.operations import names
    from softbench.run.request import RunRequest

    layer = load(config, names) if config is not None else {}
    return RunRequest(layer, from_flags(sweep), False, folder, resume, command_line(sys.argv[1:]), __version__)


def _ab_run(candidate: str, reference: str, request: RunRequest, strictness: _Strictness, stored: _Stored) -> GateReport:
    from softbench.gate import ab_run, next_step, paired

    rules, base = strictness.rules(paired.MARGIN), stored.open()
    ab_request = ab_run.ab_request(request, candidate, reference)
    warn(ab_run.rounds_notes(request))

    def announced(plan: Plan) -> str:
        ab_run.check_candidate(plan, candidate)
        return ab_run.plan_text(plan, rules)

    measuring = partial(measure, resumable=False, announced=[announced])
    report = ab_run.compare(measuring, ab_request, candidate, reference, rules, base, stored.allowed)
    return replace(report, next_step=next_step.after_pairs(report, typed_command(), ab_request.settings().processes))


def _self_test(
    files: list[Path] | None,
    reference: str | None,
    families: int | None,
    request: RunRequest,
    strictness: _Strictness,
    stored: _Stored,
    outputs: Outputs,
) -> NoReturn:
    from softbench.cli import output
    from softbench.gate import paired, run_files, samples, self_test
    from softbench.gate.environment_match import one_machine
    from softbench.report import gate_figures, gate_report

    backend, rules = reference or "torch", strictness.rules(paired.MARGIN)
    if files:
        if families is not None or request.resume:
            raise UsageError("gate: --families and --resume are for a measurement; with FILES nothing is measured")
        runs = [run_files.read(file) for file in files]
        warn(one_machine(runs, stored.allowed))
        run = samples.join(runs)
    else:
        run = _measure_repetitions(backend, families, request)
    result = self_test.analyse(run, backend, rules)
    if not wrote_to_stdout(result.document, outputs.json):
        output.show(gate_report.self_test(result), output.console())
    if outputs.plot is not None:
        note(f"wrote {gate_figures.write_power(result, outputs.plot)}")
    raise typer.Exit(result.exit_code)


def _measure_repetitions(reference: str, families: int | None, request: RunRequest) -> RunSamples:
    from softbench.gate.ab_run import rounds_notes
    from softbench.gate.self_test import MIN_REPETITIONS
    from softbench.gate.self_test_run import REPETITIONS, measure_repetitions

    count = REPETITIONS if families is None else families
    if not MIN_REPETITIONS <= count <= 1000:
        raise UsageError(f"--families {count}: must be from {MIN_REPETITIONS} to 1000")

    def announce(plan: str) -> None:
        warn([*rounds_notes(request), plan])

    return measure_repetitions(measure, request, reference, count, announce)
