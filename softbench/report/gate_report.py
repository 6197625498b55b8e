"""The gate's report for people and for CI: a text table, Markdown, JUnit XML. Nothing is printed or written here."""

from __future__ import annotations

import html
from collections.abc import Sequence
from xml.etree import ElementTree

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from softbench.core.text import count, micros, one_line
from softbench.gate.samples import RunSamples
from softbench.gate.verdicts import GateReport, State, Verdict

STYLES = {State.SLOWER: "bold red", State.BROKEN: "bold red", State.MISSING: "red", State.AMBIGUOUS: "yellow", State.FASTER: "green"}
SIGNS = {State.SAME: "~"}
COLUMNS = ("state", "backend", "case", "new/old", "95 %", "n", "why")


def text(report: GateReport, *, long: bool) -> RenderableType:
    """What fails first, then what else changed; cells where nothing changed are one line, unless `long`."""
    shown = [verdict for verdict in report.verdicts if long or verdict.state is not State.SAME]
    parts: list[RenderableType] = [Text(report.what)]
    if shown:
        table = Table(show_edge=False, pad_edge=False)
        for name in COLUMNS:
            table.add_column(name, no_wrap=name != "why", overflow="fold", justify="right" if name in ("new/old", "95 %") else "left")
        for verdict in shown:
            state, *rest = _row(verdict)
            style = STYLES.get(verdict.state, "") if verdict.gated else "dim"
            table.add_row(Text(state, style=style), *map(Text, rest))
        parts.append(table)
    parts += [Text(line) for line in _collapsed(report, shown)]
    if covers := sorted({verdict.covers for verdict in report.verdicts if verdict.covers}):
        parts.append(Text(f"new/old is latency: above 1 is slower; its interval covers {'; '.join(covers)}", style="dim"))
    style = {0: "bold green", 1: "bold red"}.get(report.exit_code, "bold yellow")
    return Group(*parts, Text(report.summary, style=style))


def _row(verdict: Verdict) -> tuple[str, ...]:
    ratio = f"{verdict.ratio:.3f}" if verdict.ratio is not None else ""
    interval = f"{verdict.interval[0]:.3f}..{verdict.interval[1]:.3f}" if verdict.interval else ""
    reason = verdict.reason
    if verdict.raw_ratio is not None and verdict.ratio is not None and verdict.state is not State.SAME:
        reason += f" ({verdict.raw_ratio:.3f} before what copy moved is taken off)"
    state = SIGNS.get(verdict.state, verdict.state.value) + ("" if verdict.gated else " (advisory)")
    return state, verdict.cell.backend, verdict.cell.case, ratio, interval, verdict.n, reason


def _collapsed(report: GateReport, shown: Sequence[Verdict]) -> list[str]:
    rest = [verdict.ratio for verdict in report.verdicts if verdict not in shown and verdict.ratio]
    if not rest:
        return []
    return [f"~ {count(len(rest), 'cell')} within the margin, new/old from {min(rest):.3f} to {max(rest):.3f}"]


def markdown(report: GateReport) -> str:
    """For a pull request or a job summary: the outcome, what changed, and all cells folded away."""
    sign = {0: "✅", 1: "❌"}.get(report.exit_code, "❓")
    changed = [verdict for verdict in report.verdicts if verdict.state is not State.SAME]
    lines = [f"### {sign} softbench gate: {_safe(report.summary)}", "", _safe(report.what), ""]
    if changed:
        lines += [*_markdown_table(changed), ""]
    same = [verdict for verdict in report.verdicts if verdict.state is State.SAME]
    if same:
        lines += [f"<details><summary>~ {count(len(same), 'cell')} within the margin</summary>", ""]
        lines += [*_markdown_table(same), "", "</details>", ""]
    lines += [f"- {_safe(note)}" for note in report.notes]
    return "\n".join(lines) + "\n"


