"""The tidy CSV: one row a cell, every column documented, nothing lost on the way in or out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from softbench.core import statistics as stats
from softbench.core.outcome import Build, Checked, Failed, Measured, Profile, Record, Skipped, Timing
from softbench.ops.softmax import spec as roofline
from softbench.results import labels


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
    """What to know before believing the figure, words of `softbench.results.labels`, a blank between them."""
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
