"""Renders the findings of `softbench check`: a table of signs, one line per check case, and JUnit XML. Prints nothing."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from xml.etree import ElementTree

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from softbench.core.outcome import Grade
from softbench.core.text import count
from softbench.report.gate_report import xml_text
from softbench.run.check import BAD, FAILED, SKIPPED, CheckReport, Finding

SIGNS = {"pass": ".", "low-precision": "~", "wrong": "X", "failed": "!", "unverified": "?", "skipped": "-"}
STYLES = {"low-precision": "yellow", "wrong": "bold red", "failed": "bold red", "skipped": "dim"}


def table(findings: Sequence[Finding]) -> RenderableType:
    """A table per direction with a row per check case, a column per backend and a sign per dtype; below it counts and reasons."""
    parts: list[RenderableType] = []
    names = list(dict.fromkeys(finding.backend for finding in findings))
    dtypes = list(dict.fromkeys(finding.dtype for finding in findings))
    for direction in dict.fromkeys(finding.direction for finding in findings):
        section = [finding for finding in findings if finding.direction == direction]
        by_cell = {(finding.item, finding.backend, finding.dtype): finding for finding in section}
        grid = Table(show_edge=False, pad_edge=False)
        grid.add_column("case", no_wrap=True)
        for name in names:
            grid.add_column(name, justify="center", no_wrap=True)
        for item in dict.fromkeys(finding.item for finding in section):
            grid.add_row(item, *(_signs([by_cell.get((item, name, dtype)) for dtype in dtypes]) for name in names))
        parts += [Text(f"{section[0].of_pass}: {', '.join(dtypes)}", style="bold"), grid, Text()]
    legend = "; ".join(f"{sign} {verdict}" for verdict, sign in SIGNS.items())
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
        worst = max((f.worst for f in own if f.worst is not None and f.verdict == Grade.PASS), default=None)
        largest = "" if worst is None else f"; passes have at most {worst:.2f} of the bound"
        passing = [f for f in own if f.verdict == Grade.PASS and f.ulp is not None]
        metrics = (("ULP", "ulp"), ("in the row sum", "row_sum"), ("in the Frobenius norm", "frobenius"))
        medians = [f"{median(getattr(f, key) for f in passing):.3g} {what}" for what, key in metrics] if passing else []
        lines.append(Text(f"{name}: {tally}{largest}" + (f" (medians: {', '.join(medians)})" if medians else "")))
    return lines


def _reasons(findings: Sequence[Finding]) -> list[Text]:
    """A line per reason of a skip and per note of a pass, with the backends and the number of cases."""
    grouped: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        if finding.verdict in ("skipped", "unverified") or (finding.verdict == "pass" and finding.reason):
            grouped.setdefault((finding.verdict, finding.reason), []).append(finding)
    lines = []
    for (verdict, reason), same_reason in grouped.items():
        names = ", ".join(dict.fromkeys(finding.backend for finding in same_reason))
        lines.append(Text(f"{verdict}: {reason} ({count(len(same_reason), 'case')} of {names})"))
    return lines


def lines(findings: Sequence[Finding]) -> RenderableType:
    """One line per finding, with its error over bound and the other error metrics."""
    table = Table(show_edge=False, pad_edge=False)
    for name in ("backend", "direction", "dtype", "case", "verdict", "error/bound", "ULP", "row sum", "Frobenius", "why"):
        numeric = name in ("error/bound", "ULP", "row sum", "Frobenius")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name != "why", overflow="fold")
    for finding in findings:
        numbers = (finding.worst, finding.ulp, finding.row_sum, finding.frobenius)
        table.add_row(
            *(Text(text) for text in (finding.backend, finding.of_pass, finding.dtype, finding.item)),
            Text(finding.verdict, style=STYLES.get(finding.verdict, "")),
            *("" if number is None else f"{number:.3g}" for number in numbers),
            Text(finding.reason),
        )
    return Group(table, Text(), *_counts(findings, list(dict.fromkeys(finding.backend for finding in findings))))


def junit(report: CheckReport, plugins: Sequence[str]) -> str:
    """JUnit XML: one test case per backend, check case and dtype.

    `wrong` is a failure and `failed` an error, both with the command that repeats it. `skipped` and `unverified` are skipped, with
    the reason. A broken backend is an error; a backend that cannot run here is skipped. An interruption is an error.
    """
    commands = dict(report.to_repeat(plugins))
    suite = ElementTree.Element("testsuite", {"name": "softbench check"})
    for finding in report.findings:
        name = f"{finding.of_pass} {finding.dtype} {finding.item}"
        case = ElementTree.SubElement(suite, "testcase", {"classname": f"softbench.{finding.backend}", "name": name})
        if finding.verdict in BAD:
            kind = "error" if finding.verdict == FAILED else "failure"
            element = ElementTree.SubElement(case, kind, {"type": finding.verdict, "message": xml_text(finding.reason)})
            element.text = xml_text(commands[finding])
        elif finding.verdict in (SKIPPED, Grade.UNVERIFIED):
            ElementTree.SubElement(case, "skipped", {"message": xml_text(finding.reason)})
        elif finding.worst is not None:
            measures = [
                ("error over bound", finding.worst),
                ("ULP", finding.ulp),
                ("row sum", finding.row_sum),
                ("Frobenius", finding.frobenius),
            ]
            element = ElementTree.SubElement(case, "system-out")
            element.text = "; ".join([finding.verdict, *(f"{what} {value:.3g}" for what, value in measures if value is not None)])
    for note in report.notes:
        name, _, reason = note.partition(": ")
        case = ElementTree.SubElement(suite, "testcase", {"classname": f"softbench.{name}", "name": "load"})
        unavailable = reason.startswith("unavailable")
        ElementTree.SubElement(case, "skipped" if unavailable else "error", {"message": xml_text(reason)})
    if report.interrupted:
        case = ElementTree.SubElement(suite, "testcase", {"classname": "softbench", "name": "interrupted"})
        ElementTree.SubElement(case, "error", {"message": f"an interruption left out {count(report.left, 'case')}"})
    for key, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(len(list(suite.iter(tag)))))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
