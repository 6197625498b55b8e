"""Labels: notes and warnings on a cell, each with what to do. Each is a pure function of the measurement."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median

from softbench.core import statistics
from softbench.core.case import DO_BENCH, Case
from softbench.core.outcome import Batch, Grade, Measured, Record, Timing
from softbench.ops.registry import operation
from softbench.results.columns import COMPUTE_BOUND, DOUBTFUL, IMPLAUSIBLE, L2_RESIDENT

DISTURBED = frozenset({"throttled", "busy"})
"""Labels of a cell that something else slowed in every round."""

EVENTS_US = 4.0
"""Time that a pair of events adds to a call of do_bench, whose GPU is idle before: 2 to 3 us on an H200, with a margin. Queued: 1.2 us."""
GAP_US = 1.0
"""Gap between two kernels of a call. do_bench includes it; device time does not."""
MOSTLY = 1.25
"""Ratio to the device time that events can explain."""
NOISE = 0.10
NOISE_US = 1.0  # events scatter by this much
OVER_PEAK = 1.05  # clocks and datasheets are rounded
OVER_COPY = 1.5  # both move the same bytes
WELL_BEYOND = 4  # times L2; in smaller cells the part in L2 is too large


def launch_bound(do_bench_us: float, device_us: float, host_us: float, kernels: int) -> bool:
    """True if do_bench waited for the host: issuing takes longer than running, and the time exceeds kernels, gaps and events."""
    return host_us > device_us and do_bench_us > MOSTLY * device_us + EVENTS_US + GAP_US * (kernels - 1)


def l2_resident(case: Case, l2_bytes: int) -> bool:
    """True if all tensors of a case fit into L2 together. Even after a flush, writes then need not reach the memory."""
    return operation(case.op).distinct_bytes(case) <= l2_bytes


def throttled(batches: Sequence[Batch]) -> bool:
    """True if every batch was throttled, or the CPU busy, so that such batches count."""
    return any(batch.throttled for batch in statistics.counted(batches))


def noisy(median_us: float, p20_us: float, p80_us: float) -> bool:
    """True if the p20..p80 band is wider than the scatter of events, or does not contain the median.

    The median is that of the round medians. The band over all samples can miss slow rounds with few samples.
    """
    wide = p80_us - p20_us > max(NOISE * median_us, NOISE_US)
    return wide or max(p20_us - median_us, median_us - p80_us) > NOISE_US


def implausible(case: Case, us: float, peak_gbps: float, l2_bytes: int, l2: str) -> bool:
    """True if the bytes that L2 cannot have held moved more than 5 % faster than the datasheet's bandwidth.

    L2 can hold its own size of the last writes; a warm L2 also holds as much of the first reads.
    """
    moved = operation(case.op).bytes_moved(case)
    from_memory = moved - (1 if l2 == "cold" else 2) * l2_bytes
    return moved >= WELL_BEYOND * l2_bytes and from_memory / us / 1e3 > OVER_PEAK * peak_gbps


def over_copy(outcome: Measured, yardstick: Record | None, moved_bytes: int, l2_bytes: int) -> bool:
    """True if a cell well beyond L2 is more than 1.5 times as fast as `copy`, which moves the same bytes."""
    if yardstick is None or not isinstance(yardstick.outcome, Measured) or moved_bytes < WELL_BEYOND * l2_bytes:
        return False
    return statistics.median_us(yardstick.outcome.timing) > OVER_COPY * statistics.median_us(outcome.timing)


def products_us(case: Case, yardstick: Record | None) -> float | None:
    """Microseconds of a case's matrix products at the rate that its yardstick's record has; None unless this is longer than copy's time."""
    outcome = yardstick.outcome if yardstick else None
    if not isinstance(outcome, Measured) or outcome.timing.kind == "host" or not outcome.profile.product_tflops:
        return None
    us = operation(case.op).flops(case) / outcome.profile.product_tflops / 1e6
    return us if us > statistics.median_us(outcome.timing) else None


def of(record: Record, facts: Mapping[str, object], yardstick: Record | None = None) -> tuple[str, ...]:
    """A record's labels. A label that needs an unknown fact of the machine is not given.

    Args:
        record: the cell.
        facts: the machine's.
        yardstick: the case's record of `copy`, if there is one.
    """
    outcome, case = record.outcome, record.case
    if not isinstance(outcome, Measured):
        return ()
    timing, profile = outcome.timing, outcome.profile
    rounds = timing.kind == "host" or case.device == "cpu"
    us, (p20, p80) = statistics.median_us(timing), statistics.p20_p80_us(_of_rounds(timing) if rounds else timing)
    l2_bytes, peak = facts.get("gpu_l2_bytes"), facts.get("peak_gbps")
    found = []
    if timing.kind == DO_BENCH and profile.device_us and profile.host_us:
        device, host = median(profile.device_us), median(profile.host_us)
        found += ["launch-bound"] * launch_bound(us, device, host, len(profile.kernels))
    if isinstance(l2_bytes, int):
        found += [L2_RESIDENT] * l2_resident(case, l2_bytes)
    found += [COMPUTE_BOUND] * (outcome.accuracy.grade is not Grade.YARDSTICK and products_us(case, yardstick) is not None)
    found += ["throttled" if case.device == "cuda" else "busy"] * throttled(timing.batches)
    found += ["noisy"] * (noisy(us, p20, p80) and "busy" not in found)  # which says why
    if isinstance(l2_bytes, int) and timing.kind != "host":
        over_peak = isinstance(peak, float) and implausible(case, us, peak, l2_bytes, timing.l2)
        found += [IMPLAUSIBLE] * (over_peak or over_copy(outcome, yardstick, operation(case.op).bytes_moved(case), l2_bytes))
    found += ["recompiled"] * bool(profile.recompiles)
    found += ["graph-breaks"] * bool(outcome.build.graph_breaks)
    return tuple(found)


def _of_rounds(timing: Timing) -> Timing:
    """A timing whose samples are the round medians: single calls of a host always differ by microseconds."""
    return replace(timing, batches=tuple(replace(batch, samples_us=(median(batch.samples_us),)) for batch in timing.batches))


def doubtful_copy(yardstick: Record, record: Record, facts: Mapping[str, object]) -> bool:
    """True if `copy` cannot say how close a cell is to the memory, so the cell has no percentage.

    A label casts doubt on copy itself, or the cell is more than 1.5 times as fast. Both move the same bytes: something slowed copy, or the
    cell leaves out work.
    """
    copy_us, us = (statistics.median_us(one.outcome.timing) if isinstance(one.outcome, Measured) else None for one in (yardstick, record))
    return doubtful_copy_of(of(yardstick, facts), copy_us, us)


def doubtful_copy_of(marks: Collection[str], copy_us: float | None, us: float | None) -> bool:
    """`doubtful_copy` from the labels of `copy` and both medians."""
    return not DOUBTFUL.isdisjoint(marks) or bool(copy_us and us and copy_us > OVER_COPY * us)
