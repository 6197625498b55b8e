"""The gate's verdicts on a page: those of a JSON file, or those on two results files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softbench.core import text as units
from softbench.core.errors import InconclusiveError, ResultsError
from softbench.core.json_types import JsonObject
from softbench.gate import environment_match, run_files, unpaired
from softbench.gate.samples import CellKey
from softbench.gate.verdicts import GateReport, Rules, State, Verdict
from softbench.report.page.comparison import Line
from softbench.report.page.source import Source
from softbench.results.rows import Row

HEAD = (("state", False), ("backend", False), ("case", False), ("new/old", True), ("95 % interval", True), ("n", False), ("reason", False))
KIND = {State.SLOWER: "bad", State.BROKEN: "bad", State.MISSING: "bad", State.AMBIGUOUS: "warn", State.FASTER: "good", State.NEW: "plain"}


def verdict_lines(report: GateReport) -> list[Line]:
    """A row for each verdict, in the report's order: regressions first."""
    return [Line(_texts(verdict), KIND.get(verdict.state, "") if verdict.gated else "plain") for verdict in report.verdicts]


def _texts(verdict: Verdict) -> tuple[str, ...]:
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


def judged(a: Source, b: Source) -> tuple[GateReport | None, str]:
    """The gate's report on two files, the first as the baseline; or why the gate cannot judge them."""
    if not (a.records and b.records):
        return None, "The gate needs the samples of both files."
    try:
        old, new = (run_files.from_run(source.header, source.records.values(), source.name) for source in (a, b))
        notes = environment_match.check(new, old, ())
        return unpaired.judge(new, old, Rules(unpaired.MARGIN), tuple(notes)), ""
    except (InconclusiveError, ResultsError, KeyError, TypeError, ValueError) as error:
        return None, f"The gate does not judge these files: {units.one_line(str(error))}."


def read_gate(path: Path) -> GateReport:
    """The report of a JSON that `softbench gate --json` wrote.

    Raises:
        ResultsError: the file cannot be read, or is no such report.
    """
    document = run_files.load(path)
    try:
        verdicts = tuple(map(_verdict, document["verdicts"]))
        rules = Rules(*(float(document["rules"][name]) for name in ("margin", "alpha", "reference_moves", "most_ambiguous")))
        what, next_step = (units.one_line(_text(document[name]), 2000) for name in ("what", "next_step"))
        notes = tuple(units.one_line(_text(note), 2000) for note in document["notes"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        text = units.one_line(f"{type(error).__name__}: {error}", 120)
        raise ResultsError(f"--gate {path}: is no report of the gate ({text}); give the file of softbench gate --json FILE") from None
    return GateReport(what, verdicts, rules, notes, next_step)


def _verdict(data: JsonObject) -> Verdict:
    interval = data["interval"]
    return Verdict(
        cell=run_files.cell_key(data["backend"], data),
        state=State(data["state"]),
        reason=units.one_line(_text(data["reason"]), 1000),
        ratio=_number(data["ratio"]),
        interval=(_positive(interval[0]), _positive(interval[1])) if interval else None,
        covers=units.one_line(_text(data["covers"])),
        n=units.one_line(_text(data["n"]), 80),
        margin=_number(data["margin"]),
        p=_number(data["p"]),
        raw_ratio=_number(data["raw_ratio"]),
        gated=bool(data["gated"]),
        fdr_significant=bool(data["look"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is missing")
    return value


def _number(value: Any) -> float | None:
    return None if value is None else _positive(value, least=0.0)


def _positive(value: Any, least: float = 1e-9) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
        raise ValueError(f"{value!r} is no valid number")
    return float(value)
