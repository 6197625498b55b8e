"""The costs of each backend in a results file: build time, host time of a call, fraction of copy.

With profiles, fractions are those of device times. Otherwise a slow host would count twice, as host time and as bandwidth.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from softbench.core.case import CaseKey
from softbench.core.outcome import Grade, Status
from softbench.results.columns import Row, grouped


@dataclass(frozen=True, slots=True)
class BackendCost:
    """One backend over the cells of a run."""

    build_s: float | None = None
    """Median seconds; of cold builds if there are any."""
    build_cache: str = ""
    """`cold` or `cached`; empty if nothing is compiled."""
    host_us: float | None = None
    """Median, microseconds."""
    of_copy: dict[str, float] = field(default_factory=dict)
    """Geometric mean by direction; a cell counts at most as 1."""
    by_device: bool = False
    """True if `of_copy` uses device times, not the run's timer."""
    cells: int = 0
    """Number of cells with a result."""
    others: dict[str, int] = field(default_factory=dict)
    """Number of other cells by status."""


def by_backend(rows: Iterable[Row]) -> dict[str, BackendCost]:
    """The costs of every backend in the file, in its order."""
    found = grouped(rows, lambda row: row.backend)
    ok = [row for some in found.values() for row in some if row.timed]
    copies = {row.case: row.device_us for row in ok if row.grade == Grade.YARDSTICK}
    by_device = bool(ok) and all(row.device_us and copies.get(row.case) for row in ok)
    return {name: _cost(some, copies if by_device else None) for name, some in found.items()}


def _cost(rows: Sequence[Row], copies: Mapping[CaseKey, float | None] | None) -> BackendCost:
    ok = [row for row in rows if row.status == Status.OK]
    cold = [row for row in ok if row.build_cache == "cold"]
    builds = [row.build_s for row in cold or ok if row.build_s is not None]
    hosts = [row.host_us for row in ok if row.host_us is not None]
    fractions: dict[str, list[float]] = {}
    for row in ok:
        if not row.timed:  # an implausible cell publishes no fraction
            continue
        copy_us = copies.get(row.case) if copies else None
        of_copy = copy_us / row.device_us if copy_us and row.device_us and not row.compute_bound else row.of_copy
        if of_copy and row.grade != Grade.YARDSTICK:
            fractions.setdefault(row.of_pass, []).append(min(1.0, of_copy))
    return BackendCost(
        build_s=statistics.median(builds) if builds else None,
        build_cache="cold" if cold else next((row.build_cache for row in ok), ""),
        host_us=statistics.median(hosts) if hosts else None,
        of_copy={direction: statistics.geometric_mean(some) for direction, some in fractions.items()},
        by_device=copies is not None,
        cells=len(ok),
        others=dict(Counter(row.status for row in rows if row.status != Status.OK)),
    )
