"""Renders the findings of `softbench check`: a table of signs, one line per check case, CSV and JUnit XML. Prints nothing."""

from __future__ import annotations

from collections.abc import Sequence
from csv import DictWriter
from dataclasses import asdict, fields
from io import StringIO
from itertools import combinations
from statistics import median

from rich.console import Group, RenderableType
from rich.text import Text

from softbench.core.outcome import PASSES, Grade
from softbench.core.text import count
from softbench.report import rich_tables
from softbench.report.markup import TestSuite, outcome
from softbench.results.columns import grouped
from softbench.run.check import FAILED, SKIPPED, CheckReport, Finding
from softbench.run.invariance import DEPENDS, INVARIANT

SIGNS = {
    "pass": ".",
    "sampled": ".",
    "low-precision": "~",
    "tolerance": "~",
    "wrong": "X",
    "failed": "!",
    "unverified": "?",
    "skipped": "-",
}
PLAIN = (".", "-")
"""The signs that make no row by themselves."""
OF_PROBLEMS = ("sampled", "tolerance")
"""The verdicts that only problems have."""
STYLES = {"low-precision": "yellow", "tolerance": "yellow", "wrong": "bold red", "failed": "bold red", "skipped": "dim"}


def table(findings: Sequence[Finding]) -> RenderableType:
    """A table per direction with a row per check case, a column per backend and a sign per dtype; below it counts and reasons.

    A case that passes or is skipped throughout has no row: counts and reasons below the tables have it.
    """
    parts: list[RenderableType] = []
    plain = 0
    names = list(dict.fromkeys(finding.backend for finding in findings))
    dtypes = list(dict.fromkeys(finding.dtype for finding in findings))
    for direction in dict.fromkeys(finding.direction for finding in findings):
        section = [finding for finding in findings if finding.direction == direction]
        by_cell = {(finding.item, finding.backend, finding.dtype): finding for finding in section}
        items = dict.fromkeys(finding.item for finding in section if SIGNS[finding.verdict] not in PLAIN)
        plain += len({finding.item for finding in section}) - len(items)
        if not items:
            continue
        grid = rich_tables.table(("case", *names))
        for column in grid.columns[1:]:
            column.justify = "center"
        for item in items:
            grid.add_row(item, *(_signs([by_cell.get((item, name, dtype)) for dtype in dtypes]) for name in names))
        parts += [Text(f"{section[0].of_pass}: {', '.join(dtypes)}", style="bold"), grid, Text()]
    if not parts:
        legend = "every case passes or is skipped: --long lists them"
    else:
        found = {finding.verdict for finding in findings}
        shown = grouped((verdict for verdict in SIGNS if verdict in found or verdict not in OF_PROBLEMS), SIGNS.__getitem__)
        legend = "; ".join(f"{sign} {' or '.join(verdicts)}" for sign, verdicts in shown.items())
        if plain:
            legend += f"; not shown: {count(plain, 'row')} of {' and '.join(PLAIN)} alone, which --long lists"
    return Group(*parts, Text(legend, style="dim"), *_counts(findings, names), *_reasons(findings))


def _signs(findings: Sequence[Finding | None]) -> Text:
    text = Text()
    for finding in findings:
        verdict = finding.verdict if finding else ""
        text.append(SIGNS.get(verdict, " "), style=STYLES.get(verdict, ""))
    return text


def _counts(findings: Sequence[Finding], names: Sequence[str]) -> list[Text]:
    """A line per backend: the number of each verdict, and the largest error over bound of its passes."""
    lines = []
    for name in names:
        own = [finding for finding in findings if finding.backend == name]
        tally = ", ".join(
            f"{sum(f.verdict == verdict for f in own)} {verdict}" for verdict in SIGNS if any(f.verdict == verdict for f in own)
        )
        worst = max((f.worst for f in own if f.worst is not None and f.verdict in PASSES), default=None)
        largest = "" if worst is None else f"; passes have at most {worst:.2f} of the bound"
        passing = [f for f in own if f.verdict in PASSES and f.ulp is not None]
        metrics = (("ULP", "ulp"), ("in the row sum", "row_sum"), ("in the Frobenius norm", "frobenius"))
        known = metrics[2:] if any(f.verdict in OF_PROBLEMS for f in passing) else metrics  # outputs near zero have no ULP to speak of
        medians = [f"{median(getattr(f, key) for f in passing):.3g} {what}" for what, key in known] if passing else []
        lines.append(Text(f"{name}: {tally}{largest}" + (f" (medians: {', '.join(medians)})" if medians else "")))
    return lines


def _reasons(findings: Sequence[Finding]) -> list[Text]:
    """A line per reason of a skip and per note of a pass, with the backends and the number of cases."""
    told = [f for f in findings if f.verdict in ("skipped", "unverified") or (f.verdict == "pass" and f.reason)]
    lines = []
    for (verdict, reason), same_reason in grouped(told, lambda finding: (finding.verdict, finding.reason)).items():
        names = ", ".join(dict.fromkeys(finding.backend for finding in same_reason))
        lines.append(Text(f"{verdict}: {reason} ({count(len(same_reason), 'case')} of {names})"))
    return lines


