"""Rows of the results CSV: one row per cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from softbench.core import statistics as stats
from softbench.core.case import OPERATION, Case, CaseKey, pass_name
from softbench.core.json import JsonObject
from softbench.core.outcome import Build, Checked, Failed, Measured, Profile, Record, Skipped, Status, Timing
from softbench.ops.registry import operation
from softbench.results import labels
from softbench.results.document import device_name, units_of


@dataclass(frozen=True, slots=True)
class Row:
    """A cell as a row of the CSV. A field that does not apply is None or an empty text."""

    backend: str
    """Name of the backend."""
    direction: str
    """`forward`, `backward`, `both` or `fused`."""
    M: int
    """Rows."""
    N: int
    """Columns: the reduced axis."""
    dtype: str
    """`fp32`, `fp16` or `bf16`."""
    status: str
    """`ok`, `wrong`, `failed`, `timeout`, `oom`, `unverified`, `checked` (not timed), `skipped` or `unavailable`. Only `ok` has times."""
    grade: str
    """`pass`, `low-precision`, `finite-only`, `yardstick`, `wrong` or `unverified`; empty without a check."""
    reason: str
    """Why the status is not `ok`, why the class is not `pass`, or why there is no device time."""
    median_us: float | None
    """The median of the round medians, microseconds per call."""
    p20_us: float | None
    """20th percentile over all samples, microseconds."""
    p80_us: float | None
    """80th percentile over all samples, microseconds."""
    n: int | None
    """Number of samples."""
    rounds: int | None
    """Number of rounds, over all process sets."""
    processes: int | None
    """Number of process sets."""
    gbps: float | None
    """Bandwidth in decimal GB/s: algorithmic bytes over `median_us`. Empty for `host` times and `implausible` cells."""
    of_copy: float | None
    """Fraction of copy: copy's `median_us` over this one. Empty if copy has a doubtful label, or took more than 1.5 times as long."""
    speedup: float | None
    """Speed-up: the reference backend's `median_us` over this one."""
    relative_to: str
    """The reference backend."""
    build_s: float | None
    """Seconds of prepare, first call and synchronization."""
    build_cache: str
    """`cold`, `cached`, or empty if nothing is compiled."""
    error_over_bound: float | None
    """The largest error over its bound; `inf` if NaN or infinities are misplaced."""
    timer: str
    """`queued`, `do_bench` (also for calls that wait for the GPU), `device`, `graph` or `host`; on the CPU `torch.utils.benchmark`."""
    device: str
    """Name of the GPU or CPU."""
    run: str
    """Name of the run, whose JSON has the raw samples."""
    l2: str = ""
    """`cold` or `warm`; empty on the CPU."""
    device_us: float | None = None
    """Median device time, microseconds."""
    host_us: float | None = None
    """Median host time, microseconds."""
    do_bench_us: float | None = None
    """Median of a short sample of `triton.testing.do_bench`, microseconds: what other tools print. The host is in it where it is slower.

    With a warm L2 it is taken without the flush.
    """
    kernels: int | None = None
    """Number of kernels, copies and fills of a call; their names are in the JSON."""
    labels: str = ""
    """Labels of the cell, separated by blanks."""
    of_peak: float | None = None
    """Bandwidth over that of the datasheet, which is NVML's memory clock x 2 x bus width. Empty if the tensors fit L2."""
    low_us: float | None = None
    """Lower end of the 95 % interval of the median, microseconds. It covers the differences between processes and contains the median."""
    high_us: float | None = None
    """Upper end of that interval, microseconds."""
    stopped: str = ""
    """Why sampling stopped: `precise`, `limit` (of rounds) or `fixed` (number of rounds)."""
    compile_s: float | None = None
    """Seconds of `build_s` in `torch.compile`."""
    recompiles: int | None = None
    """Graphs that `torch.compile` made after the build; empty if it compiled nothing."""
    peak_bytes: int | None = None
    """Peak of torch's allocator during a call, with outputs and without inputs, bytes."""
    sm_clock_mhz: float | None = None
    """Median SM clock after the counted batches, MHz."""
    memory_clock_mhz: float | None = None
    """Median memory clock after the counted batches, MHz."""
    power_w: float | None = None
    """Median power after the counted batches, watts."""
    temperature_c: float | None = None
    """Median temperature after the counted batches, degrees Celsius."""
    throttled_batches: int | None = None
    """Batches of a throttled GPU or a busy CPU; they count only if a cell has no others."""
    graph_breaks: int | None = None
    """Places where `torch.compile` left a part of the function to Python; empty if it compiled nothing."""
    op: str = OPERATION
    """The operation with the parameters that are not at their default, such as `softmax(scale=0.7)`."""
    shape: str = ""
    """Shape of an N-D case, such as `8x16x1024x1024`, or `64x32x1000@dim1` with rows along dimension 1; empty if it is (M, N)."""
    unit: str = ""
    """The unit that measured the cell: label of the host, index and hash of the UUID, as in `node7/0/9c1d22e0`."""

    @property
    def case(self) -> CaseKey:
        """The case, whose text is its name, such as `forward-bf16-4096x1024`."""
        return CaseKey(self.direction, self.dtype, self.M, self.N, self.op, self.shape)

    @property
    def of_pass(self) -> str:
        """The operation and the direction, as in `log_softmax forward`; for softmax the direction."""
        return pass_name(self.op, self.direction)

    @property
    def timed(self) -> bool:
        """True if the cell has a plausible time."""
        return self.status == Status.OK and bool(self.median_us) and IMPLAUSIBLE not in self.labels

    @property
    def ends(self) -> stats.Ends | None:
        """The 95 % interval of the median, microseconds; None if unknown. In a file of another program it may lie beside the median."""
        low, high, median = self.low_us, self.high_us, self.median_us
        return (min(low, median), max(high, median)) if low and high and median else None

    def times_as_fast(self, other: Row) -> stats.Ratio | None:
        """How many times as fast it is as another row: the ratio of both medians. None if one has no median, or no interval."""
        if not (self.median_us and other.median_us and self.ends and other.ends):
            return None
        return stats.ratio(other.median_us, other.ends, self.median_us, self.ends)

    @property
    def doubtful(self) -> bool:
        """True if the cell has a label that is not harmless."""
        return not labels.DOUBTFUL.isdisjoint(self.labels.split())

    @property
    def in_l2(self) -> bool:
        """True if the tensors fit the GPU's L2, so that `gbps` is not the memory's."""
        return L2_RESIDENT in self.labels.split()


