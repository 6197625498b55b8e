"""The data of a page that its script reads, as columns: cells, cases with their fastest backends, lines of shapes, and samples.

A text longer than MAX_TEXT is cut, and the data say so. Of more samples than SAMPLES, a page has the same number of each long round, or, if
that were fewer than FEWEST, QUANTILES quantiles of all samples of a cell.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from softbench.core import statistics
from softbench.core.case import AT_DIM, OPERATION, TIMERS, YARDSTICK, CaseKey, parse_op, pass_name, value_text
from softbench.core.json import JsonObject
from softbench.core.outcome import Batch, Checked, Failed, Measured, Record, Skipped
from softbench.core.text import printable
from softbench.gate.command_line import OPERATIONS, operation_files, options, words
from softbench.report import colours
from softbench.report.assets.embedded import column
from softbench.report.figure_data import ANY, LEAP, POWER, WHOLE, kinds, shape, slices
from softbench.report.page.source import Source
from softbench.report.standings import standings
from softbench.results.columns import Row
from softbench.results.csv import COLUMNS

MAX_TEXT = 4000
"""Characters of one text."""
SAMPLES = 200_000
"""The most samples in a page. Each takes about three bytes."""
FEWEST, QUANTILES = 5, 9
SAMPLE_DIGITS = 4
KIND_DASHES: dict[str, list[int]] = {POWER: [], WHOLE: [2, 3], ANY: [7, 4]}
"""The dashes and gaps of a line by the kind of its lengths; a solid line has none."""
COMMAND_FLAGS = ("--plugin", "--device", "--threads")
"""Options of the run that the command of one cell repeats."""


def data(sources: Sequence[Source]) -> JsonObject:
    """The data of all cells, in the order of the files and their rows. The fastest backends are those of the last file."""
    rows = [row for source in sources for row in source.rows]
    cases = {case: number for number, case in enumerate(dict.fromkeys(row.case for row in rows))}
    return {
        "files": [{"name": source.name, "missing": source.missing, "run": source.run} for source in sources],
        "cells": {**_cells(sources), "case": [cases[row.case] for row in rows]},
        "cases": _cases(cases, sources[-1].rows, len(rows) - len(sources[-1].rows)),
        "lines": _lines(rows, cases),
        "kinds": KIND_DASHES,
        "leap": LEAP,
        "looks": {name: _look(name) for name in dict.fromkeys(row.backend for row in rows)},
        **_records(sources),
    }


def _look(name: str) -> list[str]:
    own = colours.look(name)
    return [own.light, own.dark, own.marker, own.dash]


def _cells(sources: Sequence[Source]) -> JsonObject:
    """Every column of the CSV that has a value, and the parts of each cell's command line."""
    rows = [row for source in sources for row in source.rows]
    found: dict[str, Sequence[object]] = {"file": [number for number, source in enumerate(sources) for _ in source.rows]}
    for name in COLUMNS:
        values = [getattr(row, "grade" if name == "class" else name) for row in rows]
        found[name] = [_cut(value) if isinstance(value, str) else value for value in values]
    parts = [command(row, source.header) for source in sources for row in source.rows]
    found |= dict(zip(("command_backends", "command_size", "command_rest"), zip(*parts, strict=True), strict=True))
    found["doubtful"] = [int(bool(row.median_us) and row.doubtful) for row in rows]
    return {name: column(values) for name, values in found.items() if any(value not in (None, "") for value in values)}


def _cases(cases: Mapping[CaseKey, int], rows: Sequence[Row], start: int) -> JsonObject:
    """The cases, and the fastest cell of each in `rows`, whose first row is the cell `start`; the cells that tie with it, its lead."""
    numbers = {(row.backend, row.case): start + i for i, row in enumerate(rows)}
    found = standings(rows)
    best = [found.get(case) for case in cases]
    return {
        "pass": column([_of_pass(case) for case in cases]),
        **{name: column([getattr(case, name) for case in cases]) for name in ("dtype", "M", "N", "shape")},
        "best": [numbers[one.rows[0].backend, one.rows[0].case] if one else None for one in best],
        "tied": [[numbers[row.backend, row.case] for row in one.tied] if one else [] for one in best],
        "lead": column([one.lead if one else None for one in best]),
        "unknown": [int(one.unknown) if one else 0 for one in best],
    }


def _of_pass(case: CaseKey) -> str:
    return pass_name(case.op, case.direction)


def _lines(rows: Sequence[Row], cases: Mapping[CaseKey, int]) -> list[JsonObject]:
    """The lines of shapes, and the shapes of no line, each with its cases and its kinds of length."""
    numbers = {(row.op, row.direction, row.dtype, shape(row)): cases[row.case] for row in rows}
    return [
        {
            "axis": what.axis,
            "fixed": what.fixed if what.axis else "",
            "cases": [numbers[what.op, what.direction, what.dtype, one] for one in what.shapes],
            "kinds": list(kinds({N if what.axis == "N" else M for M, N, _ in what.shapes}, what.dtype, what.axis).items())
            if what.axis
            else [],
        }
        for what in slices(rows)
    ]


def _records(sources: Sequence[Source]) -> JsonObject:
    """What the run document knows of each cell beside the CSV: samples, kernels, and whole reasons."""
    pairs = [(source.records.get((row.backend, row.case)), row) for source in sources for row in source.rows]
    known = [record for record, _ in pairs if record]
    most = samples_of_a_round(known)
    names: dict[str, int] = {}
    kernels, reasons, device = [], [], []
    for record, row in pairs:
        outcome = record.outcome if record else None
        profile = outcome.profile if isinstance(outcome, Measured) else None
        kernels.append(" ".join(str(names.setdefault(name, len(names))) for name in profile.kernels) if profile else "")
        reason = _reason(record) if record else ""
        reasons.append(_cut(reason) if reason != row.reason else "")  # the column has it
        device.append(statistics.median_interval(profile.device_us) if profile else None)
    return {
        "kernels": [_cut(name) for name in names],
        "more": {
            "kernels": column(kernels),
            "reason": column(reasons),
            "device_low": column([ends[0] if ends else None for ends in device]),
            "device_high": column([ends[1] if ends else None for ends in device]),
        },
        "quantiles": QUANTILES if known and most < FEWEST else 0,
        **_rounds([record for record, _ in pairs], most),
    }


