"""The tidy CSV: one row a cell, every column documented, nothing lost on the way in or out."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from softbench import labels, roofline, stats
from softbench.errors import ResultsError
from softbench.model import DTYPES, Build, Checked, Direction, Failed, Grade, Measured, Profile, Record, Skipped, Status, Timing
from softbench.registry import NAME
from softbench.units import one_line


@dataclass(frozen=True, slots=True)
class Row:
    """A cell as the CSV has it. Fields that do not apply are None (numbers) or empty (texts)."""

    backend: str
    direction: str
    M: int
    N: int
    dtype: str
    status: str
    """`ok`, `wrong`, `failed`, `timeout`, `oom`, `unverified`, `checked` (not timed), `skipped` or `unavailable`; only `ok` has figures."""
    grade: str
    """CSV column `class`: `pass`, `low-precision`, `yardstick`, `wrong` or `unverified`; empty where nothing was checked."""
    reason: str
    """Why the status is not `ok`, or the class not `pass`, or why there is no device time."""
    median_us: float | None
    """The median of the round medians, microseconds a call."""
    p20_us: float | None
    p80_us: float | None
    """20th and 80th percentile over all samples."""
    n: int | None
    """Samples."""
    rounds: int | None
    """Rounds over all processes."""
    processes: int | None
    """Fresh sets of workers."""
    gbps: float | None
    """Decimal GB/s: algorithmic bytes over median_us; none of `host` times, in which nothing is moved, nor of `implausible` ones."""
    of_copy: float | None
    """Bandwidth over that of the same-bytes yardstick: the median over shared rounds."""
    speedup: float | None
    """Over `relative_to`: the median over shared rounds of its time / this time."""
    relative_to: str
    build_s: float | None
    """Prepare, first call and synchronize, seconds."""
    build_cache: str
    """`cold`, `cached`, or empty where nothing is compiled."""
    error_over_bound: float | None
    """The worst elementwise error over its bound; `inf` where NaN or infinities are misplaced."""
    timer: str
    """`do_bench`, `device`, `graph` or `host`; on the CPU `torch.utils.benchmark`."""
    device: str
    """The GPU's or CPU's name."""
    run: str
    """Name of the run; its JSON holds the raw samples and the environment."""
    # What follows came later: files of earlier versions lack it.
    l2: str = ""
    """`cold` or `warm`; empty on the CPU."""
    device_us: float | None = None
    """Median time of a call's kernels on the device, microseconds."""
    host_us: float | None = None
    """Median time of issuing a call, microseconds."""
    kernels: int | None = None
    """Kernels, copies and fills that a call runs; their names are in the JSON."""
    labels: str = ""
    """What to know before believing the figure, words of `softbench.labels`, a blank between them."""
    of_peak: float | None = None
    """Bandwidth over the datasheet's."""
    low_us: float | None = None
    high_us: float | None = None
    """95 % interval of the median over all samples, without an assumption on their distribution."""
    stopped: str = ""
    """Why no more was sampled: `precise` (known), `limit` (of rounds) or `fixed` (the number was given)."""
    compile_s: float | None = None
    """Of build_s, the seconds in torch.compile."""
    recompiles: int | None = None
    """Graphs that torch.compile made after the build; empty where it compiled nothing."""
    peak_bytes: int | None = None
    """Device memory that a call takes at its peak, outputs included, inputs not."""
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    """Medians of NVML's readings after the batches that make the figure."""
    throttled_batches: int | None = None
    """Batches of a slowed GPU, which count only where there are no others."""
    graph_breaks: int | None = None
    """Where torch.compile left a part of the function to Python; empty where it compiled nothing."""

    @property
    def case(self) -> tuple[str, str, int, int]:
        return self.direction, self.dtype, self.M, self.N


