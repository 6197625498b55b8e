"""The gate's input: the round medians of every cell and process of a run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import NamedTuple

from softbench.core.case import OPERATION, YARDSTICK, CaseKey
from softbench.core.errors import ResultsError
from softbench.core.json import JsonObject
from softbench.gate import command_line


class CellKey(NamedTuple):
    """One backend on one case."""

    backend: str
    """Name of the backend."""
    direction: str
    """`forward`, `backward`, `both` or `fused`."""
    dtype: str
    """`fp32`, `fp16` or `bf16`."""
    M: int
    """Rows."""
    N: int
    """Columns: the reduced axis."""
    op: str = OPERATION
    """The operation with the parameters that are not at their default, such as `softmax(scale=0.7)`."""
    shape: str = ""
    """Shape of an N-D case; empty if it is (M, N)."""
    unit: str = ""
    """The unit that measured it; empty if all results are of one."""
    measure: str = ""
    """What is judged, such as `memory`; empty for the time of a call."""

    @property
    def identity(self) -> CaseKey:
        """The case."""
        return CaseKey(self.direction, self.dtype, self.M, self.N, self.op, self.shape)

    @property
    def case(self) -> str:
        """The case's name, such as `forward-fp32-4096x1024`, with the unit and the measure if it has them."""
        return " ".join(filter(None, (str(self.identity), self.unit, self.measure)))

    def with_backend(self, backend: str) -> CellKey:
        """The cell of another backend on the same case."""
        return self._replace(backend=backend)


SITTING_S = 3 * 3600.0
"""Runs on a machine that are less than this many seconds apart are of one sitting."""


class Sitting(NamedTuple):
    """A time on a machine, with one or several runs."""

    processes: tuple[int, ...]
    """The numbers of its processes."""
    times: tuple[float, float] | None = None
    """Start of the first run and end of the last one, in seconds since 1970; None if that is not known."""

    def near(self, other: Sitting) -> bool:
        """True if both are one sitting, as far as their times are known."""
        if self.times is None or other.times is None:
            return True
        return max(self.times[0], other.times[0]) - min(self.times[1], other.times[1]) < SITTING_S


class RoundMedian(NamedTuple):
    """The median and the mean of one batch, with its round."""

    number: int
    position: int
    """The backend's place in the round's order."""
    median_us: float
    mean_us: float = 0.0
    """0 if it is not known, as in a baseline."""
    mhz: float = 0.0
    """The SM clock that was read after the batch; 0 if it is not known."""


@dataclass(frozen=True, slots=True)
class CellSamples:
    """The samples of one cell, over all processes."""

    status: str
    """As in the CSV; only `ok` has rounds."""
    reason: str
    grade: str
    processes: dict[int, tuple[RoundMedian, ...]] = field(default_factory=dict)
    host_bound: str = ""
    """Why `do_bench` measured host time, with the device time; else empty."""
    timer: str = ""
    """What took the times: in a run of `queued` it is `do_bench` for calls that wait for the GPU. Empty if that is not known."""

    def medians_us(self) -> dict[int, float]:
        """Each process's median: the median of its round medians, microseconds."""
        return {process: median(one.median_us for one in rounds) for process, rounds in self.processes.items()}

    def log_mhz(self) -> float | None:
        """The mean log of the processes' SM clocks; None if one is not known."""
        clocks = [[one.mhz for one in rounds] for rounds in self.processes.values()]
        return fmean(math.log(median(each)) for each in clocks) if clocks and all(map(all, clocks)) else None


@dataclass(frozen=True, slots=True)
class RunSamples:
    """The samples of one or several runs on one machine."""

    source: str
    """The files, for messages."""
    runs: tuple[str, ...]
    schema: int
    device_name: str
    environment: JsonObject
    settings: JsonObject
    command: str
    cells: dict[CellKey, CellSamples]
    processes: int
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of `softbench` and `git_commit`, if known."""
    sittings: tuple[Sitting, ...] = ()
    """The sittings in the order of time; empty if all processes are of one."""
    units: dict[str, JsonObject] = field(default_factory=dict)
    """The environment of each unit, if there are several; then cells have their unit, and `environment` is what the units share."""
    undigested: tuple[str, ...] = ()
    """The files without digests, which an earlier version of softbench wrote."""

    @property
    def by_sitting(self) -> tuple[Sitting, ...]:
        """The sittings, at least one."""
        return self.sittings or (Sitting(tuple(sorted({process for samples in self.cells.values() for process in samples.processes}))),)

    def more_processes(self, count: int) -> str:
        """The command that measures the same with this many processes."""
        words = command_line.words(self.command)
        words = words if words[:2] == ["softbench", "run"] else ["softbench", "run"]
        others = [word for word in command_line.without(words, ("--processes",)) if word != "--resume"]
        return shlex.join([*others, "--processes", str(count)])

    @property
    def plugin_flags(self) -> list[str]:
        """The `--plugin` flags of the run's command."""
        return command_line.options(command_line.words(self.command), ("--plugin",))

    @property
    def problem_flags(self) -> list[str]:
        """The `--problem` flags of the run's command."""
        return command_line.options(command_line.words(self.command), ("--problem",))


def join(parts: Sequence[RunSamples]) -> RunSamples:
    """Combine runs of one machine: their processes add up. A cell that failed in one run has failed.

    `softbench.gate.environment_match` checks that they come from one machine. `parts` must not be empty.

    Raises:
        ResultsError: a run is given twice.
    """
    cells: dict[CellKey, CellSamples] = {}
    runs: list[str] = []
    sittings: list[Sitting] = []
    offset = 0
    for part in parts:
        if repeated := [run for run in part.runs if run in runs]:
            raise ResultsError(f"{part.source}: {repeated[0]} is given twice; every run counts once")
        runs += part.runs
        sittings += [each._replace(processes=tuple(process + offset for process in each.processes)) for each in part.by_sitting]
        for key, samples in part.cells.items():
            renumbered = {process + offset: rounds for process, rounds in samples.processes.items()}
            earlier = cells.get(key)
            if earlier is None or (earlier.status == "ok" and samples.status != "ok"):
                cells[key] = replace(samples, processes=renumbered)
            elif earlier.status == "ok":
                host_bound = earlier.host_bound or samples.host_bound
                timers = " and ".join(dict.fromkeys(filter(None, (earlier.timer, samples.timer))))
                cells[key] = replace(earlier, processes={**earlier.processes, **renumbered}, host_bound=host_bound, timer=timers)
        offset += 1 + max((process for samples in part.cells.values() for process in samples.processes), default=0)
    return replace(
        parts[0],
        source=", ".join(part.source for part in parts),
        runs=tuple(runs),
        cells=cells,
        processes=sum(part.processes for part in parts),
        sittings=merged(sittings),
        units={unit: facts for part in parts for unit, facts in part.units.items()},
        undigested=tuple(file for part in parts for file in part.undigested),
    )


def merged(sittings: Sequence[Sitting]) -> tuple[Sitting, ...]:
    """The sittings in the order of time. Those that are near each other are one, and those of an unknown time join the first."""
    found: list[Sitting] = []
    for one in sorted(sittings, key=lambda sitting: sitting.times or (0.0, 0.0)):
        if found and found[-1].near(one):
            times = [each.times for each in (found[-1], one) if each.times]
            span = (times[0][0], max(end for _, end in times)) if times else None
            found[-1] = Sitting((*found[-1].processes, *one.processes), span)
        else:
            found.append(one)
    return tuple(found)


def yardstick(key: CellKey) -> CellKey:
    """The cell of the yardstick on the same case."""
    return key.with_backend(YARDSTICK)
