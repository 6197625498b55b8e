"""`softbench check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softbench.cli import options, verbosity
from softbench.cli.actions import end, interruptible, note, printed, reject_two_for_stdout, try_file, write_text, wrote_to_stdout
from softbench.cli.options import option
from softbench.cli.panels import OUTPUT, RUN_EPILOG, PanelCommand
from softbench.core.case import OPERATION
from softbench.core.errors import UsageError
from softbench.core.text import count, printable
from softbench.plan.declare import WHAT

if TYPE_CHECKING:
    from softbench.run.check import CheckReport, Finding

TOLD = 5
"""Wrong or failed findings of a backend that are told with their command, without --long."""


Case = Annotated[
    list[str] | None,
    option(
        WHAT,
        "A shell pattern of names of check cases: 'layout *'. A leading ! selects the others; an empty pattern prints all names. "
        "Repeatable.",
        "--case",
        metavar="PATTERN",
        default="all",
    ),
]
Dtype = Annotated[
    list[str] | None, option(WHAT, "fp32, fp16, bf16, or several.", "--dtype", default="fp32,fp16,bf16", complete=options.DTYPE)
]
Direction = Annotated[
    list[str] | None,
    option(WHAT, "forward, backward, both, fused, or several of them.", default="all of the operation", complete=options.DIRECTION),
]
Sanitize = Annotated[
    bool,
    option(WHAT, "Run the backends under compute-sanitizer's memcheck: it finds accesses out of bounds.", "--sanitize", default=False),
]
Invariance = Annotated[
    bool,
    option(
        WHAT,
        "Compare the bits of rows instead: do they depend on the number of rows, the position, or the run? --case takes lengths: N=4096.",
        "--invariance",
        default=False,
    ),
]
Quick = Annotated[bool, option(WHAT, "With --invariance: 4 lengths and 8 numbers of rows, not 12 and 64.", "--quick", default=False)]
Json = Annotated[Path | None, option(OUTPUT, "Write the findings as JSON; - is stdout, without the table.", metavar="FILE|-")]
Csv = Annotated[Path | None, option(OUTPUT, "Write the findings as CSV; - is stdout, without the table.", metavar="FILE|-")]
Junit = Annotated[Path | None, option(OUTPUT, "Write the findings as JUnit XML.", metavar="FILE")]
Long = Annotated[
    bool,
    option(
        OUTPUT,
        "One line per check case: error over bound, ULP, row sum, Frobenius norm, reason; and the commands of all failures.",
        "--long",
        "-v",
        "--verbose",
        default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand, epilog=RUN_EPILOG)(check)


@options.takes(command="check", after={"case": "backends"})
def check(
    *,
    case: Case = None,
    dtype: Dtype = None,
    direction: Direction = None,
    op: options.Operation = OPERATION,
    sanitize: Sanitize = False,
    invariance: Invariance = False,
    quick: Quick = False,
    json: Json = None,
    csv: Csv = None,
    junit: Junit = None,
    long: Long = False,
    quiet: options.Quiet = False,
    **given: Any,
) -> None:
    """Check every backend on difficult cases: shapes, layouts, values, gradients, output rules. Nothing is timed.

    Each dtype has a sign: . pass, ~ low-precision, X wrong, ! failed, ? unverified, - skipped.
    """
    from softbench.cli.output import counter
    from softbench.plan.settings import from_flags
    from softbench.run.check import CheckRequest, case_names, check as run_check

    verbosity.choose(quiet=quiet, verbose=long)
    parameters = given.pop("set")
    flags = from_flags(given)
    reject_two_for_stdout([flag for flag, file in (("--csv -", csv), ("--json -", json)) if str(file) == "-"])
    try_file(json)
    try_file(csv, flag="--csv")
    try_file(junit, flag="--junit")
    what = {"sanitize": sanitize, "invariance": invariance, "quick": quick}
    request = CheckRequest.of(flags, op, patterns=case, dtype=dtype, direction=direction, set=parameters, **what)
    if "" in request.patterns and not invariance:
        with interruptible():
            typer.echo("\n".join(map(printable, case_names(request))))
        raise UsageError("--case '': checked none; stdout has the names of all cases")  # an unset variable in CI is no pass
    with interruptible(), counter("cases") as advance:
        report = run_check(request, advance)
    if csv is not None or junit is not None:
        from softbench.report import check_report

        if csv is not None and str(csv) != "-":
            write_text(csv, check_report.csv(report), "--csv")
        if junit is not None:
            write_text(junit, check_report.junit(report), "--junit")
    if str(json) != "-":
        wrote_to_stdout(report.document, json)
    # The same signal may have ended the program behind a pipe, or the terminal.
    with suppress(OSError) if report.interrupted else nullcontext():
        _report(report, csv, json, long=long)
    if report.interrupted:
        end(report.exit_code, f"interrupted; {count(report.left, 'case')} left out; --case, --dtype and --direction choose a part")
    raise typer.Exit(report.exit_code)


def _report(report: CheckReport, csv: Path | None, json: Path | None, *, long: bool) -> None:
    from softbench.cli import output
    from softbench.report import check_report
    from softbench.run.check import FAILED

    if str(json) == "-":
        wrote_to_stdout(report.document, json)
    elif str(csv) == "-":
        printed(check_report.csv(report), csv, "--csv")
    elif not verbosity.quiet():
        shown = check_report.invariance if report.invariance else check_report.table
        table = (check_report.lines if long else shown)(report.findings)
        output.show(table, output.console())
    for text in (*report.broken, *report.lost) if verbosity.quiet() else report.notes:
        note(text, error=True)
    if report.nothing and not report.interrupted:
        note(report.nothing, error=True)
    repeats = report.to_repeat()
    for backend in dict.fromkeys(finding.backend for finding, _ in repeats):
        own = [pair for pair in repeats if pair[0].backend == backend]
        most = 1 if report.invariance else TOLD
        for finding, command in own if long else _first(own)[:most]:
            verdict = "failed" if finding.verdict == FAILED else f"{'depends on' if report.invariance else 'is'} {finding.verdict}"
            note(f"{backend} {verdict}: {finding.reason}\n  {command}", error=True)
        if not long and len(own) > most:
            others = count(len(own) - most, "more such finding" if report.invariance else "more wrong or failed finding")
            note(f"{backend}: {others}; --junit FILE has the commands of all, and --long prints them", error=True)


def _first(repeats: Sequence[tuple[Finding, str]]) -> list[tuple[Finding, str]]:
    """TOLD of a backend's findings: of other reasons first, then of other verdicts, directions and dtypes, then the first ones."""
    rest, reasons, kinds = list(enumerate(repeats)), Counter[str](), Counter[tuple[str, str, str]]()

    def told_before(one: tuple[int, tuple[Finding, str]]) -> tuple[int, int]:
        finding = one[1][0]
        return reasons[finding.reason], kinds[finding.verdict, finding.direction, finding.dtype]

    told: list[tuple[int, tuple[Finding, str]]] = []
    while rest and len(told) < TOLD:
        told.append(min(rest, key=told_before))
        rest.remove(told[-1])
        finding = told[-1][1][0]
        reasons[finding.reason] += 1
        kinds[finding.verdict, finding.direction, finding.dtype] += 1
    return [pair for _, pair in sorted(told, key=lambda one: one[0])]