def invariance(findings: Sequence[Finding]) -> RenderableType:
    """A row per backend and pass: what the bits of a row depend on, in how many lengths and dtypes, and the first example.

    Below it, in how many of these two invariant backends agree to the bit.
    """
    grid = rich_tables.table(("backend", "pass", "invariant", "differ", "ULP", "example"), numbers=(3, 4), folded=(5,))
    for (backend, of_pass), own in grouped(findings, lambda finding: (finding.backend, finding.of_pass)).items():
        compared = [finding for finding in own if finding.compared]
        differ = [finding for finding in compared if finding.bad]
        kinds = [kind for kind in DEPENDS if any(kind in finding.verdict.split(", ") for finding in differ)]
        failed = next((finding for finding in own if finding.verdict == FAILED), None)
        first = failed or next(iter(differ or own))
        verdict = "no: " + ", ".join(kinds) if kinds else "yes" if compared else first.verdict
        grid.add_row(
            *(Text(text) for text in (backend, of_pass)),
            Text(verdict if not failed else f"{verdict}, failed" if compared else FAILED, style="bold red" if differ or failed else ""),
            f"{len(differ)} of {len(compared)}" if compared else "",
            f"{max(finding.ulp or 0 for finding in differ):.0f}" if differ else "",
            Text(f"{first.dtype} {first.item}: {first.reason}" if differ or failed else first.reason),
        )
    bits: dict[str, dict[tuple[str, ...], str]] = {}
    for one in findings:
        if one.verdict == INVARIANT:
            bits.setdefault(one.backend, {})[one.op, one.direction, one.dtype, one.item] = one.bits
    agree = []
    for mine, other in combinations(bits, 2):
        both = [bits[mine][key] == bits[other][key] for key in bits[mine] if key in bits[other]]
        if both:
            agree.append(Text(f"{mine} and {other} agree to the bit in {sum(both)} of {len(both)}"))
    return Group(grid, *agree)


def lines(findings: Sequence[Finding]) -> RenderableType:
    """One line per finding, with its error over bound and the other error metrics."""
    head = ("backend", "direction", "dtype", "case", "verdict", "error/bound", "ULP", "row sum", "Frobenius", "why")
    table = rich_tables.table(head, numbers=range(5, 9), folded=(9,))
    for finding in findings:
        table.add_row(
            *(Text(text) for text in (finding.backend, finding.of_pass, finding.dtype, finding.item)),
            Text(finding.verdict, style=STYLES.get(finding.verdict, "")),
            *("" if number is None else f"{number:.3g}" for number in _errors(finding)),
            Text(finding.reason),
        )
    return Group(table, Text(), *_counts(findings, list(dict.fromkeys(finding.backend for finding in findings))))


def _errors(finding: Finding) -> tuple[float | None, ...]:
    """The error over its bound, then the other error metrics."""
    return finding.worst, finding.ulp, finding.row_sum, finding.frobenius


def csv(report: CheckReport) -> str:
    """CSV: a row per finding."""
    text = StringIO()
    writer = DictWriter(text, [field.name for field in fields(Finding)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(asdict, report.findings))
    return text.getvalue()


def junit(report: CheckReport) -> str:
    """JUnit XML: one test case per backend, check case and dtype.

    `wrong` is a failure and `failed` an error, both with the command that repeats it. `skipped` and `unverified` are skipped, with
    the reason. A broken backend is an error; a backend that cannot run here is skipped. An interruption is an error.
    """
    commands = dict(report.to_repeat())
    suite = TestSuite("softbench check")
    for finding in report.findings:
        case = suite.case(finding.backend, f"{finding.of_pass} {finding.dtype} {finding.item}")
        if finding.bad:
            kind = "error" if finding.verdict == FAILED else "failure"
            outcome(case, kind, finding.reason, type=finding.verdict, text=commands[finding])
        elif finding.verdict in (SKIPPED, Grade.UNVERIFIED):
            outcome(case, "skipped", finding.reason)
        elif finding.worst is not None:
            errors = zip(("error over bound", "ULP", "row sum", "Frobenius"), _errors(finding), strict=True)
            measured = [f"{what} {value:.3g}" for what, value in errors if value is not None]
            outcome(case, "system-out", text="; ".join([finding.verdict, *measured]))
    for note in report.notes:
        name, _, reason = note.partition(": ")
        outcome(suite.case(name, "load"), "skipped" if reason.startswith("unavailable") else "error", reason)
    if report.interrupted:
        outcome(suite.case("", "interrupted"), "error", f"an interruption left out {count(report.left, 'case')}")
    return suite.text()
