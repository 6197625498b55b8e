"""What `softbench check` found, for people and for CI: a table of signs, a line a case, JUnit XML. Nothing is printed or written here."""

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
    """A table for each direction: cases down, backends across, a sign for each dtype; under it the counts and every reason."""
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
        parts += [Text(f"{direction}: {', '.join(dtypes)}", style="bold"), grid, Text()]
    legend = "; ".join(f"{sign} {verdict}" for verdict, sign in SIGNS.items())
    return Group(*parts, Text(legend, style="dim"), *_counts(findings, names), *_reasons(findings))


def _signs(findings: Sequence[Finding | None]) -> Text:
    text = Text()
    for finding in findings:
        verdict = finding.verdict if finding else ""
        text.append(SIGNS.get(verdict, " "), style=STYLES.get(verdict, ""))
    return text


def _counts(findings: Sequence[Finding], names: Sequence[str]) -> list[Text]:
    """A line for each backend: how many of each verdict, and the largest error over its bound among the passes."""
    lines = []
    for name in names:
        own = [finding for finding in findings if finding.backend == name]
        tally = ", ".join(
            f"{sum(f.verdict == verdict for f in own)} {verdict}" for verdict in SIGNS if any(f.verdict == verdict for f in own)
        )
        worst = max((f.worst for f in own if f.worst is not None and f.verdict == Grade.PASS), default=None)
        tight = "" if worst is None else f"; at most {worst:.2f} of the bound where it passes"
        passing = [f for f in own if f.verdict == Grade.PASS and f.ulp is not None]
        beside = (("ULP", "ulp"), ("off in a row sum", "row_sum"), ("in Frobenius", "frobenius"))
        told = [f"{median(getattr(f, key) for f in passing):.3g} {what}" for what, key in beside] if passing else []
        lines.append(Text(f"{name}: {tally}{tight}" + (f" (there, in the middle: {', '.join(told)})" if told else "")))
    return lines


def _reasons(findings: Sequence[Finding]) -> list[Text]:
    """A line for each reason of a skip, and for each trait of a pass: which backends, and how many cases."""
    grouped: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        if finding.verdict in ("skipped", "unverified") or (finding.verdict == "pass" and finding.reason):
            grouped.setdefault((finding.verdict, finding.reason), []).append(finding)
    lines = []
    for (verdict, reason), some in grouped.items():
        names = ", ".join(dict.fromkeys(finding.backend for finding in some))
        lines.append(Text(f"{verdict}: {reason} ({count(len(some), 'case')} of {names})"))
    return lines


def lines(findings: Sequence[Finding]) -> RenderableType:
    """Every finding on a line of its own, with the error over its bound and the diagnostics beside it."""
    table = Table(show_edge=False, pad_edge=False)
    for name in ("backend", "direction", "dtype", "case", "verdict", "error/bound", "ULP", "row sum", "Frobenius", "why"):
        numeric = name in ("error/bound", "ULP", "row sum", "Frobenius")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name != "why", overflow="fold")
    for found in findings:
        numbers = (found.worst, found.ulp, found.row_sum, found.frobenius)
        table.add_row(
            *(Text(text) for text in (found.backend, found.direction, found.dtype, found.item)),
            Text(found.verdict, style=STYLES.get(found.verdict, "")),
            *("" if number is None else f"{number:.3g}" for number in numbers),
            Text(found.reason),
        )
    return Group(table, Text(), *_counts(findings, list(dict.fromkeys(found.backend for found in findings))))


def junit(report: CheckReport, plugins: Sequence[str]) -> str:
    """JUnit XML: a test case for each backend, case and dtype.

    A wrong result is a failure and a failed one is an error, both with the command that repeats it. Skipped and unverified cases are
    skipped, with the reason. A broken backend is an error; a backend that cannot run here is skipped.
    """
    again = dict(report.to_repeat(plugins))
    suite = ElementTree.Element("testsuite", {"name": "softbench check"})
    for found in report.findings:
        name = f"{found.direction} {found.dtype} {found.item}"
        case = ElementTree.SubElement(suite, "testcase", {"classname": f"softbench.{found.backend}", "name": name})
        if found.verdict in BAD:
            kind = "error" if found.verdict == FAILED else "failure"
            told = ElementTree.SubElement(case, kind, {"type": found.verdict, "message": xml_text(found.reason)})
            told.text = xml_text(again[found])
        elif found.verdict in (SKIPPED, Grade.UNVERIFIED):
            ElementTree.SubElement(case, "skipped", {"message": xml_text(found.reason)})
        elif found.worst is not None:
            measures = [("error over bound", found.worst), ("ULP", found.ulp), ("row sum", found.row_sum), ("Frobenius", found.frobenius)]
            told = ElementTree.SubElement(case, "system-out")
            told.text = "; ".join([found.verdict, *(f"{what} {value:.3g}" for what, value in measures if value is not None)])
    for note in report.notes:
        name, _, reason = note.partition(": ")
        case = ElementTree.SubElement(suite, "testcase", {"classname": f"softbench.{name}", "name": "load"})
        unavailable = reason.startswith("unavailable")
        ElementTree.SubElement(case, "skipped" if unavailable else "error", {"message": xml_text(reason)})
    for key, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(len(list(suite.iter(tag)))))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
