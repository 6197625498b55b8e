"""Renders the gate's report as a text table, Markdown and JUnit XML. Prints nothing."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from softbench.core.text import count, micros, one_line
from softbench.gate.samples import RunSamples
from softbench.gate.verdicts import GateReport, State, Verdict
from softbench.report.markdown import safe

STYLES = {State.SLOWER: "bold red", State.BROKEN: "bold red", State.MISSING: "red", State.AMBIGUOUS: "yellow", State.FASTER: "green"}
COLUMNS = ("state", "backend", "case", "new/old", "95 %", "n", "why")


def text(report: GateReport, *, long: bool) -> RenderableType:
    """Failing cells, then other changed cells. Unchanged cells are one line, or one line each if `long`."""
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
    return Group(*parts, conclusion(report))


def conclusion(report: GateReport) -> RenderableType:
    """The summary."""
    return Text(report.summary, style={0: "bold green", 1: "bold red"}.get(report.exit_code, "bold yellow"))


def _row(verdict: Verdict) -> tuple[str, ...]:
    ratio = f"{verdict.ratio:.3f}" if verdict.ratio is not None else ""
    interval = f"{verdict.interval[0]:.3f}..{verdict.interval[1]:.3f}" if verdict.interval else ""
    reason = verdict.reason
    if verdict.raw_ratio is not None and verdict.ratio is not None and verdict.state is not State.SAME:
        reason += f" ({verdict.raw_ratio:.3f} before the change of copy is subtracted)"
    state = verdict.state.value + ("" if verdict.gated else " (advisory)")
    return state, verdict.cell.backend, verdict.cell.case, ratio, interval, verdict.n, reason


def _collapsed(report: GateReport, shown: Sequence[Verdict]) -> list[str]:
    ratios = [verdict.ratio for verdict in report.verdicts if verdict not in shown and verdict.ratio]
    if not ratios:
        return []
    return [f"same: {count(len(ratios), 'cell')} within the margin, new/old from {min(ratios):.3f} to {max(ratios):.3f}"]


def markdown(report: GateReport) -> str:
    """Markdown for a pull request or a job summary: the outcome, the changed cells, and a folded list of the others."""
    sign = {0: "✅", 1: "❌"}.get(report.exit_code, "❓")
    changed = [verdict for verdict in report.verdicts if verdict.state is not State.SAME]
    lines = [f"### {sign} softbench gate: {safe(report.summary)}", "", safe(report.what), ""]
    if changed:
        lines += [*_markdown_table(changed), ""]
    same = [verdict for verdict in report.verdicts if verdict.state is State.SAME]
    if same:
        lines += [f"<details><summary>same: {count(len(same), 'cell')} within the margin</summary>", ""]
        lines += [*_markdown_table(same), "", "</details>", ""]
    lines += [f"- {safe(note)}" for note in report.notes] + ([f"- next: {safe(report.next_step)}"] if report.next_step else [])
    return "\n".join(lines) + "\n"


def _markdown_table(verdicts: Sequence[Verdict]) -> list[str]:
    rows = [COLUMNS, ("---", "---", "---", "--:", "--:", "---", "---")]
    return ["| " + " | ".join(row) + " |" for row in [*rows, *(tuple(map(safe, _row(verdict))) for verdict in verdicts)]]


def junit(report: GateReport) -> str:
    """JUnit XML with one test case per cell. Ambiguous and advisory cells are skipped, with the reason."""
    failing = [verdict for verdict in report.verdicts if verdict.fails]
    skipped = [verdict for verdict in report.verdicts if not verdict.fails and (verdict.state is State.AMBIGUOUS or not verdict.gated)]
    counts = {"tests": len(report.verdicts) + 1, "failures": len(failing), "errors": int(report.exit_code == 3), "skipped": len(skipped)}
    suite = ElementTree.Element("testsuite", {"name": "softbench gate", **{key: str(value) for key, value in counts.items()}})
    for verdict in report.verdicts:
        case = ElementTree.SubElement(suite, "testcase", {"classname": f"softbench.{verdict.cell.backend}", "name": verdict.cell.case})
        message = " ".join(part for part in _row(verdict)[3:] if part)
        if verdict in failing:
            ElementTree.SubElement(case, "failure", {"type": verdict.state.value, "message": xml_text(message)})
        elif verdict in skipped:
            ElementTree.SubElement(case, "skipped", {"message": xml_text(message)})
    whole = ElementTree.SubElement(suite, "testcase", {"classname": "softbench", "name": "gate"})
    if report.exit_code == 3:  # inconclusive, although no cell fails
        ElementTree.SubElement(whole, "error", {"type": "inconclusive", "message": xml_text(f"{report.summary}; next: {report.next_step}")})
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def xml_text(value: str) -> str:
    """Text without the characters that XML does not allow."""
    return one_line(value, 1000).replace("\ufffe", "?").replace("\uffff", "?")


def baselines(named: Sequence[tuple[str, RunSamples | str]]) -> list[tuple[str, str, str]]:
    """Rows for `softbench.report.tables.facts`: each baseline with its contents, or why it cannot be read."""
    rows = []
    for name, content in named:
        if isinstance(content, str):
            rows.append((one_line(name), "broken", one_line(content)))
        else:
            measured = sum(samples.status == "ok" for samples in content.cells.values())
            counts = f"{count(measured, 'cell')}, {count(content.processes, 'process').replace('processs', 'processes')}"
            rows.append((one_line(name), "ok", one_line(f"{counts} on {content.device_name}: {content.command}", 4096)))
    return rows


def baseline(stored: RunSamples) -> RenderableType:
    """One baseline: its environment, and each cell's median with its spread between processes."""
    facts = Table(show_header=False, box=None, pad_edge=False)
    pairs = {"runs": ", ".join(stored.runs), "command": stored.command, **stored.versions, **stored.settings, **stored.environment}
    for key, value in pairs.items():
        facts.add_row(Text(one_line(str(key)), style="bold"), Text(one_line(str(value))))
    table = Table(show_edge=False, pad_edge=False)
    for name in ("backend", "case", "status", "median", "spread", "processes"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("median", "spread", "processes") else "left")
    for cell, samples in stored.cells.items():
        medians = sorted(samples.medians_us().values())
        middle = medians[len(medians) // 2] if medians else 0.0
        spread = f"{(medians[-1] - medians[0]) / middle:.1%}" if medians else ""
        table.add_row(cell.backend, cell.case, samples.status, micros(middle) if medians else "", spread, str(len(medians) or ""))
    return Group(facts, Text(), table, Text("spread: slowest less fastest process, over the median", style="dim"))