def _markdown_table(verdicts: Sequence[Verdict]) -> list[str]:
    rows = [COLUMNS, ("---", "---", "---", "--:", "--:", "---", "---")]
    return ["| " + " | ".join(row) + " |" for row in [*rows, *(tuple(map(_safe, _row(verdict))) for verdict in verdicts)]]


def _safe(words: str) -> str:
    """Text of a plugin or a file in Markdown: no markup, no new columns, no links, no mentions."""
    escaped = html.escape(one_line(words, 1000), quote=False)
    for sign in ("\\", "|", "`", "*", "_", "[", "]", "~"):
        escaped = escaped.replace(sign, f"&#{ord(sign)};")
    return escaped.replace("@", "@&#8203;")


def junit(report: GateReport) -> str:
    """JUnit XML: a test case a cell; what fails is a failure, what cannot be judged or is advisory is skipped, with the reason."""
    failing = [verdict for verdict in report.verdicts if verdict.fails]
    skipped = [verdict for verdict in report.verdicts if not verdict.fails and (verdict.state is State.AMBIGUOUS or not verdict.gated)]
    counts = {"tests": len(report.verdicts) + 1, "failures": len(failing), "errors": int(report.exit_code == 3), "skipped": len(skipped)}
    suite = ElementTree.Element("testsuite", {"name": "softbench gate", **{key: str(value) for key, value in counts.items()}})
    for verdict in report.verdicts:
        case = ElementTree.SubElement(suite, "testcase", {"classname": f"softbench.{verdict.cell.backend}", "name": verdict.cell.case})
        told = " ".join(part for part in _row(verdict)[3:] if part)
        if verdict in failing:
            ElementTree.SubElement(case, "failure", {"type": verdict.state.value, "message": xml_text(told)})
        elif verdict in skipped:
            ElementTree.SubElement(case, "skipped", {"message": xml_text(told)})
    whole = ElementTree.SubElement(suite, "testcase", {"classname": "softbench", "name": "gate"})
    if report.exit_code == 3:  # no cell fails, and yet it is no success
        ElementTree.SubElement(whole, "error", {"type": "inconclusive", "message": report.summary})
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def xml_text(words: str) -> str:
    """Text without the characters that XML cannot hold at all."""
    return one_line(words, 1000).replace("\ufffe", "?").replace("\uffff", "?")


def baselines(found: Sequence[tuple[str, RunSamples | str]]) -> list[tuple[str, str, str]]:
    """Names of baselines with what they hold, or why they cannot be read, as `softbench.report.tables.facts` takes them."""
    rows = []
    for name, what in found:
        if isinstance(what, str):
            rows.append((name, "broken", what))
        else:
            measured = sum(series.status == "ok" for series in what.cells.values())
            told = f"{count(measured, 'cell')}, {count(what.processes, 'process').replace('processs', 'processes')}"
            rows.append((name, "ok", f"{told} on {what.device_name}: {what.command}"))
    return rows


def baseline(found: RunSamples) -> RenderableType:
    """One baseline: its environment, and each cell's figure with its spread between processes."""
    facts = Table(show_header=False, box=None, pad_edge=False)
    pairs = {"runs": ", ".join(found.runs), "command": found.command, **found.versions, **found.settings, **found.environment}
    for key, value in pairs.items():
        facts.add_row(Text(str(key), style="bold"), Text(one_line(str(value))))
    table = Table(show_edge=False, pad_edge=False)
    for name in ("backend", "case", "status", "median", "spread", "processes"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("median", "spread", "processes") else "left")
    for cell, series in found.cells.items():
        medians = sorted(series.medians_us().values())
        middle = medians[len(medians) // 2] if medians else 0.0
        spread = f"{(medians[-1] - medians[0]) / middle:.1%}" if medians else ""
        table.add_row(cell.backend, cell.case, series.status, micros(middle) if medians else "", spread, str(len(medians) or ""))
    return Group(facts, Text(), table, Text("spread: the slowest process less the fastest, over the median", style="dim"))
