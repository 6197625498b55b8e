"""The comparison of two results files on a page: cell by cell, and the gate's verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softbench.core import text as units
from softbench.core.errors import InconclusiveError, ResultsError
from softbench.core.json import JsonObject
from softbench.gate import environment_match, run_files, unpaired
from softbench.gate.samples import CellKey
from softbench.gate.verdicts import GateReport, Rules, State
from softbench.report.assets.embedded import column
from softbench.report.page.source import Source
from softbench.results.columns import Row
from softbench.results.compare import YARDSTICK, Pair, TwoFiles, beyond_noise_first, counted


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two files, A before and B after."""

    a: str
    b: str
    drift: str
    """How the machine changed, as `copy` shows it; empty without copy."""
    summary: str
    notes: tuple[str, ...]


def compare(a: Source, b: Source, found: Sequence[Pair]) -> Comparison:
    """What is said about both files. `found` are their cells (`softbench.results.compare.pairs`)."""
    both = TwoFiles(a.rows, b.rows)
    tally = counted(found)
    notes = [
        f"{units.count(cells, 'cell')} {verdict}. Their ratio would compare the timers; measure both with one --timer."
        for verdict, cells in tally.refused.items()
    ]
    if a.device != b.device:
        ratios = " The ratios compare the devices." if tally.changes else ""
        notes.append(f"The devices differ: A is {a.device}, B is {b.device}.{ratios}")
    else:
        if apart := _environments_apart(a, b):
            notes.append(f"The environments differ: {'; '.join(apart)}.")
        if moved := both.cards_note:
            notes.append(f"{moved}.")
    moved_by = both.drift.text
    return Comparison(
        f"{a.name}, {a.device}",
        f"{b.name}, {b.device}",
        f"{moved_by}." if moved_by else "",
        f"{tally.text}." if found else "",
        tuple(notes),
    )


def pair_data(a: Source, b: Source, found: Sequence[Pair]) -> JsonObject:
    """The columns of every cell with a bandwidth in one of the files, what changed most beyond noise first. B's rows follow A's."""
    cells = {(row.backend, row.case): i for i, row in enumerate([*a.rows, *b.rows])}
    ordered = sorted(found, key=lambda pair: (pair.missing, not pair.changed, beyond_noise_first(pair)))
    ends = [pair.change if pair.verdict != YARDSTICK else None for pair in ordered]
    found_: dict[str, list[object]] = {
        "cell": [cells.get((pair.backend, pair.case)) for pair in ordered],
        "backend": [pair.backend for pair in ordered],
        "case": [str(pair.case) for pair in ordered],
        "unit": [pair.unit for pair in ordered],
        "a": [pair.a_gbps for pair in ordered],
        "b": [pair.b_gbps for pair in ordered],
        "ratio": [pair.ratio for pair in ordered],
        "change": [one.value if one else None for one in ends],
        "low": [one.low if one else None for one in ends],
        "high": [one.high if one else None for one in ends],
        "verdict": [pair.verdict for pair in ordered],
    }
    return {name: column(values) for name, values in found_.items()}


def _environments_apart(a: Source, b: Source) -> list[str]:
    """How the recorded environments differ; none if one has none."""
    first, second = (source.header.get("environment") for source in (a, b))
    return environment_match.differences(first, second) if isinstance(first, dict) and isinstance(second, dict) else []


def verdict_data(report: GateReport, rows: Sequence[Row], start: int) -> JsonObject:
    """The columns of the verdicts, in the report's order: regressions first. `rows` are the page's last ones, from the index `start` on."""
    cells = {CellKey(row.backend, *row.case): start + i for i, row in enumerate(rows)}
    found = report.verdicts
    columns: dict[str, list[object]] = {
        "cell": [cells.get(one.cell) for one in found],
        "state": [str(one.state) for one in found],
        "gated": [int(one.gated) for one in found],
        "backend": [one.cell.backend for one in found],
        "case": [one.cell.case for one in found],
        "ratio": [one.ratio for one in found],
        "low": [one.interval[0] if one.interval else None for one in found],
        "high": [one.interval[1] if one.interval else None for one in found],
        "margin": [one.margin or report.rules.margin for one in found],
        "n": [one.n for one in found],
        "reason": [one.reason for one in found],
    }
    return {name: column(values) for name, values in columns.items()}


def of_others(report: GateReport, rows: Sequence[Row]) -> str:
    """A note if the report has cells that these rows lack, as that of another run has; else an empty text."""
    known = {CellKey(row.backend, *row.case) for row in rows}
    judged = [verdict.cell for verdict in report.verdicts if verdict.state not in (State.MISSING, State.FAILED, State.UNMEASURED)]
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
