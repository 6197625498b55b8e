"""Reads and writes the records of cells as JSON, and merges the records of several process sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from softbench.core import statistics
from softbench.core.case import DO_BENCH, DTYPES, LONGEST_OP, OP, Case, valid_shape
from softbench.core.errors import ResultsError
from softbench.core.json import JsonObject, from_json, to_json
from softbench.core.machine import UNIT
from softbench.core.outcome import Checked, Failed, Measured, Outcome, Profile, Record, Skipped, Status
from softbench.core.statistics import LIMIT
from softbench.core.text import micros, one_line

JUDGED_TOLERANCE = 0.03
"""On a GPU: the fraction by which a judged cell's median may be below the judge's `low_us`."""
JUDGED_FACTOR = 5.0
"""On a CPU: so many times a judged cell's median the judge's `least_us` may be."""
SCHEMA = 1
"""Version of the run document."""
OUTCOMES: dict[str, type[Outcome]] = {kind.__name__.lower(): kind for kind in (Measured, Checked, Skipped, Failed)}
"""The types of outcomes by their `kind` in JSON."""


def merge(records: Sequence[Record]) -> Record:
    """Merge one cell's records of several process sets: the first that is not measured, else all batches together."""
    first = records[0]
    measured: list[Measured] = []
    for record in records:
        if not isinstance(record.outcome, Measured):
            return record
        measured.append(record.outcome)
    if len(records) == 1:
        return first
    worst = max((outcome.accuracy for outcome in measured), key=lambda accuracy: accuracy.rank)
    timings = [outcome.timing for outcome in measured]
    timings = [timing for timing in timings if timing.kind == DO_BENCH] or timings  # calls that waited for the GPU in one set only
    batches = tuple(batch for timing in timings for batch in timing.batches)
    limited = next((timing for timing in timings if timing.stopped == LIMIT), timings[0])
    timing = replace(limited, batches=batches)
    profile = _merged([outcome.profile for outcome in measured])
    outcome = Measured(measured[0].build, worst, timing, profile, measured[0].judged)  # the first set alone is judged
    return replace(first, outcome=disputed(first.case, outcome) or outcome)


def disputed(case: Case, outcome: Measured) -> Failed | None:
    """The failure of a judged cell whose median is far below what the judge found; None otherwise.

    On a GPU that is more than 3 % below `low_us`. On a CPU the inputs of a judged call are new in memory, and its outputs are copied. So a
    cell is disputed only below a part of `least_us`. The timer `host` measures something else.
    """
    judged, us = outcome.judged, statistics.median_us(outcome.timing)
    if judged is None or outcome.timing.kind == "host":
        return None
    least = (1 - JUDGED_TOLERANCE) * (judged.low_us or 0.0) if case.device == "cuda" else (judged.least_us or 0.0) / JUDGED_FACTOR
    if us >= least:
        return None
    reason = f"disputed: {micros(us)} a call by its worker's clock, {micros(judged.us or judged.least_us or 0.0)} by the judge's"
    return Failed(Status.UNVERIFIED, "time", reason, outcome.build, outcome.accuracy)


def _merged(profiles: Sequence[Profile]) -> Profile:
    device_us = tuple(us for profile in profiles for us in profile.device_us)
    host_us = tuple(us for profile in profiles for us in profile.host_us)
    do_bench_us = tuple(us for profile in profiles for us in profile.do_bench_us)
    users = [profile.users_us for profile in profiles if profile.users_us]
    users_us = tuple(tuple(us for one in some for us in one) for some in zip(*users, strict=True))
    kernels = next((profile.kernels for profile in profiles if profile.kernels), ())
    note = next((profile.note for profile in profiles if profile.note), "")
    peaks = [profile.peak_bytes for profile in profiles if profile.peak_bytes is not None]
    again = [profile.recompiles for profile in profiles if profile.recompiles is not None]
    rates = [profile.product_tflops for profile in profiles if profile.product_tflops is not None]
    peak, recompiles = max(peaks, default=None), sum(again) if again else None
    return Profile(device_us, host_us, kernels, note, peak, recompiles, do_bench_us, users_us, max(rates, default=None))


def record_to_json(record: Record) -> JsonObject:
    """A record as JSON; inf and nan become texts."""
    data = to_json(record)
    data["outcome"] = {"kind": type(record.outcome).__name__.lower(), **data["outcome"]}
    if accuracy := data["outcome"].get("accuracy"):
        accuracy["worst"] = accuracy["worst"] if math.isfinite(accuracy["worst"]) else str(accuracy["worst"])
    if not data["outcome"].get("judged"):
        data["outcome"].pop("judged", None)
    return data


def record_from_json(data: JsonObject) -> Record:
    """The inverse of `record_to_json`.

    Raises:
        KeyError, TypeError, ValueError: it is not a record.
    """
    outcome = dict(data["outcome"])
    kind = OUTCOMES[outcome.pop("kind")]
    if accuracy := outcome.get("accuracy"):
        outcome["accuracy"] = {**accuracy, "worst": float(accuracy["worst"])}
    backend, source = from_json(str, data["backend"]), from_json(str, data["source"])
    return Record(backend, case_from_json(data["case"]), from_json(kind, outcome), source, unit_text(data["unit"]))


def line_of_record(record: Record) -> bytes:
    """A record that was read from a file, as the text of its JSON again."""
    import msgspec  # not with --help

    return msgspec.json.encode(record_to_json(record))


def record_of_line(line: bytes) -> Record:
    """The inverse of `line_of_record`."""
    import msgspec

    return record_from_json(msgspec.json.decode(line))


def records_of(document: JsonObject, file: Path) -> Iterator[Record]:
    """The records of a run document, which was read from `file`, one by one.

    Raises:
        ResultsError: a cell is damaged; with its number.
    """
    for number, cell in enumerate(document["cells"], 1):
        try:
            record = record_from_json(cell)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ResultsError(f"{file}: cell {number} is damaged: {type(error).__name__}: {one_line(str(error), 120)}") from None
        yield record


def unit_text(value: object) -> str:
    """A unit from a file, or an empty text. Raises ValueError for any other value."""
    if (text := from_json(str, value)) and not UNIT.fullmatch(text):
        raise ValueError(f"'{text[:60]}' is no unit; one is HOST/INDEX/HASH")
    return text


def case_from_json(data: JsonObject) -> Case:
    """A case of a file or a message. Raises ValueError for an invalid one."""
    case = from_json(Case, data)
    known = OP.fullmatch(case.op) and len(case.op) <= LONGEST_OP and case.dtype in DTYPES and case.device in ("cpu", "cuda")
    if not known or not valid_shape(case.shape, case.M, case.N) or not all(0 < size < 2**63 for size in (case.M, case.N)):
        raise ValueError("an invalid case")
    return case