FIELDS = {"class" if field.name == "grade" else field.name: field for field in fields(Row)}
"""The fields of a row by the names of their columns."""
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are full-width signs
"""A text with such a first character is a formula for a spreadsheet: writing adds an apostrophe, reading removes it."""
L2_RESIDENT = "L2-resident"
IMPLAUSIBLE = "implausible"
"""Cells with this label publish no bandwidth."""
SPREAD, SPREAD_FROM = "process_spread", "process_spread_from"
"""Facts of a machine: the standard deviation between processes as a fraction, and `default` or what measured it."""

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items with each key, in the order of the first items with that key."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


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
    cells = [None if one is None else _Cell.of(one, yardstick, facts) for one in (record, yardstick, reference)]
    assert cells[0] is not None
    return _row(cells[0], cells[1], cells[2], device, run, facts)


class _Cell(NamedTuple):
    """A record with what the rows of several backends need of it."""

    record: Record
    us: float | None
    """The median."""
    marks: tuple[str, ...]

    @staticmethod
    def of(record: Record, yardstick: Record | None, facts: Mapping[str, object]) -> _Cell:
        us = stats.median_us(record.outcome.timing) if isinstance(record.outcome, Measured) else None
        return _Cell(record, us, labels.of(record, facts, yardstick))


def _row(cell: _Cell, yardstick: _Cell | None, reference: _Cell | None, device: str, run: str, facts: Mapping[str, object]) -> Row:
    record, median, marks = cell
    case, outcome = record.case, record.outcome
    timing = outcome.timing if isinstance(outcome, Measured) else None
    profile = outcome.profile if isinstance(outcome, Measured) else Profile()
    accuracy = outcome.accuracy if isinstance(outcome, Measured | Checked | Failed) else None
    build: Build | None = outcome.build if isinstance(outcome, Measured | Checked | Failed) else None
    gbps = None
    if timing and median and timing.kind != "host" and IMPLAUSIBLE not in marks:
        gbps = operation(case.op).gbps(case, median)
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
        gbps=gbps,
        of_copy=_of_copy(cell, yardstick),
        speedup=_times_as_fast(cell, reference),
        relative_to=reference.record.backend if reference else "",
        build_s=build.seconds if build else None,
        build_cache=build.cache if build else "",
        error_over_bound=accuracy.worst if accuracy and not math.isnan(accuracy.worst) else None,
        device=device,
        run=run,
        device_us=statistics.median(profile.device_us) if profile.device_us else None,
        host_us=statistics.median(profile.host_us) if profile.host_us else None,
        do_bench_us=statistics.median(profile.do_bench_us) if profile.do_bench_us else None,
        kernels=len(profile.kernels) or None,
        labels=" ".join(marks),
        **_sampling(timing, _spread(case, timing, facts)),
        **_telemetry(timing),
        compile_s=build.compile_s if build else None,
        recompiles=profile.recompiles,
        peak_bytes=profile.peak_bytes,
        graph_breaks=build.graph_breaks if build else None,
        op=case.op,
        shape=case.shape,
        of_peak=gbps / peak if gbps and isinstance(peak, float) and L2_RESIDENT not in marks else None,
        unit=record.unit,
    )


