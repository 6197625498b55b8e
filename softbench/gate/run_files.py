"""Reads the gate's input from run documents."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

from softbench.core.case import DTYPES, TIMERS, Direction
from softbench.core.errors import ResultsError
from softbench.core.outcome import Measured, Record, Skipped
from softbench.core.text import micros, one_line
from softbench.core.validate import NAME
from softbench.gate.samples import CellKey, CellSamples, RoundMedian, RunSamples
from softbench.results import labels
from softbench.results.csv import read_csv
from softbench.results.records import SCHEMA, record_from_json

LATENCIES_US = (1e-6, 1e12)
"""The range of valid latencies; every ratio within it is finite."""
MAX_BYTES = 2**30  # softbench writes no larger document


def read(path: Path) -> RunSamples:
    """Read a run: its CSV, with the JSON beside it that has the samples, or that JSON itself.

    Raises:
        ResultsError: the file is missing, damaged or foreign, or the two files belong to different runs.
    """
    if path.suffix != ".csv":
        return from_document(load(path), str(path))
    rows, _ = read_csv(path)
    beside = path.with_suffix(".json")
    if not beside.exists():
        raise ResultsError(f"{path}: {beside.name} is not beside it, and that holds the samples of each process; copy both, or run again")
    found = from_document(load(beside), str(path))
    if rows[0].run not in found.runs:
        raise ResultsError(f"{path}: is of {rows[0].run}, but {beside.name} beside it is of {found.runs[0]}; take both files of one run")
    return found


def load(path: Path) -> dict[str, Any]:
    """Read a JSON document that is an object.

    Raises:
        ResultsError: the file cannot be read, or is not such a document.
    """

    def no_number(text: str) -> NoReturn:
        raise ValueError(f"{text} is not a number")

    try:
        if path.exists() and not path.is_file():
            raise ResultsError(f"{path}: is not a file")
        if path.stat().st_size > MAX_BYTES:
            raise ResultsError(f"{path}: is too large to be a softbench file")
        document = json.loads(path.read_bytes().decode("utf-8-sig"), parse_constant=no_number)
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ResultsError(f"{path}: is damaged or no JSON: {one_line(str(error), 120)}") from None
    if not isinstance(document, dict):
        raise ResultsError(f"{path}: is not a softbench file: its JSON is no object")
    return document


def from_document(document: dict[str, Any], source: str) -> RunSamples:
    """The samples of a run document.

    Raises:
        ResultsError: a field is missing or invalid; the message names the cell.
    """
    if "cells" not in document or "environment" not in document:
        raise ResultsError(f"{source}: is not a softbench run: it lacks {'cells' if 'cells' not in document else 'environment'}")
    if document.get("schema") != SCHEMA:
        raise ResultsError(
            f"{source}: has schema {one_line(str(document.get('schema')), 20)}, this softbench reads {SCHEMA}; measure again"
        )
    cells: dict[CellKey, CellSamples] = {}
    at = "header"
    try:
        environment, settings = dict(document["environment"]), dict(document.get("settings") or {})
        for number, cell in enumerate(document["cells"], 1):
            at = f"cell {number}"
            case = cell["case"]
            key = cell_key(cell["backend"], case["direction"], case["dtype"], case["M"], case["N"])
            at = f"{key.backend} {key.case}"
            if key in cells:
                raise ValueError("is there twice")
            cells[key] = of_record(record_from_json(cell), str(settings.get("timer", TIMERS[0])))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ResultsError(f"{source}: {at} is damaged: {type(error).__name__}: {one_line(str(error), 120)}") from None
    return _run_samples({**document, "environment": environment, "settings": settings}, cells, source)


def _run_samples(document: dict[str, Any], cells: dict[CellKey, CellSamples], source: str) -> RunSamples:
    if not cells:
        raise ResultsError(f"{source}: holds no cells")
    processes = len({process for series in cells.values() for process in series.processes})
    texts = [one_line(str(document.get(name) or ""), 2000) for name in ("run", "device_name", "command")]
    versions = {name: one_line(str(document[name])) for name in ("softbench", "git_commit") if document.get(name)}
    environment, settings = document["environment"], document["settings"]
    return RunSamples(source, (texts[0],), SCHEMA, texts[1], environment, settings, texts[2], cells, processes, versions)


def cell_key(backend: Any, direction: Any, dtype: Any, M: Any, N: Any) -> CellKey:
    """A validated key; raises ValueError or TypeError for an invalid part."""
    if not isinstance(backend, str) or not NAME.fullmatch(backend):
        raise ValueError("its backend has no valid name")
    if dtype not in DTYPES or not all(isinstance(extent, int) and 0 < extent < 2**63 for extent in (M, N)):
        raise ValueError("its case is invalid")
    return CellKey(backend, Direction(direction).value, dtype, M, N)


def of_record(record: Record, timer: str) -> CellSamples:
    """The round medians of a record. `timer` is the run's timer.

    Raises:
        ValueError: a round median is no valid latency.
    """
    outcome = record.outcome
    accuracy = None if isinstance(outcome, Skipped) else outcome.accuracy
    grade = accuracy.grade.value if accuracy else ""
    if not isinstance(outcome, Measured):
        return CellSamples(record.status.value, one_line(outcome.reason), grade)
    rounds: dict[int, dict[int, tuple[bool, RoundMedian]]] = {}
    for batch in outcome.timing.batches:
        found = RoundMedian(batch.round, batch.position, positive(median(batch.samples_us)))
        rounds.setdefault(batch.process, {})[batch.round] = batch.throttled, found  # a repeated round counts as it ended
    processes = {}
    for process, medians in rounds.items():
        unthrottled = tuple(found for throttled, found in medians.values() if not throttled)
        processes[process] = unthrottled or tuple(found for _, found in medians.values())
    samples, profile = CellSamples("ok", "", grade, processes), outcome.profile
    if timer != TIMERS[0] or not (profile.device_us and profile.host_us):
        return samples
    us, device, host = (median(values) for values in (samples.medians_us().values(), profile.device_us, profile.host_us))
    if not labels.launch_bound(us, device, host, len(profile.kernels)):
        return samples
    text = f"do_bench read {micros(us)}, the kernels take {micros(device)}, issuing them {micros(host)}"
    return replace(samples, host_bound=text)


def positive(value: Any) -> float:
    """A valid latency; raises ValueError for NaN, zero, infinity, a text, or eleven days."""
    low, high = LATENCIES_US
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"a latency is no number from {low:g} to {high:g} us")
    return float(value)


def of_run(header: dict[str, Any], records: Iterable[Record], source: str) -> RunSamples:
    """The samples of a run that was just measured."""
    settings = dict(header["settings"])
    timer = str(settings.get("timer", TIMERS[0]))
    cells = {CellKey(record.backend, *record.case.identity): of_record(record, timer) for record in records}
    return _run_samples({**header, "settings": settings}, cells, source)
