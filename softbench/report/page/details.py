"""The data of a page that its script reads: every column of each cell, and the details that a click on it opens.

A text longer than MAX_TEXT, and rounds with more samples than fit, are cut, and the data say so.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence

from softbench.core import statistics
from softbench.core.case import AT_DIM, OPERATION, TIMERS, YARDSTICK, parse_op, value_text
from softbench.core.json import JsonObject
from softbench.core.outcome import Batch, Checked, Failed, Measured, Record, Skipped
from softbench.core.text import printable
from softbench.gate.command_line import options, python_files, words
from softbench.report.page.source import Source
from softbench.results.csv import COLUMNS
from softbench.results.rows import Row

MAX_TEXT = 4000
"""Characters of one text."""
SAMPLES = 200_000
"""The most samples in a page. Each takes about six bytes."""
COMMAND_FLAGS = ("--plugin", "--device", "--threads")
"""Options of the run that the command of one cell repeats."""


def data(sources: Sequence[Source]) -> JsonObject:
    """The data of all cells, in the order of the files and their rows."""
    most = samples_of_a_round([record for source in sources for record in source.records.values()])
    kernels: dict[str, int] = {}
    cells = [
        [number, *map(_value, (getattr(row, "grade" if name == "class" else name) for name in COLUMNS))]
        for number, source in enumerate(sources)
        for row in source.rows
    ]
    more = [_more(source, row, kernels, most) for source in sources for row in source.rows]
    return {
        "columns": ["file", *COLUMNS],
        "cells": cells,
        "more": more,
        "kernels": [_cut(name) for name in kernels],
        "files": [{"name": source.name, "missing": source.missing, "run": source.run} for source in sources],
    }


def samples_of_a_round(records: Sequence[Record]) -> int:
    """The largest number of samples of a round that keeps all rounds together within SAMPLES."""
    sizes = sorted(len(batch.samples_us) for record in records for batch in _batches(record))
    left = SAMPLES
    for i, size in enumerate(sizes):
        if size > (share := left // (len(sizes) - i)):
            return max(1, share)
        left -= size
    return sizes[-1] if sizes else 1


def _batches(record: Record) -> Sequence[Batch]:
    return record.outcome.timing.batches if isinstance(record.outcome, Measured) else ()


def _value(value: object) -> object:
    """A value of a column. JSON has no infinity, so it becomes a text; a number has the CSV's six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return _cut(value) if isinstance(value, str) else value


def _cut(text: str) -> str:
    """Text without control sequences, and at most MAX_TEXT characters of it."""
    if len(text) <= MAX_TEXT:
        return printable(text)
    return f"{printable(text[:MAX_TEXT])}... ({MAX_TEXT} of {len(text)} characters; the run's JSON has all)"


def _more(source: Source, row: Row, kernels: dict[str, int], most: int) -> JsonObject:
    """What a cell's row opens to, beside its columns."""
    found: JsonObject = {"command": command(row, source.header)}
    record = source.records.get((row.backend, row.case))
    if record is None:
        return found
    match record.outcome:
        case Measured(accuracy=accuracy, profile=profile, timing=timing):
            found["rounds"] = [_round(batch, most) for batch in timing.batches]
            found["kernels"] = [kernels.setdefault(name, len(kernels)) for name in profile.kernels]
            if interval := statistics.median_interval(profile.device_us):
                found["device"] = [_value(end) for end in interval]
            found["reason"] = accuracy.detail or profile.note
        case Skipped(reason=reason) | Failed(reason=reason) | Checked(reason=reason):
            found["reason"] = reason
    found["reason"] = _cut(found["reason"]) if found["reason"] != row.reason else ""  # the column has it
    return {name: value for name, value in found.items() if value}


def _round(batch: Batch, most: int) -> list[object]:
    """A round: process set, round, place in its order, why it was throttled, SM clock, watts, degrees, number of samples, samples."""
    samples, read = batch.samples_us, batch.telemetry
    telemetry = list(map(_value, (read.sm_clock_mhz, read.power_w, read.temperature_c))) if read else [None] * 3
    throttled = _cut(read.throttled) if read else ""
    return [batch.process, batch.round, batch.position, throttled, *telemetry, len(samples), list(_spread(samples, most))]


def _spread(samples: Sequence[float], most: int) -> Iterator[float]:
    """At most so many of the samples, evenly spaced in their order, with four significant digits."""
    step = max(1.0, len(samples) / most)
    for i in range(min(len(samples), most)):
        yield float(f"{samples[int(i * step)]:.4g}")


def command(row: Row, header: JsonObject) -> str:
    """The command line that measures the cell again, beside the yardstick and the reference backend, with the run's plugins and timer."""
    name, parameters = parse_op(row.op)
    backends = ",".join(dict.fromkeys((YARDSTICK, *filter(None, [row.relative_to]), row.backend)))
    found = ["softbench", "run", "--backends", backends]
    if row.shape:
        sizes, _, dim = row.shape.partition(AT_DIM)
        found += ["--shape", sizes, *(["--dim", dim] if dim else [])]
    else:
        found += ["--M", str(row.M), "--N", str(row.N)]
    found += ["--dtype", row.dtype, "--direction", row.direction]
    if row.op != OPERATION:
        found += ["--op", _file_of(name, header) or name]
    if parameters:
        found += ["--set", ",".join(f"{key}={value_text(value)}" for key, value in parameters.items())]
    if row.timer in TIMERS[1:]:
        found += ["--timer", row.timer]
    if row.l2 == "warm":
        found += ["--l2", "warm"]
    return shlex.join([*found, *options(words(str(header.get("command", ""))), COMMAND_FLAGS)])


def _file_of(op: str, header: JsonObject) -> str:
    """The Python file of a user's operation, as the run's command line has it; empty if there is none, or which one is unknown."""
    environment = header.get("environment")
    hashes = environment.get("operations") if isinstance(environment, dict) else None
    files = python_files(words(str(header.get("command", ""))), "--op")
    return files[0] if len(files) == 1 and isinstance(hashes, dict) and op in hashes else ""