IMPLAUSIBLE = "implausible"
"""The label under which no bandwidth is published."""
FORMULA = ("=", "+", "-", "@")
"""How a text must not begin that a spreadsheet opens: it gets an apostrophe in front, as spreadsheets do it, which reading takes off."""
COLUMNS = tuple("class" if field.name == "grade" else field.name for field in fields(Row))
TYPES = {field.name: field.type for field in fields(Row)}
LATER = {field.name: field.default for field in fields(Row) if field.default is not MISSING}
"""Columns that files of earlier versions lack, and what they then hold."""
ONE_OF = {
    "dtype": set(DTYPES),
    "grade": {grade.value for grade in Grade} | {""},
    "status": {status.value for status in Status},
    "direction": {direction.value for direction in Direction},
}


def row(
    record: Record,
    yardstick: Record | None,
    reference: Record | None,
    *,
    device: str,
    run: str,
    facts: Mapping[str, object] = MappingProxyType({}),
) -> Row:
    """A record as a row; `yardstick` and `reference` are the same case's records of copy and of the backend speed-ups are over.

    `facts` of the machine: its L2 and its peak bandwidth bear on labels and fractions.
    """
    case, outcome = record.case, record.outcome
    timing = outcome.timing if isinstance(outcome, Measured) else None
    profile = outcome.profile if isinstance(outcome, Measured) else Profile()
    accuracy = outcome.accuracy if isinstance(outcome, Measured | Checked | Failed) else None
    build: Build | None = outcome.build if isinstance(outcome, Measured | Checked | Failed) else None
    median = stats.median_us(timing) if timing else None
    p20, p80 = stats.p20_p80_us(timing) if timing else (None, None)
    low, high = (stats.interval_us(timing) if timing else None) or (None, None)
    marks = labels.of(record, facts)
    gbps = None
    if timing and median and timing.kind != "host" and IMPLAUSIBLE not in marks:
        gbps = roofline.gbps(case, median)
    peak = facts.get("peak_gbps")
    return Row(
        backend=record.backend,
        direction=case.direction.value,
        M=case.M,
        N=case.N,
        dtype=case.dtype,
        status=record.status.value,
        grade=accuracy.grade.value if accuracy else "",
        reason=_reason(record),
        median_us=median,
        p20_us=p20,
        p80_us=p80,
        n=stats.samples(timing) if timing else None,
        rounds=stats.rounds(timing) if timing else None,
        processes=len({batch.process for batch in timing.batches}) if timing else None,
        gbps=gbps,
        of_copy=_times_faster(record, yardstick, facts),
        speedup=_times_faster(record, reference, facts),
        relative_to=reference.backend if reference else "",
        build_s=build.seconds if build else None,
        build_cache=build.cache if build else "",
        error_over_bound=accuracy.worst if accuracy and not math.isnan(accuracy.worst) else None,
        timer=timing.kind if timing else "",
        device=device,
        run=run,
        l2=timing.l2 if timing else "",
        device_us=statistics.median(profile.device_us) if profile.device_us else None,
        host_us=statistics.median(profile.host_us) if profile.host_us else None,
        kernels=len(profile.kernels) or None,
        labels=" ".join(marks),
        **_telemetry(timing),
        compile_s=build.compile_s if build else None,
        recompiles=profile.recompiles,
        peak_bytes=profile.peak_bytes,
        graph_breaks=build.graph_breaks if build else None,
        low_us=low,
        high_us=high,
        stopped=timing.stopped if timing else "",
        of_peak=gbps / peak if gbps and isinstance(peak, float) else None,
    )


def _telemetry(timing: Timing | None) -> dict[str, Any]:
    batches = stats.counted(timing.batches) if timing else []
    readings = [batch.telemetry for batch in batches if batch.telemetry is not None]
    if timing is None or not readings:
        return {}
    found: dict[str, Any] = {"throttled_batches": sum(batch.throttled for batch in timing.batches)}
    for name in ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c"):
        values = [value for reading in readings if (value := getattr(reading, name)) is not None]
        found[name] = float(statistics.median(values)) if values else None
    return found


def _reason(record: Record) -> str:
    match record.outcome:
        case Skipped(reason=reason) | Failed(reason=reason) | Checked(reason=reason):
            return reason
        case Measured(accuracy=accuracy, profile=profile):
            return accuracy.detail or (f"no device time: {profile.note}" if profile.note else "")


