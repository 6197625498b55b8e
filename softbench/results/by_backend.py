"""What each backend of a results file costs and reaches: build, host time of a call, fraction of copy.

Where the run has profiles, fractions are those of device times: a call that takes the host longer than the GPU would else be told twice,
as host time and as bandwidth, and on another host be another figure.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from softbench.core.outcome import Grade, Status
from softbench.results.csv import read_csv
from softbench.results.rows import IMPLAUSIBLE, Row

COMMITTED = Path("results") / "h200" / "strategies.csv"
"""The run that `softbench list --long` quotes, below the working folder or beside the package."""


@dataclass(frozen=True, slots=True)
class BackendCost:
    """One backend over the cells of a run."""

    build_s: float | None = None
    """Median; of cold builds where there are any."""
    build_cache: str = ""
    """`cold` or `cached`; empty where nothing is compiled."""
    host_us: float | None = None
    """Median."""
    of_copy: dict[str, float] = field(default_factory=dict)
    """By direction the geometric mean, a cell counting as 1 at most."""
    by_device: bool = False
    """Whether `of_copy` is of the kernels' own times, and not of what the run's timer gave."""
    cells: int = 0
    """That have a figure."""
    others: dict[str, int] = field(default_factory=dict)
    """The rest, by their status."""
    where: str = ""
    """The device."""


def by_backend(rows: Iterable[Row]) -> dict[str, BackendCost]:
    """The costs of every backend in the file, in its order."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.backend, []).append(row)
    ok = [row for some in grouped.values() for row in some if row.status == Status.OK and IMPLAUSIBLE not in row.labels]
    copies = {_cell(row): row.device_us for row in ok if row.grade == Grade.YARDSTICK}
    by_device = bool(ok) and all(row.device_us and copies.get(_cell(row)) for row in ok)
    return {name: _cost(some, copies if by_device else None) for name, some in grouped.items()}


def _cell(row: Row) -> tuple[object, ...]:
    return row.direction, row.M, row.N, row.dtype


def _cost(rows: Sequence[Row], copies: Mapping[tuple[object, ...], float | None] | None) -> BackendCost:
    ok = [row for row in rows if row.status == Status.OK]
    cold = [row for row in ok if row.build_cache == "cold"]
    builds = [row.build_s for row in cold or ok if row.build_s is not None]
    hosts = [row.host_us for row in ok if row.host_us is not None]
    fractions: dict[str, list[float]] = {}
    for row in ok:
        if IMPLAUSIBLE in row.labels:  # it publishes no bandwidth, so no fraction either
            continue
        copy_us = copies.get(_cell(row)) if copies else None
        of_copy = copy_us / row.device_us if copy_us and row.device_us else row.of_copy
        if of_copy and row.grade != Grade.YARDSTICK:
            fractions.setdefault(row.direction, []).append(min(1.0, of_copy))
    return BackendCost(
        build_s=statistics.median(builds) if builds else None,
        build_cache="cold" if cold else next((row.build_cache for row in ok), ""),
        host_us=statistics.median(hosts) if hosts else None,
        of_copy={direction: statistics.geometric_mean(some) for direction, some in fractions.items()},
        by_device=copies is not None,
        cells=len(ok),
        others=dict(Counter(row.status for row in rows if row.status != Status.OK)),
        where=rows[0].device,
    )


def committed() -> Mapping[str, BackendCost]:
    """Of the committed run, where it is at hand; else empty: then nothing is measured."""
    for folder in (Path(), Path(__file__).resolve().parents[2]):
        if (folder / COMMITTED).is_file():
            return by_backend(read_csv(folder / COMMITTED)[0])
    return {}
