"""Renders the gate's report as a text table, Markdown and JUnit XML; baselines; and the results of self-tests. Prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from softbench.core.text import count, margin, micros, one_line
from softbench.gate.samples import RunSamples
from softbench.gate.self_test import FOR_5_PERCENT, SelfTest
from softbench.gate.verdicts import GateReport, State, Verdict
from softbench.report import markup, rich_tables
from softbench.report.markup import TestSuite, outcome, safe

STYLES = {
    State.SLOWER: "bold red",
    State.BROKEN: "bold red",
    State.MISSING: "red",
    State.FAILED: "red",
    State.CLOCK: "yellow",
    State.AMBIGUOUS: "yellow",
    State.FASTER: "green",
}
COLUMNS = ("state", "backend", "case", "new/old", "95 %", "why")
QUIET = (State.SAME, State.UNMEASURED)
"""The states that a report folds."""
NUMBERS = (3, 4)
"""The right-aligned columns."""


def text(report: GateReport, *, long: bool) -> RenderableType:
    """Failing cells, then other changed cells. Unchanged cells are one line, unmeasured ones one for each backend, unless `long`."""
    shown = [verdict for verdict in report.verdicts if long or verdict.state not in QUIET]
    parts: list[RenderableType] = [Text(report.what)]
    if shown:
        table = rich_tables.table(COLUMNS, NUMBERS, folded=(len(COLUMNS) - 1,))
        for verdict in shown:
            state, *rest = _row(verdict)
            style = STYLES.get(verdict.state, "") if verdict.gated else "dim"
            table.add_row(Text(state, style=style), *map(Text, rest))
        parts.append(table)
    parts += [Text(line) for line in ([] if long else _collapsed(report))]
    if covers := sorted({verdict.covers for verdict in report.verdicts if verdict.covers}):
        parts.append(Text(f"new/old is latency: above 1 is slower; its interval covers {'; '.join(covers)}", style="dim"))
    return Group(*parts, conclusion(report))


def brief(report: GateReport) -> RenderableType:
    """The summary, and the worst cell of those that fail: verdicts begin with it."""
    if not (failing := [verdict for verdict in report.verdicts if verdict.fails]):
        return conclusion(report)
    worst = failing[0]
    ratio = f", new/old {worst.ratio:.3f}" if worst.ratio is not None else ""
    named = f"worst: {worst.cell.backend} {worst.cell.case}: {worst.state}{ratio}: {worst.reason}"
    return Group(conclusion(report), Text(named, no_wrap=True, overflow="ignore"))


def conclusion(report: GateReport) -> RenderableType:
    """The summary, in one line of a log."""
    style = {0: "bold green", 1: "bold red"}.get(report.exit_code, "bold yellow")
    return Text(report.summary, style=style, no_wrap=True, overflow="ignore")


def _row(verdict: Verdict) -> tuple[str, ...]:
    ratio = f"{verdict.ratio:.3f}" if verdict.ratio is not None else ""
    interval = f"{verdict.interval[0]:.3f}..{verdict.interval[1]:.3f}" if verdict.interval else ""
    reason = verdict.reason
    if verdict.raw_ratio is not None and verdict.ratio is not None and verdict.state is not State.SAME:
        reason += f" ({verdict.raw_ratio:.3f} before the change of copy is subtracted)"
    if verdict.n:  # no column of its own: most cells have the same, and a terminal of 100 columns would break the lines
        reason += f"; {verdict.n}"
    state = verdict.state.value + ("" if verdict.gated else " (advisory)")
    return state, verdict.cell.backend, verdict.cell.case, ratio, interval, reason


def _collapsed(report: GateReport) -> list[str]:
    unmeasured = Counter((v.cell.backend, v.reason) for v in report.verdicts if v.state is State.UNMEASURED)
    lines = [f"unmeasured: {count(number, 'cell')} of {backend}: {why}" for (backend, why), number in unmeasured.items()]
    if ratios := [verdict.ratio for verdict in report.verdicts if verdict.state is State.SAME and verdict.ratio]:
        span = " to ".join(dict.fromkeys(f"{one:.3f}" for one in (min(ratios), max(ratios))))
        lines.append(f"same: {count(len(ratios), 'cell')} within the margin, new/old {span}")
    return lines


def markdown(report: GateReport) -> str:
    """Markdown for a pull request or a job summary: the outcome, the changed cells, and a folded list of the others."""
    sign = {0: "✅", 1: "❌"}.get(report.exit_code, "❓")
    changed = [verdict for verdict in report.verdicts if verdict.state not in QUIET]
    lines = [f"### {sign} softbench gate: {safe(report.summary)}", "", safe(report.what), ""]
    if changed:
        lines += [markup.table(COLUMNS, list(map(_row, changed)), NUMBERS), ""]
    for state, what in zip(QUIET, ("within the margin", "timed on neither side"), strict=True):
        if folded := [verdict for verdict in report.verdicts if verdict.state is state]:
            lines += [f"<details><summary>{state}: {count(len(folded), 'cell')} {what}</summary>", ""]
            lines += [markup.table(COLUMNS, list(map(_row, folded)), NUMBERS), "", "</details>", ""]
    lines += [f"- {safe(note)}" for note in report.notes] + ([f"- next: {safe(report.next_step)}"] if report.next_step else [])
    return "\n".join(lines) + "\n"


def junit(report: GateReport) -> str:
    """JUnit XML with one test case per cell. A cell that is right on neither side is an error.

    Ambiguous, unmeasured and advisory cells are skipped, with the reason.
    """
    suite = TestSuite("softbench gate")
    for verdict in report.verdicts:
        case = suite.case(verdict.cell.backend, verdict.cell.case)
        message = " ".join(part for part in _row(verdict)[3:] if part)
        if verdict.fails:
            outcome(case, "failure", message, type=verdict.state.value)
        elif verdict.state is State.FAILED:
            outcome(case, "error", message, type=verdict.state.value)
        elif verdict.state in (State.CLOCK, State.AMBIGUOUS, State.UNMEASURED) or not verdict.gated:
            outcome(case, "skipped", message)
    whole = suite.case("", "gate")
    if report.exit_code == 3:  # inconclusive, although no cell fails
        outcome(whole, "error", f"{report.summary}; next: {report.next_step}", type="inconclusive")
    return suite.text()


def baselines(named: Sequence[tuple[str, RunSamples | str]]) -> list[tuple[str, str, str]]:
    """Rows for `softbench.report.tables.facts`: each baseline with its contents, or why it cannot be read."""
    rows = []
    for name, content in named:
        if isinstance(content, str):
            rows.append((one_line(name), "broken", one_line(content)))
        else:
            measured = sum(samples.status == "ok" for samples in content.cells.values())
            counts = f"{count(measured, 'cell')}, {count(content.processes, 'process').replace('processs', 'processes')}"
            counts += f", {count(len(content.by_sitting), 'sitting')}"
            rows.append((one_line(name), "ok", one_line(f"{counts} on {content.device_name}: {content.command}", 4096)))
    return rows


def baseline(stored: RunSamples) -> RenderableType:
    """One baseline: its environment, and each cell's median with its spread between processes."""
    facts = Table(show_header=False, box=None, pad_edge=False)
    pairs = {"runs": ", ".join(stored.runs), "command": stored.command, **stored.versions, **stored.settings, **stored.environment}
    for key, value in pairs.items():
        facts.add_row(Text(one_line(str(key)), style="bold"), Text(one_line(str(value))))
    table = rich_tables.table(("backend", "case", "status", "median", "spread", "processes"), numbers=(3, 4, 5))
    for cell, samples in stored.cells.items():
        medians = sorted(samples.medians_us().values())
        middle = medians[len(medians) // 2] if medians else 0.0
        spread = f"{(medians[-1] - medians[0]) / middle:.1%}" if medians else ""
        table.add_row(cell.backend, cell.case, samples.status, micros(middle) if medians else "", spread, str(len(medians) or ""))
    return Group(facts, Text(), table, Text("spread: slowest less fastest process, over the median", style="dim"))


def self_test(result: SelfTest) -> RenderableType:
    """The A/A repetitions first, then a line for each injected slowdown."""
    alarms_at_most, flagged_at_most = (result.bounds(number)[1] for number in (result.alarms, result.flagged))
    lines = [
        f"{result.reference} on {result.device_name}, margin {margin(result.margin)}, A/A repetitions of {count(result.cells, 'case')}",
        f"{result.repetitions} repetitions share their process sets, so that bounds count {result.independent} "
        f"(59 without a false alarm give 5 %: --families {FOR_5_PERCENT})",
        f"false alarms: {result.alarms} of {result.repetitions} A/A repetitions (at most {alarms_at_most:.2%}, with 95 % confidence); "
        f"a cell beyond the margin in the first look: {result.flagged} (at most {flagged_at_most:.2%})",
        f"ended with exit 0: {result.passed} of {result.repetitions} (at least {result.bounds(result.passed)[0]:.1%})",
        f"A/A ratios within 1 %: {result.within_1_percent} of {result.ratios} (calls over 10 us, all repetitions); "
        f"furthest: {result.furthest:.4f}",
        f"cells without a slowdown, called slower beside cells with one: {result.bystanders}",
    ]
    power = rich_tables.table(("injected", "measured", "least..most", "trials", "found", "share", "at least", "at most"), range(8))
    for level in result.power:
        low, high = level.bounds
        between = f"{level.least:.1%}..{level.most:.1%}"
        shares = (f"{level.share:.3f}", f"{low:.3f}", f"{high:.3f}")
        power.add_row(f"{level.injected:.0%}", f"{level.measured:.1%}", between, str(level.trials), str(level.found), *shares)
    footnote = "measured: median over the cells; at least, at most: one-sided 95 % bounds, which count repetitions that share no process"
    return Group(*map(Text, lines), power, Text(footnote, style="dim"), Text(self_test_summary(result)))


def self_test_summary(result: SelfTest) -> str:
    """Why a self-test ends with its exit code."""
    if result.alarms:
        return f"FAIL: {count(result.alarms, 'false alarm')}"
    passed = f"{result.passed} of {result.repetitions} repetitions ended with exit 0"
    return f"FAIL: {passed}, and 95 % must: measure again when nothing else runs" if result.exit_code else f"PASS: {passed}"