def _times_faster(record: Record, other: Record | None, facts: Mapping[str, object]) -> float | None:
    if other is None or not isinstance(record.outcome, Measured) or not isinstance(other.outcome, Measured):
        return None
    if any(IMPLAUSIBLE in labels.of(one, facts) for one in (record, other)):
        return None
    return stats.times_faster(record.outcome.timing, other.outcome.timing)


def to_csv(rows: Iterable[Row]) -> str:
    """The whole file as text. Numbers have six significant digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for item in rows:
        writer.writerow([_cell(getattr(item, name)) for name in TYPES])
    return out.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        text = one_line(value)
        return f"'{text}" if text.startswith(FORMULA) else text
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_csv(path: Path) -> tuple[list[Row], list[str]]:
    """Rows of a results file, and warnings (a torn last line is dropped with one; nothing else is).

    Raises:
        ResultsError: not there, not text, not a results file, or a damaged line; with file, line and reason.
    """
    if path.exists() and not path.is_file():
        raise ResultsError(f"{path}: is not a file")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ResultsError(f"{path}: is not text; give the .csv that softbench run wrote") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[Row] = []
    try:
        header = next(reader, [])
        missing = [column for column in COLUMNS if column not in header and column not in LATER]
        if missing:
            raise ResultsError(f"{path}: line 1: not a softbench results file: column {', '.join(missing[:3])} is missing")
        seen = set()
        for values in reader:
            row = _row_of(dict(zip(header, values, strict=True)))
            if (row.backend, row.case) in seen:
                raise ValueError(f"{row.backend} has this case twice")
            seen.add((row.backend, row.case))
            rows.append(row)
    except (ValueError, csv.Error) as error:
        if not text.endswith("\n") and reader.line_num >= len(text.splitlines()):
            return rows, [f"{path}: the last line is torn and was dropped; the run that wrote it may have been interrupted"]
        reason = "has another number of values than the header" if "zip()" in str(error) else str(error)
        raise ResultsError(f"{path}: line {reader.line_num}: {reason}") from None
    if not rows:
        raise ResultsError(f"{path}: holds no cells")
    return rows, []


def _row_of(values: dict[str, str]) -> Row:
    found: dict[str, Any] = {}
    for name, kind in TYPES.items():
        column = "class" if name == "grade" else name
        if name in LATER and column not in values:
            continue
        text = values[column]
        if name in ONE_OF and text not in ONE_OF[name]:
            raise ValueError(f"{column}: unknown '{text[:40]}'")
        try:
            found[name] = _value(text, str(kind))
        except ValueError:
            raise ValueError(f"{column}: '{text[:40]}' is not a number") from None
    row = Row(**found)
    if not NAME.fullmatch(row.backend):
        raise ValueError(f"backend: '{row.backend[:40]}' is no name of one")
    if not (0 < row.M < 2**63 and 0 < row.N < 2**63):
        raise ValueError("M and N must be positive")
    figures = (row.median_us, row.p20_us, row.p80_us, *(() if row.timer == "host" or IMPLAUSIBLE in row.labels else (row.gbps,)))
    if row.status == Status.OK and (row.grade in (Grade.WRONG, Grade.UNVERIFIED) or not all(f and 0 < f < math.inf for f in figures)):
        raise ValueError("status is ok, but there is no figure, or a class that has none")
    if not all(ratio is None or 0 < ratio < math.inf for ratio in (row.of_copy, row.speedup, row.of_peak)):
        raise ValueError("of_copy, speedup and of_peak must be positive numbers")
    return row


def _value(text: str, kind: str) -> str | int | float | None:
    if kind == "str":
        unquoted = text[1:] if text.startswith("'") and text[1:].startswith(FORMULA) else text
        return one_line(unquoted)  # a file from elsewhere may hold escape sequences
    if not text and "None" in kind:
        return None
    return int(text) if kind.startswith("int") else float(text)
