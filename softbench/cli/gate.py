"""`softbench gate`: its modes, their options and what each does."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from softbench.cli import options
from softbench.cli.actions import measure, note, typed_command, warn, wrote_to_stdout
from softbench.cli.gate_outputs import Outputs
from softbench.cli.gate_packages import Packages, init
from softbench.cli.options import BACKEND, option
from softbench.cli.panels import ARGUMENTS, CONTEXT, JUDGE, OTHERS, OUTPUT, SELF_TEST, WHERE, PanelCommand, panel_of
from softbench.core.errors import InconclusiveError, UsageError
from softbench.plan.declare import HOW_LONG, RARE
from softbench.plan.settings import of_command

if TYPE_CHECKING:
    from softbench.gate.samples import RunSamples
    from softbench.gate.verdicts import GateReport, Rules
    from softbench.plan.plan import Plan
    from softbench.run.request import RunRequest

SUMMARY = "Judge whether a backend became slower: 0 pass, 1 regression, 3 inconclusive."
PACKAGE = "Functions of a package"
MODE = "Mode"
"""The panel of the options that choose the mode."""


class Mode(Enum):
    """What the gate does: how a message names it, an example, and what it measures."""

    VERSIONS = (
        "two versions",
        "softbench gate --candidate new --reference old --plugin new=a.py --plugin old=b.py",
        "Two versions are measured now, interleaved, in 6 process pairs; undecided cells in up to 24.",
    )
    PACKAGES = (
        "two environments",
        "softbench gate --candidate mine.rows:norm --inputs 'x[M,N], w[N]' --reference-env v1.2",
        "A function of a package is measured in two environments; without a mode the targets of softbench.toml.",
    )
    BASELINE = (
        "a baseline",
        "softbench gate --baseline h200",
        "The cells of a baseline are measured in 3 new processes, and undecided cells in 6 more.",
    )
    FILES = ("results files", "softbench gate results/latest.csv --baseline h200", "Results files are judged; nothing is measured.")
    SELF_TEST = (
        "a self-test",
        "softbench gate --self-test --reference torch",
        "The self-test measures --reference beside its A/A copy and slowed copies, to find false alarms and power. "
        "Exit code 1: a false alarm, or fewer than 95 % pass.",
    )
    STORED_SELF_TESTS = (
        "stored self-tests",
        "softbench gate --self-test a.csv b.csv",
        "Results of self-tests are added up; nothing is measured.",
    )

    def __init__(self, shown: str, example: str, about: str) -> None:
        self.shown, self.example, self.about = shown, example, about


MEASURING = (Mode.VERSIONS, Mode.PACKAGES, Mode.BASELINE, Mode.SELF_TEST)
JUDGING = (Mode.VERSIONS, Mode.PACKAGES, Mode.BASELINE, Mode.FILES)
OF_MODES: dict[str, tuple[Mode, ...]] = {
    **dict.fromkeys((*(one.name for one in of_command("gate")), "output"), MEASURING),
    **dict.fromkeys(("markdown", "junit"), JUDGING),
    **dict.fromkeys(("families", "resume"), (Mode.SELF_TEST,)),
    **dict.fromkeys(("candidate_env", "reference_env", "build", "inputs", "tolerance", "changed", "measure"), (Mode.PACKAGES,)),
    **dict.fromkeys(("plugins", "config"), (Mode.VERSIONS, Mode.BASELINE, Mode.SELF_TEST)),
    **dict.fromkeys(("processes", "dry_run"), (Mode.VERSIONS, Mode.PACKAGES, Mode.BASELINE)),
    "candidate": (Mode.VERSIONS, Mode.PACKAGES),
    "baseline": (Mode.VERSIONS, Mode.BASELINE, Mode.FILES),
    "reference": (Mode.VERSIONS, Mode.SELF_TEST, Mode.STORED_SELF_TESTS),
    "self_test": (Mode.SELF_TEST, Mode.STORED_SELF_TESTS),
}
"""The options that some modes do not have, by parameter, with the modes that have them."""


Files = Annotated[list[Path] | None, typer.Argument(help="Results CSVs to judge; their processes add up. Or init: write softbench.toml.")]
Candidate = Annotated[
    str | None,
    option(
        MODE,
        "A backend to compare with --reference, or a function, as MODULE:FUNCTION or MODULE:EXPRESSION.",
        metavar="NAME",
        complete=BACKEND,
    ),
]
CandidateEnv = Annotated[
    str | None,
    option(MODE, "Its environment: a folder, virtual environment, git ref, wheel or NAME==VERSION.", metavar="ENV", default="."),
]
ReferenceEnv = Annotated[str | None, option(MODE, "The reference's environment.", metavar="ENV", default="merge base")]
Build = Annotated[
    list[str] | None,
    option(PACKAGE, "A command that installs a git ref or a folder, in place of pip. Repeatable.", metavar="COMMAND", default="pip"),
]
Inputs = Annotated[
    str | None,
    option(PACKAGE, "The arguments of the function, such as 'x[M,N], w:fp32[N], eps=1e-6'.", metavar="ARGUMENTS"),
]
Tolerance = Annotated[
    str | None,
    option(PACKAGE, "How far outputs may be from the reference's.", metavar="RTOL,ATOL", default="of the dtype"),
]
Measures = Annotated[
    list[str] | None,
    option(
        PACKAGE,
        "Judge this too: device or host time, compile time, memory, kernels or recompiles; =PERCENT is its margin. Repeatable.",
        metavar="NAME[=PERCENT]",
        default="time alone",
    ),
]
Changed = Annotated[bool, option(PACKAGE, "Measure only targets that depend on files that changed.", "--changed", default=False)]
Reference = Annotated[
    str | None,
    option(
        MODE,
        "The reference backend of --candidate and --self-test.",
        metavar="NAME",
        default="torch with --self-test",
        complete=BACKEND,
    ),
]
Baseline = Annotated[
    str | None,
    option(MODE, "A saved baseline or a file to compare with; with --candidate it shows how much processes differ.", metavar="NAME|FILE"),
]
SelfTest = Annotated[
    bool,
    option(
        SELF_TEST,
        "Measure the false alarms and the power of the gate. With FILES, add up earlier self-tests.",
        "--self-test",
        default=False,
    ),
]
Margin = Annotated[float | None, option(JUDGE, "The slowdown that passes, in percent.", metavar="PERCENT", default="5; 3 with --candidate")]
MaxAmbiguous = Annotated[
    float, option(RARE, "The largest share of ambiguous cells, in percent; a larger one gives exit code 3.", metavar="PERCENT")
]
Folder = Annotated[Path, option(JUDGE, "Folder of the baselines.")]
Long = Annotated[
    bool,
    option(
        OUTPUT,
        "One line per cell, not only for changed cells, and each case's progress.",
        "--long",
        "-v",
        "--verbose",
        default=False,
    ),
]
Json = Annotated[Path | None, option(OUTPUT, "Write the verdicts as JSON; - is stdout, without the table.", metavar="FILE|-")]
Markdown = Annotated[Path | None, option(OUTPUT, "Write the report as Markdown into this file.")]
Junit = Annotated[Path | None, option(OUTPUT, "Write JUnit XML with a test case per cell.")]
Plot = Annotated[Path | None, option(OUTPUT, "Draw the ratios and margins as a forest plot: .png, .svg, .pdf or .webp.")]
Families = Annotated[int | None, option(SELF_TEST, "A/A repetitions of the self-test, each with fresh processes; 6 to 1000.", default="59")]
Resume = Annotated[
    bool, option(SELF_TEST, "Continue an interrupted self-test of these settings in that folder.", "--resume", default=False)
]
Rounds = Annotated[int | None, option(HOW_LONG, "Rounds of a process pair; with --baseline alone, those of the baseline.", default="8")]
Processes = Annotated[
    int | None,
    option(
        HOW_LONG,
        "Process pairs of each cell at first, or new processes with --baseline. More find smaller slowdowns.",
        default="6; 3 with --baseline",
    ),
]
Output = Annotated[Path, option(WHERE, "Folder of the measurements.", "-o", "--output")]
DryRun = Annotated[bool, option(WHERE, "Show the cases, what will be found, and the time; measure nothing.", "--dry-run", default=False)]


def mode_of(given: Mapping[str, Any]) -> Mode | None:
    """The mode that the given parameters choose; None if they choose none."""
    if given.get("self_test"):
        return Mode.STORED_SELF_TESTS if given.get("files") else Mode.SELF_TEST
    environments = given.get("candidate_env") is not None or given.get("reference_env") is not None
    function = ":" in str(given.get("candidate") or "") and given.get("reference") is None
    if environments or function or given.get("changed"):
        return Mode.PACKAGES
    if given.get("candidate") is not None or given.get("reference") is not None:
        return Mode.VERSIONS
    return Mode.FILES if given.get("files") else Mode.BASELINE if given.get("baseline") is not None else None


OF_HELP = ("self_test", "candidate", "reference", "baseline", "candidate_env", "reference_env", "changed")
"""The options that choose the mode of a help."""


def _value_of(args: list[str]) -> str:
    """The value of `--candidate` in a command line, for its help."""
    place = next((place for place, word in enumerate(args) if word.startswith("--candidate") and not word.startswith("--candidate-")), -1)
    word = args[place] if place >= 0 else ""
    return word.partition("=")[2] or (args[place + 1] if 0 <= place < len(args) - 1 else "")


class GateCommand(PanelCommand):
    """The command, whose help has the options of the mode that the command line chooses; without a mode those of every mode."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if {"-h", "--help"} & set(args):
            words = {word.partition("=")[0] for word in args}
            given = {name: True if name != "candidate" else _value_of(args) for name in OF_HELP if f"--{name.replace('_', '-')}" in words}
            ctx.meta[__name__] = mode_of(given | {"files": any(word.endswith(".csv") for word in args)})
            args = ["--help"]
        return super().parse_args(ctx, args)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the gate does, and each mode with an example, or the mode of the command line."""
        mode = ctx.meta.get(__name__)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(SUMMARY)
            for one in [mode] if mode else Mode:
                formatter.write_paragraph()
                formatter.write_text(one.about)
                formatter.write(f"    {one.example}\n")
            if mode is None:
                formatter.write_paragraph()
                formatter.write_text("More options: softbench gate --candidate --help, and of packages softbench gate --changed --help")

    def shown_params(self, ctx: Any) -> list[Any]:
        """The options of the mode. Without one those that choose it, and those of panels that every mode has."""
        mode = ctx.meta.get(__name__)
        if mode is None:
            return [one for one in self.get_params(ctx) if panel_of(one) in (ARGUMENTS, MODE, JUDGE, OUTPUT, OTHERS, SELF_TEST)]
        return [one for one in self.get_params(ctx) if mode in OF_MODES.get(one.name, (mode,))]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=GateCommand, epilog=options.GATE_EPILOG, help=documented())(gate)


def documented() -> str:
    """The help of all modes, as docs/commands.md has it."""
    measuring = (
        "What to measure, how long, where to, and the rarely needed options are for the modes that measure. "
        "--markdown and --junit do not go with --self-test."
    )
    return "\n\n".join([SUMMARY, *(f"{one.about}\n\n    {one.example}" for one in Mode), measuring])


@options.takes(command="gate", own_first=True)
def gate(
    files: Files = None,
    candidate: Candidate = None,
    reference: Reference = None,
    candidate_env: CandidateEnv = None,
    reference_env: ReferenceEnv = None,
    build: Build = None,
    inputs: Inputs = None,
    tolerance: Tolerance = None,
    changed: Changed = False,
    measure: Measures = None,
    baseline: Baseline = None,
    self_test: SelfTest = False,
    margin: Margin = None,
    max_ambiguous: MaxAmbiguous = 10.0,
    allow_env_mismatch: options.Mismatch = None,
    folder: Folder = options.BASELINES,
    long: Long = False,
    quiet: options.Quiet = False,
    json: Json = None,
    markdown: Markdown = None,
    junit: Junit = None,
    plot: Plot = None,
    families: Families = None,
    resume: Resume = False,
    rounds: Rounds = None,
    processes: Processes = None,
    output: Output = Path("results") / "gate",
    dry_run: DryRun = False,
    **given: Any,
) -> None:
    """SUMMARY and the modes are the help."""
    if files == [Path("init")]:
        init()
    outputs = Outputs(json, markdown, junit, plot, long, quiet).checked()
    stored, strictness = _Stored(baseline, folder, allow_env_mismatch or []), _Strictness(margin, max_ambiguous)
    mode = _mode()

    def request() -> RunRequest:
        from softbench.run.request import requested

        return requested({**given, "rounds": rounds, "processes": processes}, sys.argv[1:], output=output, resume=resume)

    if mode in (Mode.SELF_TEST, Mode.STORED_SELF_TESTS):
        run = _added_up(files, stored) if files else _measure_repetitions(reference or "torch", families, request())
        _self_test(run, reference or "torch", strictness, outputs)
    elif mode is Mode.PACKAGES:
        _refuse(files or [], mode)
        asked = Packages(candidate, candidate_env, reference_env, build or (), inputs, tolerance, changed, measure or ())
        report = asked.compare({**given, "rounds": rounds, "processes": processes}, strictness.rules, output, stored.allowed)
        outputs.render(report) if report else note("PASS: nothing is measured, because no target depends on a changed file")
    elif mode is Mode.VERSIONS:
        outputs.render(_ab_run(*_pair(candidate, reference, files), request(), strictness, stored))
    else:
        fresh = mode is Mode.BASELINE
        outputs.render(_new_processes(request(), strictness, stored) if fresh else _against_baseline(files or [], strictness, stored))


def _refuse(files: Sequence[object], mode: Mode) -> None:
    """Files beside a mode that reads none, such as REF in --changed REF."""
    if files:
        raise UsageError(f"gate: {files[0]}: {mode.shown} take no results files; name the old version: --reference-env REF|PATH|WHEEL")


def _mode() -> Mode:
    """The mode of this command line.

    Raises:
        UsageError: it chooses none, or it has an option of another mode.
    """
    from softbench.gate import targets

    context = CONTEXT.get()
    mode = mode_of(context.params)
    if context.params.get("reference") is None and mode in (None, Mode.VERSIONS) and targets.find():
        mode = Mode.PACKAGES  # --candidate is the name of a target
    if mode is None and targets.above():
        mode = Mode.PACKAGES  # which says where the targets are
    given = [one for one in context.command.params if context.get_parameter_source(one.name).name == "COMMANDLINE"]
    for param in given:
        modes = OF_MODES.get(param.name, tuple(Mode))
        if mode is None and modes == (Mode.SELF_TEST,):
            raise UsageError(f"gate: {param.opts[0]} goes with --self-test")
        if mode and mode not in modes:
            names = [one.shown for one in modes]
            shown = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
            raise UsageError(f"gate: {param.opts[0]} does not go with {mode.shown}, only with {shown}; leave it out")
    if mode is None:
        raise UsageError(_NO_MODE)
    return mode


_NO_MODE = (
    "gate: give --candidate and --reference, or --baseline NAME|FILE with results files or without, or for a package "
    "--candidate MODULE:FUNCTION --reference-env ENV; or write softbench.toml: softbench gate init; see: softbench gate -h"
)


def _pair(candidate: str | None, reference: str | None, files: list[Path] | None) -> tuple[str, str]:
    if candidate is None or reference is None or files:
        raise UsageError("gate: give both --candidate and --reference, and no results files; a function is MODULE:FUNCTION")
    return candidate, reference


@dataclass(frozen=True, slots=True)
class _Stored:
    """The baseline to compare with, and the facts of the environment that may differ."""

    name: str | None
    folder: Path
    allowed: list[str]

    def __post_init__(self) -> None:
        from softbench.gate.environment_match import validate

        validate(self.allowed)

    def open(self) -> RunSamples:
        """The baseline. Raises UsageError or ResultsError if there is none."""
        from softbench.gate.baselines import open_baseline

        if not self.name:
            raise UsageError("gate: --baseline is missing")
        return open_baseline(self.name, self.folder)


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
    adjusted = baseline_run.baseline_request(request, base)
    measuring = partial(measure, resumable=False, announced=[partial(baseline_run.plan_text, base=base, rules=rules)])
    report = baseline_run.compare(measuring, adjusted, base, rules, stored.allowed)
    return replace(report, next_step=next_step.after_new_processes(report, typed_command(), base, adjusted.settings().processes))


def _against_baseline(files: Sequence[Path], strictness: _Strictness, stored: _Stored) -> GateReport:
    from softbench.gate import environment_match, next_step, run_files, samples, units, unpaired

    if stored.name is None:
        raise UsageError(_NO_MODE)
    base = stored.open()
    runs = [run_files.read(file) for file in files]
    notes = environment_match.one_machine(runs, stored.allowed)
    rules = strictness.rules(unpaired.MARGIN)
    for run in runs:
        if shared := sorted(set(run.runs) & set(base.runs)):
            raise InconclusiveError(
                f"{run.source}: {shared[0]} is part of the baseline {stored.name}; a run cannot be compared with itself: measure again"
            )
    new = samples.join(runs)
    report = units.compare(new, base, rules, notes, stored.allowed)
    return replace(report, next_step=next_step.after_files(report, typed_command(), files, new, base))


def _ab_run(candidate: str, reference: str, request: RunRequest, strictness: _Strictness, stored: _Stored) -> GateReport:
    from softbench.gate import ab_run, next_step, paired

    rules, base = strictness.rules(paired.MARGIN), stored.open() if stored.name else None
    ab_request = ab_run.ab_request(request, candidate, reference)
    warn(ab_run.rounds_notes(request))

    def announced(plan: Plan) -> str:
        ab_run.check_candidate(plan, candidate)
        return ab_run.plan_text(plan, rules)

    measuring = partial(measure, resumable=False, announced=[announced])
    report = ab_run.compare(measuring, ab_request, candidate, reference, rules, base, stored.allowed, note)
    return replace(report, next_step=next_step.after_pairs(report, typed_command(), ab_request.settings().processes))


def _self_test(run: RunSamples, backend: str, strictness: _Strictness, outputs: Outputs) -> NoReturn:
    from softbench.cli import output
    from softbench.gate import paired, self_test
    from softbench.report import gate_figures, gate_report

    result = self_test.analyse(run, backend, strictness.rules(paired.MARGIN))
    if not wrote_to_stdout(result.document, outputs.json):
        output.show(gate_report.self_test(result), output.console())
    if outputs.plot is not None:
        note(f"wrote {gate_figures.write_power(result, outputs.plot)}")
    raise typer.Exit(result.exit_code)


def _added_up(files: Sequence[Path], stored: _Stored) -> RunSamples:
    from softbench.gate import run_files, samples
    from softbench.gate.environment_match import one_machine

    runs = [run_files.read(file) for file in files]
    warn(one_machine(runs, stored.allowed))
    return samples.join(runs)


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
