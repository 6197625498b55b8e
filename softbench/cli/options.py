"""The options and arguments that commands share. If another module sets a default, the option shows it as text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softbench.cli import completion
from softbench.cli.panels import ADVANCED, HOW_LONG, JUDGE, OUTPUT, WHAT, WHERE
from softbench.core.case import DTYPES, OPERATION, TIMERS, Direction
from softbench.ops import registry

BASELINES = Path("results") / "baselines"
RUN_EPILOG = (
    "Exit codes: 0 fine; 1 a backend is wrong or failed, or nothing was measured; 2 usage; 4 the disk is full; "
    "130 interrupted (143 by SIGTERM)."
)
GATE_EPILOG = (
    "Exit codes: 0 pass; 1 a regression, or cells missing or wrong; 2 usage or unreadable input; "
    "3 inconclusive or not comparable; 4 the disk is full; 130 interrupted (143 by SIGTERM)."
)


def _option(
    panel: str, help: str, *names: str, default: str | bool = True, metavar: str | None = None, complete: completion.Completer | None = None
) -> typer.models.OptionInfo:
    """An option of a panel. `default` is the shown text if the default is not a value of the option; `complete` is for the shell."""
    option: typer.models.OptionInfo = typer.Option(
        *names, help=help, rich_help_panel=panel, show_default=default, metavar=metavar, autocompletion=complete
    )
    return option


BACKENDS = completion.several(completion.patterns)
BACKEND = completion.one(completion.backends)
DTYPE = completion.several(completion.fixed(*DTYPES))
DIRECTION = completion.several(completion.fixed(*(direction.value for direction in Direction)))
PLOT_KIND = completion.one(completion.fixed("curves", "heatmap", "speedup", "costs"))
PLOT_FORMATS = completion.several(completion.fixed("png", "svg", "pdf"))
OPERATION_NAMES = completion.fixed(*registry.NAMES)

Backends = Annotated[
    list[str] | None,
    _option(
        WHAT,
        "Names or patterns such as torch,compile:*. A run adds the yardstick copy.",
        default="all without extras",
        complete=BACKENDS,
    ),
]
Rows = Annotated[
    list[str] | None, _option(WHAT, "Rows: 4096, or 256,1024, or 256:8192:256, or 256:65536:*2.", "--M", default="of --config")
]
Columns = Annotated[list[str] | None, _option(WHAT, "Columns, the reduced axis; written like --M.", "--N", default="of --config")]
Shapes = Annotated[
    list[str] | None,
    _option(
        WHAT,
        "Shapes in place of --M and --N: 8x16x1024x1024, a preset of the operation such as vocabularies, or several.",
        "--shape",
        default="M by N",
    ),
]
Dims = Annotated[
    list[str] | None,
    _option(WHAT, "The reduced dimension of --shape: -1 is the last, 0 the first; or several: -1,1.", "--dim", default="-1"),
]
Dtype = Annotated[list[str] | None, _option(WHAT, "fp32, fp16, bf16, or several: fp32,bf16.", default="fp32", complete=DTYPE)]
Directions = Annotated[
    list[str] | None,
    _option(
        WHAT,
        "forward, backward, both (through autograd), fused (output and gradient in one call), or several.",
        default="forward",
        complete=DIRECTION,
    ),
]
Operations = Annotated[
    list[str] | None,
    _option(
        WHAT,
        "One operation or several, by name or by Python file; softbench list --ops shows the names.",
        "--op",
        default=OPERATION,
        complete=completion.several(OPERATION_NAMES),
    ),
]
Operation = Annotated[
    str,
    _option(
        WHAT,
        "The operation, by name or by Python file; softbench list --ops shows the names.",
        "--op",
        complete=completion.one(OPERATION_NAMES),
    ),
]
Parameters = Annotated[
    list[str] | None,
    _option(
        WHAT,
        "Parameters of the operation, as in scale=0.7,out_dtype=fp32. Repeated in run or gate, each makes its own cases.",
        "--set",
        metavar="NAME=VALUE",
        default="the defaults",
    ),
]
Config = Annotated[
    str | None,
    _option(
        WHAT,
        "A configuration: tutorial, powers, frontier, operations, losses, models, small, strategies, gate, cpu, or a TOML file. "
        "Flags override it.",
        metavar="NAME|FILE",
        default="tutorial; cpu without a GPU",
        complete=completion.one(completion.configurations),
    ),
]
Plugin = Annotated[
    list[Path] | None,
    _option(
        WHAT,
        "A Python file that defines backends, or one function of a file or module; softbench runs its code. "
        "NAME= renames its backend. Repeatable.",
        metavar="[NAME=]FILE[:FUNCTION]",
    ),
]
Device = Annotated[
    str | None,
    _option(ADVANCED, "auto, cpu, cuda or cuda:K.", default="auto", complete=completion.one(completion.fixed("auto", "cpu", "cuda"))),
]
Threads = Annotated[
    int | None,
    _option(ADVANCED, "CPU threads of torch in each worker, 1 to the number of processors. Only on the CPU.", default="torch's own number"),
]
Seed = Annotated[int | None, _option(ADVANCED, "Seed of the inputs.", default="0")]
Timeout = Annotated[
    list[str] | None,
    _option(
        ADVANCED,
        "Deadlines in seconds: one number for all phases, or PHASE=SECONDS for some.",
        default="import=60,build=300,check=120,time=120",
    ),
]
Rounds = Annotated[int | None, _option(HOW_LONG, "Number of rounds; in each, every backend takes one batch.", default="3 to --max-rounds")]
MaxRounds = Annotated[int | None, _option(HOW_LONG, "Maximum rounds if the target precision is not reached.", default="10")]
Precision = Annotated[
    float | None,
    _option(HOW_LONG, "Target precision: the 95 % interval of the median lies within this fraction of the median.", default="0.005"),
]
Processes = Annotated[int | None, _option(HOW_LONG, "Process sets: fresh workers that each measure the whole sweep.", default="1")]
Quick = Annotated[bool, _option(HOW_LONG, "A short run: three short rounds and, without --N, at most six N.", "--quick", default=False)]
Output = Annotated[Path, _option(WHERE, "Folder of the results.", "-o", "--output")]
Report = Annotated[
    bool, _option(WHERE, "Also write the results as an HTML page, DIR/latest.html; see softbench report.", "--report", default=False)
]
Resume = Annotated[bool, _option(WHERE, "Continue the newest interrupted run of these settings in that folder.", "--resume", default=False)]
DryRun = Annotated[
    bool, _option(WHERE, "Show the cells and the estimated time; measure nothing. With --resume: what is left.", "--dry-run", default=False)
]
RelativeTo = Annotated[str | None, _option(ADVANCED, "The reference backend of the speed-ups.", default="torch", complete=BACKEND)]
Timer = Annotated[
    str | None,
    _option(
        ADVANCED,
        "Timer of the median on a GPU: do_bench, device, graph or host.",
        default="do_bench",
        complete=completion.one(completion.fixed(*TIMERS)),
    ),
]
L2 = Annotated[
    str | None,
    _option(
        ADVANCED,
        "cold flushes the GPU's L2 before every timed call; warm does not.",
        default="cold",
        complete=completion.one(completion.fixed("cold", "warm")),
    ),
]
Profile = Annotated[
    str | None,
    _option(
        ADVANCED,
        "off skips device time and host time, for shorter runs.",
        default="on",
        complete=completion.one(completion.fixed("on", "off")),
    ),
]
Judge = Annotated[
    str | None,
    _option(
        ADVANCED,
        "separate also judges each cell in a process that its backend cannot reach; docs/judge.md describes it.",
        default="worker",
        complete=completion.one(completion.fixed("worker", "separate")),
    ),
]
Quiet = Annotated[bool, _option(OUTPUT, "Print only errors and the result: no progress, no notes.", "-q", "--quiet", default=False)]
Verbose = Annotated[
    bool,
    _option(OUTPUT, "Also print each case's progress, every phase, and why backends are unavailable.", "-v", "--verbose", default=False),
]
RunJson = Annotated[
    Path | None,
    _option(WHERE, "Write the run document, or the plan of --dry-run, as JSON; - is stdout, without the table.", metavar="FILE|-"),
]

Pattern = Annotated[
    str,
    _option(
        WHAT,
        "A shell pattern of names of check cases: 'layout *'. A leading ! selects the others; with '' the error lists all names.",
        "--case",
        metavar="PATTERN",
        default="all",
    ),
]
CheckDtype = Annotated[list[str] | None, _option(WHAT, "fp32, fp16, bf16, or several.", default="fp32,fp16,bf16", complete=DTYPE)]
CheckDirections = Annotated[
    list[str] | None,
    _option(WHAT, "forward, backward, both, fused, or several of them.", default="all of the operation", complete=DIRECTION),
]
FindingsJson = Annotated[Path | None, _option(OUTPUT, "Write the findings as JSON; - is stdout, without the table.", metavar="FILE|-")]
FindingsJunit = Annotated[Path | None, _option(OUTPUT, "Write the findings as JUnit XML.", metavar="FILE")]
LongFindings = Annotated[
    bool,
    _option(
        OUTPUT,
        "One line per check case: error over bound, ULP, row sum, Frobenius norm, reason; and the commands of all failures.",
        "--long",
        "-v",
        "--verbose",
        default=False,
    ),
]

Baseline = Annotated[
    str | None,
    _option(JUDGE, "A saved baseline or a file to compare with; with --candidate it shows how much processes differ.", metavar="NAME|FILE"),
]
Candidate = Annotated[
    str | None, _option(JUDGE, "A backend to measure now and compare with --reference.", metavar="NAME", complete=BACKEND)
]
Reference = Annotated[
    str | None,
    _option(
        JUDGE, "The reference backend of --candidate and --self-test.", metavar="NAME", default="torch with --self-test", complete=BACKEND
    ),
]
SelfTest = Annotated[
    bool,
    _option(
        JUDGE,
        "Measure the false alarms and the power of the gate. With FILES, add up earlier self-tests; with --baseline too, judge each file.",
        "--self-test",
        default=False,
    ),
]
Families = Annotated[int | None, _option(JUDGE, "A/A repetitions of the self-test, each with fresh processes; 4 to 1000.", default="59")]
Margin = Annotated[
    float | None, _option(JUDGE, "The slowdown that passes, in percent.", metavar="PERCENT", default="5; 3 with --candidate")
]
MaxAmbiguous = Annotated[
    float, _option(JUDGE, "The largest share of ambiguous cells, in percent; a larger one gives exit code 3.", metavar="PERCENT")
]
Mismatch = Annotated[
    list[str] | None,
    _option(JUDGE, "Compare even if this fact of the environment differs. Repeatable.", "--allow-env-mismatch", metavar="FIELD"),
]
Folder = Annotated[Path, _option(WHERE, "Folder of the baselines.")]
GateRounds = Annotated[
    int | None, _option(HOW_LONG, "Rounds of a process pair; with --baseline alone, those of the baseline.", default="20")
]
GateProcesses = Annotated[
    int | None,
    _option(
        HOW_LONG,
        "Process pairs of the screening, or new processes of each cell with --baseline. More find smaller slowdowns.",
        default="1; 3 with --baseline",
    ),
]
GateOutput = Annotated[Path, _option(WHERE, "Folder of the measurements.", "-o", "--output")]
GateResume = Annotated[
    bool,
    _option(WHERE, "Continue an interrupted self-test of these settings in that folder.", "--resume", default=False),
]
LongVerdicts = Annotated[
    bool,
    _option(OUTPUT, "One line per cell, not only for changed cells, and each case's progress.", "--long", "-v", "--verbose", default=False),
]
VerdictsJson = Annotated[Path | None, _option(OUTPUT, "Write the verdicts as JSON; - is stdout, without the table.", metavar="FILE|-")]
VerdictsMarkdown = Annotated[Path | None, _option(OUTPUT, "Write the report as Markdown into this file.")]
VerdictsJunit = Annotated[Path | None, _option(OUTPUT, "Write JUnit XML with a test case per cell.")]
VerdictsPlot = Annotated[Path | None, _option(OUTPUT, "Draw the ratios and margins as a forest plot: .png, .svg or .pdf.")]

ResultsFile = Annotated[Path, typer.Argument(help="A results CSV, such as results/latest.csv; - is stdin.")]
