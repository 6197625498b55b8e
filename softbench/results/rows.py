"""The rows of records: what each column of the results CSV has of a measured cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from softbench.core import statistics as stats
from softbench.core.case import Case
from softbench.core.json import JsonObject
from softbench.core.outcome import Build, Checked, Failed, Measured, Profile, Record, Skipped, Timing
from softbench.ops.registry import operation
from softbench.results import labels
from softbench.results.columns import IMPLAUSIBLE, L2_RESIDENT, OVER_REFERENCE, USERS, Row
from softbench.results.document import device_name, units_of


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
        of_copy=None if timing and timing.kind == "host" else _of_copy(cell, yardstick),
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
        **_users(profile),
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


def _spread(case: Case, timing: Timing | None, facts: Mapping[str, object]) -> stats.Spread:
    """How far processes differ on the machine with these facts."""
    default, sd = stats.default_spread(case.device, timing.kind if timing else ""), facts.get(stats.SPREAD)
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


def _users(profile: Profile) -> JsonObject:
    """The columns of the users' call."""
    medians = [statistics.median(us) if us else None for us in profile.users_us]
    own, others = medians[: len(USERS)], medians[len(USERS) :]
    ratios = [a / b if a and b else None for a, b in zip(own, others, strict=False)]
    return dict(zip(USERS, own, strict=False)) | dict(zip(OVER_REFERENCE, ratios, strict=False))


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
    if yardstick and cell.us and IMPLAUSIBLE not in cell.marks and (us := labels.products_us(cell.record.case, yardstick.record)):
        return None if cell is yardstick or labels.doubtful_copy_of(yardstick.marks, None, None) else us / cell.us
    if yardstick is None or labels.doubtful_copy_of(yardstick.marks, yardstick.us, cell.us):
        return None
    return _times_as_fast(cell, yardstick)


def _times_as_fast(cell: _Cell, other: _Cell | None) -> float | None:
    if other is None or not cell.us or not other.us or any(IMPLAUSIBLE in one.marks for one in (cell, other)):
        return None
    return other.us / cell.us