def _reason(record: Record) -> str:
    match record.outcome:
        case Measured(accuracy=accuracy, profile=profile):
            return accuracy.detail or profile.note
        case Skipped(reason=reason) | Failed(reason=reason) | Checked(reason=reason):
            return reason
    return ""


def _rounds(records: Sequence[Record | None], most: int) -> JsonObject:
    """The rounds of all cells as columns, and their samples one after the other."""
    found: dict[str, list[object]] = {
        name: [] for name in ("cell", "set", "round", "place", "slowed", "clock", "power", "temperature", "count", "shown")
    }
    samples: list[float] = []
    for cell, record in enumerate(records):
        batches = _batches(record) if record else ()
        if most < FEWEST and batches:
            shown = _quantiles([us for batch in batches for us in batch.samples_us])
            line: list[object] = [cell, None, None, None, "", None, None, None, sum(len(batch.samples_us) for batch in batches), len(shown)]
            samples += shown
            for column_, value in zip(found.values(), line, strict=True):
                column_.append(value)
            continue
        for batch in batches:
            read, shown = batch.telemetry, list(_spread(batch.samples_us, most))
            telemetry = (read.sm_clock_mhz, read.power_w, read.temperature_c) if read else (None, None, None)
            line = [cell, batch.process, batch.round, batch.position, _cut(read.throttled) if read else "", *telemetry]
            for column_, value in zip(found.values(), [*line, len(batch.samples_us), len(shown)], strict=True):
                column_.append(value)
            samples += shown
    return {"rounds": {name: column(values) for name, values in found.items()}, "samples": column(samples, SAMPLE_DIGITS)}


def samples_of_a_round(records: Sequence[Record]) -> int:
    """The largest number of samples of a round that keeps all rounds together within SAMPLES."""
    sizes = sorted(len(batch.samples_us) for record in records for batch in _batches(record))
    left = SAMPLES
    for i, size in enumerate(sizes):
        if size > (share := left // (len(sizes) - i)):
            return max(1, share)
        left -= size
    return max(sizes[-1], FEWEST) if sizes else FEWEST


def _batches(record: Record) -> Sequence[Batch]:
    return record.outcome.timing.batches if isinstance(record.outcome, Measured) else ()


def _spread(samples: Sequence[float], most: int) -> Iterator[float]:
    """At most so many of the samples, evenly spaced in their order."""
    step = max(1.0, len(samples) / most)
    return (samples[int(i * step)] for i in range(min(len(samples), most)))


def _quantiles(samples: Sequence[float]) -> list[float]:
    """The smallest sample, the largest, and those between at equal steps of rank."""
    ordered = sorted(samples)
    return [ordered[round(i * (len(ordered) - 1) / (QUANTILES - 1))] for i in range(min(QUANTILES, len(ordered)))]


def _cut(text: str) -> str:
    """Text without control sequences, and at most MAX_TEXT characters of it."""
    if len(text) <= MAX_TEXT:
        return printable(text)
    return f"{printable(text[:MAX_TEXT])}... ({MAX_TEXT} of {len(text)} characters; the run's JSON has all)"


def command(row: Row, header: JsonObject) -> tuple[str, str, str]:
    """The command line that measures the cell again, beside the yardstick and the reference backend, with the run's plugins and timer.

    It is in three parts, which few cells have alone: the backends, the sizes, and the rest.
    """
    name, parameters = parse_op(row.op)
    typed = words(str(header.get("command", "")))
    problem = name in (header.get("problems") or {})
    backends = ",".join(dict.fromkeys((YARDSTICK, *filter(None, [row.relative_to]), row.backend)))
    if problem:  # its sizes follow from parameters, and M and N may be some
        size = [word for axis, size in (("--M", row.M), ("--N", row.N)) if options(typed, (axis,)) for word in (axis, str(size))]
    elif row.shape:
        sizes, _, dim = row.shape.partition(AT_DIM)
        size = ["--shape", sizes, *(["--dim", dim] if dim else [])]
    else:
        size = ["--M", str(row.M), "--N", str(row.N)]
    rest = ["--dtype", row.dtype, "--direction", row.direction]
    if problem and len(operation_files(typed)) == 1:
        rest += options(typed, OPERATIONS)  # with its solutions
    elif row.op != OPERATION:
        rest += ["--op", _file_of(name, header) or name]
    if parameters:
        rest += ["--set", ",".join(f"{key}={value_text(value)}" for key, value in parameters.items())]
    if row.timer in TIMERS[1:]:
        rest += ["--timer", row.timer]
    if row.l2 == "warm":
        rest += ["--l2", "warm"]
    rest += options(typed, COMMAND_FLAGS)
    return shlex.join(["softbench", "run", "--backends", backends]), shlex.join(size), shlex.join(rest)


def _file_of(op: str, header: JsonObject) -> str:
    """The Python file of a user's operation, as the run's command line has it; empty if there is none, or which one is unknown."""
    environment = header.get("environment")
    hashes = environment.get("operations") if isinstance(environment, dict) else None
    files = operation_files(words(str(header.get("command", ""))))
    return files[0] if len(files) == 1 and isinstance(hashes, dict) and op in hashes else ""
