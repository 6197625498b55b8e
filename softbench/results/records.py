"""Reads and writes the records of cells as JSON, and merges the records of several process sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from softbench.core import statistics
from softbench.core.case import DTYPES, LONGEST_OP, OP, Case, Direction, valid_shape
from softbench.core.json_types import JsonObject, to_json
from softbench.core.machine import UNIT
from softbench.core.outcome import (
    Batch,
    Checked,
    Failed,
    Judged,
    Measured,
    Outcome,
    Profile,
    Record,
    Skipped,
    Status,
    Timing,
)
from softbench.core.replies import accuracy_from_json, build_from_json, profile_from_json, telemetry_from_json
from softbench.core.stopping import LIMIT
from softbench.core.text import micros
from softbench.core.validate import typed

JUDGED_TOLERANCE = 0.03
"""The fraction by which a judged cell's median may be below the judge's `low_us`."""
SCHEMA = 1
"""Version of the run document."""


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
    batches = tuple(batch for outcome in measured for batch in outcome.timing.batches)
    limited = next((outcome.timing for outcome in measured if outcome.timing.stopped == LIMIT), measured[0].timing)
    timing = replace(limited, batches=batches)
    profile = _merged([outcome.profile for outcome in measured])
    outcome = Measured(measured[0].build, worst, timing, profile, measured[0].judged)  # the first set alone is judged
    return replace(first, outcome=disputed(first.case, outcome) or outcome)


def disputed(case: Case, outcome: Measured) -> Failed | None:
    """The failure of a judged cell whose median is more than 3 % below the judge's `low_us`; None otherwise.

    The judge's time is not that of the CPU's timer, nor of the timer `host`, so these are not compared.
    """
    judged, us = outcome.judged, statistics.median_us(outcome.timing)
    if judged is None or judged.us is None or judged.low_us is None or case.device != "cuda" or outcome.timing.kind == "host":
        return None
    if us >= (1 - JUDGED_TOLERANCE) * judged.low_us:
        return None
    reason = f"disputed: {micros(us)} a call by its worker's clock, {micros(judged.us)} by the judge's"
    return Failed(Status.UNVERIFIED, "time", reason, outcome.build, outcome.accuracy)


def _merged(profiles: Sequence[Profile]) -> Profile:
    device_us = tuple(us for profile in profiles for us in profile.device_us)
    host_us = tuple(us for profile in profiles for us in profile.host_us)
    kernels = next((profile.kernels for profile in profiles if profile.kernels), ())
    note = next((profile.note for profile in profiles if profile.note), "")
    peaks = [profile.peak_bytes for profile in profiles if profile.peak_bytes is not None]
    again = [profile.recompiles for profile in profiles if profile.recompiles is not None]
    return Profile(device_us, host_us, kernels, note, max(peaks, default=None), sum(again) if again else None)


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
    backend, case, source, unit = (
        _text(data["backend"]),
        case_from_json(data["case"]),
        _text(data["source"]),
        unit_text(data.get("unit", "")),
    )
    return Record(backend, case, _outcome(data["outcome"]), source, unit)


def _outcome(data: JsonObject) -> Outcome:
    outcome = dict(data)
    kind = outcome.pop("kind")
    if kind == "skipped":
        return Skipped(_text(outcome["reason"]), bool(outcome["unavailable"]))
    build = build_from_json(outcome["build"]) if outcome["build"] else None
    accuracy = accuracy_from_json(outcome["accuracy"]) if outcome["accuracy"] else None
    if kind == "failed":
        return Failed(Status(outcome["status"]), _text(outcome["stage"]), _text(outcome["reason"]), build, accuracy)
    if build is None or accuracy is None:
        raise ValueError("a cell without build or accuracy")
    if kind == "checked":
        return Checked(build, accuracy, _text(outcome["reason"]))
    if kind != "measured":
        raise ValueError("an unknown kind of outcome")
    timing = dict(outcome["timing"])
    batches = tuple(_batch(batch) for batch in timing["batches"])
    if not batches:
        raise ValueError("a cell without samples")
    words = (_text(timing.get(name, "")) for name in ("kind", "l2", "stopped"))
    profile, judged = profile_from_json(outcome.get("profile", {})), outcome.get("judged")
    return Measured(build, accuracy, Timing(batches, *words), profile, None if judged is None else _judged(judged))


def _judged(data: JsonObject) -> Judged:
    judged = typed(Judged, data)
    times = (judged.us, judged.low_us, judged.high_us, judged.at_most_us)
    if judged.judgements < 1 or any(us is not None and us < 0 for us in times):
        raise ValueError("an invalid judgement")
    return judged


def unit_text(value: object) -> str:
    """A unit from a file, or an empty text. Raises TypeError or ValueError for any other value."""
    if _text(value) and not UNIT.fullmatch(str(value)):
        raise ValueError(f"'{str(value)[:60]}' is no unit; one is HOST/INDEX/HASH")
    return str(value)


def case_from_json(data: JsonObject) -> Case:
    """A case of a file or a message. Raises KeyError, TypeError or ValueError for an invalid one."""
    case = Case(**{**data, "direction": Direction(data["direction"])})
    known = OP.fullmatch(case.op) and len(case.op) <= LONGEST_OP and case.dtype in DTYPES and case.device in ("cpu", "cuda")
    known = known and valid_shape(case.shape, case.M, case.N)
    if not known or not all(0 < _count(size) < 2**63 for size in (case.M, case.N)):
        raise ValueError("an invalid case")
    return case


def _batch(data: JsonObject) -> Batch:
    samples = tuple(data["samples_us"])
    types = set(map(type, samples))
    if not samples or not types <= {int, float} or not (min(samples) > 0 and max(samples) < math.inf) or math.isnan(sum(samples)):
        raise ValueError("invalid samples")
    if types != {float}:
        samples = tuple(map(float, samples))
    process, turn, position = (_count(data[name]) for name in ("process", "round", "position"))
    return Batch(process, turn, position, samples, telemetry_from_json(data.get("telemetry")))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError("not a count")
    return value
