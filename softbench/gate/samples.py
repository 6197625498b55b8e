"""The gate's input: the round medians of every cell and process of a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, NamedTuple

from softbench.core.case import YARDSTICK, CaseKey
from softbench.core.errors import ResultsError


class CellKey(NamedTuple):
    """One backend on one case."""

    backend: str
    direction: str
    dtype: str
    M: int
    N: int

    @property
    def case(self) -> str:
        """The case's name."""
        return str(CaseKey(*self[1:]))

    def of(self, backend: str) -> CellKey:
        """The cell of another backend on the same case."""
        return self._replace(backend=backend)


class RoundMedian(NamedTuple):
    """The median of one batch, with its round."""

    number: int
    position: int
    """The backend's place in the round's order."""
    median_us: float


@dataclass(frozen=True, slots=True)
class CellSamples:
    """One cell, over all processes."""

    status: str
    """As in the CSV; only `ok` has rounds."""
    reason: str
    grade: str
    processes: dict[int, tuple[RoundMedian, ...]] = field(default_factory=dict)
    host_bound: str = ""
    """If do_bench measured the host: the reason with the kernels' own time. Else empty."""

    def medians_us(self) -> dict[int, float]:
        """Each process's figure: the median of its round medians, microseconds."""
        return {process: median(turn.median_us for turn in rounds) for process, rounds in self.processes.items()}


@dataclass(frozen=True, slots=True)
class RunSamples:
    """One or several runs on one machine."""

    source: str
    """The files, for messages."""
    runs: tuple[str, ...]
    schema: int
    device_name: str
    environment: dict[str, Any]
    settings: dict[str, Any]
    command: str
    cells: dict[CellKey, CellSamples]
    processes: int
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of `softbench` and `git_commit`, if known."""

    def more_processes(self, count: int) -> str:
        """The command that measures the same with this many processes."""
        try:
            words = shlex.split(self.command)
        except ValueError:
            words = []
        if words[:2] != ["softbench", "run"]:
            words = ["softbench", "run"]
        kept, skip = [], False
        for word in words:
            if not skip and word != "--resume" and not word.startswith("--processes"):
                kept.append(word)
            skip = word == "--processes"
        return shlex.join([*kept, "--processes", str(count)])


def join(parts: Sequence[RunSamples]) -> RunSamples:
    """Runs of one machine as one: their processes add up. A cell that failed in one run has failed.

    `softbench.gate.environment_match` checks that they come from one machine. `parts` must not be empty.

    Raises:
        ResultsError: a run is given twice.
    """
    cells: dict[CellKey, CellSamples] = {}
    runs: list[str] = []
    offset = 0
    for part in parts:
        if again := [run for run in part.runs if run in runs]:
            raise ResultsError(f"{part.source}: {again[0]} is given twice; every run counts once")
        runs += part.runs
        for key, series in part.cells.items():
            moved = {process + offset: rounds for process, rounds in series.processes.items()}
            before = cells.get(key)
            if before is None or (before.status == "ok" and series.status != "ok"):
                cells[key] = replace(series, processes=moved)
            elif before.status == "ok":
                cells[key] = replace(before, processes={**before.processes, **moved}, host_bound=before.host_bound or series.host_bound)
        offset += 1 + max((process for series in part.cells.values() for process in series.processes), default=0)
    return replace(
        parts[0],
        source=", ".join(part.source for part in parts),
        runs=tuple(runs),
        cells=cells,
        processes=sum(part.processes for part in parts),
    )


def yardstick(key: CellKey) -> CellKey:
    """The cell of the yardstick on the same case."""
    return key.of(YARDSTICK)
