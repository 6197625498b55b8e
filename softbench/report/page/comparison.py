"""The comparison of two results files on a page: cell by cell, and the gate's verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softbench.core import text as units
from softbench.core.errors import InconclusiveError, ResultsError
from softbench.gate import environment_match, run_files, unpaired
from softbench.gate.samples import CellKey
from softbench.gate.verdicts import GateReport, Rules, State, Verdict
from softbench.report.page.source import Source
from softbench.report.page.table import Line, Table
from softbench.report.pair_table import pair_texts
from softbench.results.compare import FASTER, ORDERS, SAME, SLOWER, cards_note, drift, pairs, summary
from softbench.results.rows import Row

HEAD = (
    *(("backend", False), ("case", False), ("A, GB/s", True), ("B, GB/s", True)),
    *(("B/A", True), ("without drift", True), ("verdict", False)),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two files, A before and B after."""

    a: str
    b: str
    summary: str
    notes: tuple[str, ...]
    table: Table
    """What changed most beyond noise first."""


def compare(a: Source, b: Source) -> Comparison:
    """Every cell with a bandwidth in one of the files."""
    found, moved_by = pairs(a.rows, b.rows), drift(a.rows, b.rows).text
    ordered = sorted(found, key=lambda pair: (pair.missing, not pair.changed, ORDERS["change"](pair)))
    lines = [Line(pair_texts(pair), {SLOWER: "bad", FASTER: "good", SAME: ""}.get(pair.verdict, "plain")) for pair in ordered]
    notes = [f"{moved_by}."] if moved_by else []
    notes += [f"The devices differ: A is {a.device}, B is {b.device}. The ratios compare the devices."] if a.device != b.device else []
    if a.device == b.device:
        if apart := _environments_apart(a, b):
            notes.append(f"The environments differ: {'; '.join(apart)}.")
        if moved := cards_note(a.rows, b.rows):
            notes.append(f"{moved}.")
    return Comparison(
        f"{a.name}, {a.device}", f"{b.name}, {b.device}", f"{summary(found)}." if found else "", tuple(notes), Table(HEAD, tuple(lines))
    )


def _environments_apart(a: Source, b: Source) -> list[str]:
    """How the recorded environments differ; none if one has none."""
    first, second = (source.header.get("environment") for source in (a, b))
    return environment_match.differences(first, second) if isinstance(first, dict) and isinstance(second, dict) else []


VERDICT_HEAD = (
    *(("state", False), ("backend", False), ("case", False), ("new/old", True)),
    *(("95 % interval", True), ("n", False), ("reason", False)),
)
VERDICT_KIND = {
    **dict.fromkeys((State.SLOWER, State.BROKEN, State.MISSING), "bad"),
    **{State.AMBIGUOUS: "warn", State.FASTER: "good", State.NEW: "plain"},
}


def verdict_table(report: GateReport) -> Table:
    """A row for each verdict, in the report's order: regressions first."""
    lines = (
        Line(_verdict_texts(verdict), VERDICT_KIND.get(verdict.state, "") if verdict.gated else "plain") for verdict in report.verdicts
    )
    return Table(VERDICT_HEAD, tuple(lines))


def _verdict_texts(verdict: Verdict) -> tuple[str, ...]:
    interval = f"{verdict.interval[0]:.3f} to {verdict.interval[1]:.3f}" if verdict.interval else ""
    ratio = f"{verdict.ratio:.3f}" if verdict.ratio is not None else ""
    state = verdict.state + ("" if verdict.gated else " (advisory)")
    return state, verdict.cell.backend, verdict.cell.case, ratio, interval, verdict.n, verdict.reason


def of_others(report: GateReport, rows: Sequence[Row]) -> str:
    """A note if the report has cells that these rows lack, as that of another run has; else an empty text."""
    known = {CellKey(row.backend, *row.case) for row in rows}
    judged = [verdict.cell for verdict in report.verdicts if verdict.state is not State.MISSING]
    absent = sum(cell not in known for cell in judged)
    return (
        f"The results of this page lack {absent} of the {units.count(len(judged), 'cell')} below: the gate judged another run."
        if absent
        else ""
    )


def gate_report(a: Source, b: Source) -> tuple[GateReport | None, str]:
    """The gate's report on two files, the first as the baseline; or why the gate cannot judge them."""
    if not (a.records and b.records):
        return None, "The gate needs the samples of both files."
    try:
        old, new = (run_files.from_run(source.header, source.records.values(), source.name) for source in (a, b))
        notes = environment_match.check(new, old, ())
        return unpaired.compare(new, old, Rules(unpaired.MARGIN), tuple(notes)), ""
    except (InconclusiveError, ResultsError, KeyError, TypeError, ValueError) as error:
        return None, f"The gate does not judge these files: {units.one_line(str(error))}."
