"""Reads what the gate takes from run documents, and reports of the gate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

from softbench.core.case import DO_BENCH, DTYPES, NAME, OPERATION, Direction, parse_op, valid_shape
from softbench.core.errors import ResultsError
from softbench.core.json import JsonObject
from softbench.core.outcome import Measured, Record, Skipped
from softbench.core.text import micros, one_line
from softbench.gate.samples import CellKey, CellSamples, RoundMedian, RunSamples
from softbench.gate.verdicts import GateReport, Rules, State, Verdict
from softbench.results import labels
from softbench.results.csv import read_csv
from softbench.results.document import beside_required, digests, interrupted, load, stream, units_of
from softbench.results.records import SCHEMA, record_from_json, unit_text

LATENCIES_US = (1e-6, 1e12)
"""The range of valid latencies; every ratio within it is finite."""


def read(path: Path) -> RunSamples:
    """Read a run: its CSV, with the JSON in the same folder that has the samples, or that JSON itself.

    Raises:
        ResultsError: the file is missing, damaged or foreign, or the two files belong to different runs.
    """
    if path.suffix != ".csv":
        return stored(from_document(stream(path), str(path)), path)
    rows, _ = read_csv(path, ("run",))
    document = beside_required(path)
    samples = from_document(stream(document), str(path))
    if rows[0].run not in samples.runs:
        raise ResultsError(f"{path}: is of {rows[0].run}, but {document.name} is of {samples.runs[0]}; take both files of one run")
    return stored(samples, document)


def stored(samples: RunSamples, document: Path) -> RunSamples:
    """The samples with the name of their file, if it has no digests."""
    return samples if digests(document) else replace(samples, undigested=(str(document),))


def from_document(document: JsonObject, source: str) -> RunSamples:
    """The samples of a run document.

    Raises:
        ResultsError: a field is missing or invalid; the message names the cell. Or the run was interrupted.
    """
    if told := interrupted(document):
        raise ResultsError(f"{source}: {told}")
    if "cells" not in document or "environment" not in document:
        raise ResultsError(f"{source}: is not a softbench run: it lacks {'cells' if 'cells' not in document else 'environment'}")
    if document.get("schema") != SCHEMA:
        raise ResultsError(
            f"{source}: has schema {one_line(str(document.get('schema')), 20)}, this softbench reads {SCHEMA}; measure again"
        )
    with reading(source) as place:
        environment, units = environment_and_units(document)
        settings = dict(document.get("settings") or {})
        cells = cells_of(document, place, units, lambda cell: from_record(record_from_json(cell)))
    return _run_samples({**document, "environment": environment, "units": units, "settings": settings}, cells, source)


@dataclass(slots=True)
class Place:
    """What is read of a file, for the message that says what is damaged."""

    name: str = "its header"


@contextmanager
def reading(source: str, advice: str = "") -> Iterator[Place]:
    """Turn the errors of damaged data into a ResultsError that names the file, the place and, if given, what to do."""
    place = Place()
    try:
        yield place
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ResultsError(f"{source}: {place.name} is damaged: {type(error).__name__}: {one_line(str(error), 120)}{advice}") from None


def cells_of(
    document: JsonObject, place: Place, units: Mapping[str, JsonObject], samples_of: Callable[[JsonObject], CellSamples]
) -> dict[CellKey, CellSamples]:
    """The samples of a document's cells. If it has no `units`, those of the cells are left out. A baseline's cell is its own case.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError: a cell is damaged or occurs twice.
    """
    found: dict[CellKey, CellSamples] = {}
    for number, cell in enumerate(document["cells"], 1):
        place.name = f"cell {number}"
        key = cell_key(cell["backend"], cell.get("case", cell), cell.get("unit", "") if units else "")
        place.name = f"{key.backend} {key.case}"
        if key in found:
            raise ValueError("the cell occurs twice")
        found[key] = samples_of(cell)
    return found


def environment_and_units(document: JsonObject) -> tuple[JsonObject, dict[str, JsonObject]]:
    """The environment of a document, and that of each unit if there are several."""
    units = units_of({**document, "environment": dict(document["environment"])})
    return (next(iter(units.values())), {}) if len(units) == 1 else (dict(document["environment"]), units)


def _run_samples(document: JsonObject, cells: dict[CellKey, CellSamples], source: str) -> RunSamples:
    if not cells:
        raise ResultsError(f"{source}: has no cells")
    processes = len({process for samples in cells.values() for process in samples.processes})
    texts = [one_line(str(document.get(name) or ""), 2000) for name in ("run", "device_name", "command")]
    versions = {name: one_line(str(document[name])) for name in ("softbench", "git_commit") if document.get(name)}
    environment, settings = document["environment"], document["settings"]
    about = (source, (texts[0],), SCHEMA, texts[1], environment, settings, texts[2], cells, processes, versions)
    found = RunSamples(*about, units=document["units"])
    return replace(found, sittings=tuple(one._replace(times=times_of(document)) for one in found.by_sitting))


def times_of(document: JsonObject) -> tuple[float, float] | None:
    """Start and end of a run or a sitting, in seconds since 1970; None if they are not known. An unfinished run ends when it starts."""
    try:
        first, last = (datetime.fromisoformat(document.get(name) or document["started"]).timestamp() for name in ("started", "finished"))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return (first, last) if first <= last else None


def cell_key(backend: Any, case: JsonObject, unit: Any = "") -> CellKey:
    """A validated key; raises KeyError, ValueError or TypeError for a missing or invalid part. A case without `op` is of softmax."""
    dtype, M, N, op, shape = case["dtype"], case["M"], case["N"], case.get("op", OPERATION), case.get("shape", "")
    if not isinstance(backend, str) or not NAME.fullmatch(backend):
        raise ValueError("its backend has no valid name")
    parse_op(op)
    if dtype not in DTYPES or not all(isinstance(extent, int) and 0 < extent < 2**63 for extent in (M, N)):
        raise ValueError("its case is invalid")
    if not valid_shape(shape, M, N):
        raise ValueError("its shape is invalid")
    return CellKey(backend, Direction(case["direction"]).value, dtype, M, N, op, shape, unit_text(unit))


def from_record(record: Record) -> CellSamples:
    """The round medians of a record.

    Raises:
        ValueError: a round median is not a valid latency.
    """
    outcome = record.outcome
    accuracy = None if isinstance(outcome, Skipped) else outcome.accuracy
    grade = accuracy.grade.value if accuracy else ""
    if not isinstance(outcome, Measured):
        return CellSamples(record.status.value, one_line(outcome.reason), grade)
    rounds: dict[int, dict[int, tuple[bool, RoundMedian]]] = {}
    for batch in outcome.timing.batches:
        us, mean = (positive(average(batch.samples_us)) for average in (median, fmean))
        mhz = (batch.telemetry.sm_clock_mhz if batch.telemetry else None) or 0.0
        round_median = RoundMedian(batch.round, batch.position, us, mean, float(mhz))
        rounds.setdefault(batch.process, {})[batch.round] = batch.throttled, round_median  # the last batch of a repeated round counts
    processes = {}
    for process, medians in rounds.items():
        unthrottled = tuple(one for throttled, one in medians.values() if not throttled)
        processes[process] = unthrottled or tuple(one for _, one in medians.values())
    samples, profile = CellSamples("ok", "", grade, processes, timer=outcome.timing.kind), outcome.profile
    if outcome.timing.kind != DO_BENCH or not (profile.device_us and profile.host_us):
        return samples
    us, device, host = (median(values) for values in (samples.medians_us().values(), profile.device_us, profile.host_us))
    if not labels.launch_bound(us, device, host, len(profile.kernels)):
        return samples
    text = f"do_bench measured {micros(us)}, device time is {micros(device)}, host time {micros(host)}"
    return replace(samples, host_bound=text)


def positive(value: Any) -> float:
    """A valid latency; raises ValueError for any other value, such as NaN, zero, infinity or a text."""
    low, high = LATENCIES_US
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"a latency is not a number from {low:g} to {high:g} us")
    return float(value)


def from_run(header: JsonObject, records: Iterable[Record], source: str) -> RunSamples:
    """The samples of a run that was just measured."""
    settings = dict(header["settings"])
    environment, units = environment_and_units(header)
    cells = {CellKey(record.backend, *record.case.identity, record.unit if units else ""): from_record(record) for record in records}
    return _run_samples({**header, "environment": environment, "units": units, "settings": settings}, cells, source)


def read_report(path: Path) -> GateReport:
    """The report of a JSON that `softbench gate --json` wrote.

    Raises:
        ResultsError: the file cannot be read, or is no such report.
    """
    document = load(path)
    try:
        verdicts = tuple(map(_verdict, document["verdicts"]))
        margin, alpha, moves, most = (float(document["rules"][name]) for name in ("margin", "alpha", "reference_moves", "most_ambiguous"))
        rules = Rules(margin, alpha, moves, most)
        what, next_step = (one_line(_text(document[name]), 2000) for name in ("what", "next_step"))
        notes = tuple(one_line(_text(note), 2000) for note in document["notes"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = one_line(f"{type(error).__name__}: {error}", 120)
        raise ResultsError(f"--gate {path}: is no report of the gate ({problem}); give the file of softbench gate --json FILE") from None
    return GateReport(what, verdicts, rules, notes, next_step)


def _verdict(data: JsonObject) -> Verdict:
    interval = data["interval"]
    return Verdict(
        cell=cell_key(data["backend"], data)._replace(measure=one_line(_text(data.get("measure", "")), 40)),
        state=State(data["state"]),
        reason=one_line(_text(data["reason"]), 1000),
        ratio=_number(data["ratio"]),
        interval=(_positive(interval[0]), _positive(interval[1])) if interval else None,
        covers=one_line(_text(data["covers"])),
        n=one_line(_text(data["n"]), 80),
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