def rows_of_run(records: Iterable[Record], header: JsonObject) -> Iterator[Row]:
    """The rows of a run's records, in their order. The records of a case and unit follow each other.

    `header`: see `softbench.run.header.header`, with the run's name.

    Raises:
        ValueError: the records of a case lie apart, so that its cells cannot be compared with copy.
    """
    units, seen = units_of(header), set[tuple[Case, str]]()
    for key, some in groupby(records, lambda record: (record.case, record.unit)):
        if key in seen:
            raise ValueError(f"the cells of {key[0].key} lie apart")
        seen.add(key)
        yield from rows_of_case({record.backend: record for record in some}, header, units)


def rows_of_case(records: Mapping[str, Record], header: JsonObject, units: Mapping[str, JsonObject]) -> list[Row]:
    """The rows of one case on one unit, whose records are given by backend. `units`: `units_of` the header."""
    facts: JsonObject = units.get(next(iter(records.values())).unit) or dict(header.get("environment") or {})
    device = device_name(facts) if len(units) > 1 else header["device_name"]
    cells = {name: _Cell.of(record, records.get(header["yardstick"]), facts) for name, record in records.items()}
    beside = cells.get(header["yardstick"]), cells.get(header["relative_to"])
    return [_row(cell, *beside, device, header["run"], facts) for cell in cells.values()]


def default_spread(device: str, timer: str) -> stats.Spread:
    """How far processes differ on a machine where nothing was measured. A host time is the CPU's."""
    return stats.GPU_SPREAD if device == "cuda" and timer != "host" else stats.CPU_SPREAD


def _spread(case: Case, timing: Timing | None, facts: Mapping[str, object]) -> stats.Spread:
    """How far processes differ on the machine with these facts."""
    default, sd = default_spread(case.device, timing.kind if timing else ""), facts.get(SPREAD)
    return replace(default, sd=float(sd)) if isinstance(sd, float | int) and 0 < sd < 1 else default


def _sampling(timing: Timing | None, spread: stats.Spread) -> JsonObject:
    """The columns of the samples' spread and number."""
    if timing is None:
        return {**dict.fromkeys(("p20_us", "p80_us", "n", "rounds", "processes")), "timer": ""}
    p20, p80 = stats.p20_p80_us(timing)
    low, high = stats.interval_us(timing, spread) or (None, None)
    processes = len({batch.process for batch in timing.batches})
    counts = {"n": stats.samples(timing), "rounds": stats.rounds(timing), "processes": processes}
    times = {"p20_us": p20, "p80_us": p80, "low_us": low, "high_us": high}
    return {**counts, **times, "timer": timing.kind, "l2": timing.l2, "stopped": timing.stopped}


def _telemetry(timing: Timing | None) -> JsonObject:
    batches = stats.counted(timing.batches) if timing else []
    readings = [batch.telemetry for batch in batches if batch.telemetry is not None]
    if timing is None or not readings:
        return {}
    found: JsonObject = {"throttled_batches": sum(batch.throttled for batch in timing.batches)}
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


def _of_copy(cell: _Cell, yardstick: _Cell | None) -> float | None:
    if yardstick is None or labels.doubtful_copy_of(yardstick.marks, yardstick.us, cell.us):
        return None
    return _times_as_fast(cell, yardstick)


def _times_as_fast(cell: _Cell, other: _Cell | None) -> float | None:
    if other is None or not cell.us or not other.us or any(IMPLAUSIBLE in one.marks for one in (cell, other)):
        return None
    return other.us / cell.us
