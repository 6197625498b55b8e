"""From settings, a machine and backends to a plan: the cases, and which workers run together. Starts no process, reads no file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

from softbench.core.case import CPU_TIMER, MAX_CELLS, REFERENCE, TIMERS, Case
from softbench.core.errors import UsageError
from softbench.core.json import JsonObject
from softbench.core.machine import Gpu, Machine, unit_of
from softbench.core.outcome import Status
from softbench.core.text import count, size, unknown
from softbench.ops.operation import ELEMENT_BYTES, Operation
from softbench.ops.registry import operation
from softbench.plan.deal import Shard, of_shard
from softbench.plan.sweep import cases as cases_of_sweeps
from softbench.plugins.info import BackendInfo

if TYPE_CHECKING:
    from softbench.plan.settings import Settings

CONTEXT_BYTES = {"cuda": 800 * 2**20, "cpu": 400 * 2**20}
"""Memory of a worker before any case: a CUDA context and do_bench's 256 MiB flush buffer; on the CPU, torch and Inductor."""
WORKING_TENSORS = 12
"""Tensors of a case's largest size that a worker holds at once, at most.

Inputs twice (copies or the second set), outputs of four calls (a probe holds one), and temporaries of `naive`.
"""
CHECK_BYTES = 640 * 2**20
"""The float64 temporaries of a check (`softbench.ops.check.CHUNK_BYTES`), with a margin."""
WHOLE_TEMPORARIES = 6
"""Tensors of the largest size, in float64, that the check of a case that is whole holds beside them, at most."""

IsStored = Callable[[int, Sequence[str], Case], bool]
"""Whether an interrupted run has the cells of these backends on a case, in a process set."""


def nothing_stored(process: int, names: Sequence[str], case: Case) -> bool:
    """For a plan without an interrupted run."""
    return False


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures, decided before it starts."""

    settings: Settings
    cases: tuple[Case, ...]
    infos: tuple[BackendInfo, ...]
    device: str
    """`cuda` or `cpu`."""
    device_name: str
    free_bytes: int
    groups: tuple[tuple[str, ...], ...]
    """Backends whose workers run at the same time. One group means an interleaved run."""
    facts: dict[str, object]
    """Facts about the machine; results store them."""
    notes: tuple[str, ...]
    """Notes for the user before the run starts."""
    lost: tuple[str, ...] = ()
    """Notes about what the run leaves out although the user named it. `--quiet` shows them too."""

    @property
    def unit(self) -> str:
        """The unit that measures."""
        return str(self.facts.get("unit", ""))

    @property
    def timer(self) -> str:
        """The timer of the median."""
        return self.settings.timer if self.device == "cuda" else CPU_TIMER

    @property
    def l2(self) -> str:
        """`cold` or `warm`; empty on the CPU."""
        return self.settings.l2 if self.device == "cuda" else ""

    @property
    def of_a_pair(self) -> bool:
        """True for an A/B run of two backends, which are compared with nothing else."""
        return len(self.infos) == 2 and not self.settings.yardstick

    def takes_turns(self, case: Case, workers: int) -> bool:
        """True if this many workers cannot all hold the case's buffers at once."""
        return workers * (CONTEXT_BYTES[self.device] + _held_bytes(case)) > self.settings.memory_share * self.free_bytes

    def too_large(self, case: Case) -> str:
        """Why the device cannot hold even one set of the case's tensors; empty if it can."""
        needed = operation(case.op).distinct_bytes(case)
        return f"its tensors need {size(needed)}; {size(self.free_bytes)} are free" if needed > self.free_bytes else ""

    def left(self, stored: IsStored = nothing_stored) -> dict[Case, int]:
        """The cases that are not `stored` in all process sets, with their number of cells to measure."""
        able = {info.name for info in self.infos if info.able}
        found: dict[Case, int] = {}
        for process, names, case in product(range(self.settings.processes), self.groups, self.cases):
            if not stored(process, names, case):
                found[case] = found.get(case, 0) + (0 if self.too_large(case) else len(able.intersection(names)))
        return {case: found[case] for case in self.cases if case in found}

    def document(self, estimate_seconds: float, run: str = "", stored: IsStored = nothing_stored) -> JsonObject:
        """The plan as JSON, with its estimated wall time. `run` is the interrupted run that it continues, if there is one.

        A cell's status is `planned`, `stored` in all process sets, or why it has no bandwidth.
        """
        settings, left = self.settings, self.left(stored)
        cells = sum(left.values())
        return {
            "device": self.device,
            "device_name": self.device_name,
            "timer": self.timer,
            "rounds": [settings.rounds, settings.max_rounds],
            "processes": settings.processes,
            "interleaved": len(self.groups) == 1,
            "estimate_s": round(estimate_seconds, 3),
            "notes": [*self.lost, *self.notes],
            "resumes": run,
            "cells_left": cells,
            "cells_stored": sum(self.left().values()) - cells,
            "cells": [self._cell(case, info, stored=case not in left) for case in self.cases for info in self.infos],
        }

    def _cell(self, case: Case, info: BackendInfo, *, stored: bool) -> JsonObject:
        status, reason = "stored" if stored else "planned", ""
        if info.broken:
            status, reason = info.broken_status, info.broken
        elif info.unavailable:
            status, reason = Status.UNAVAILABLE.value, info.unavailable
        elif reason := self.too_large(case):
            status = Status.OOM.value
        axes = case.identity._asdict()
        return {"backend": info.name, **axes, "tensor_bytes": operation(case.op).largest_bytes(case), "status": status, "reason": reason}


def require_few_cells(cases: int, backends: int, shard: Shard | None, cards: int = 1) -> None:
    """Raises a UsageError if a run has more cells than a results file may have. Each of the `cards` measures all cases."""
    cells = cases * backends * cards
    if cells > MAX_CELLS:
        product = " x ".join([count(cases, "case"), count(backends, "backend"), *([count(cards, "card")] if cards > 1 else [])])
        parts = -(-cells * (shard.of if shard else 1) // MAX_CELLS)
        raise UsageError(
            f"{product} = {cells} cells, and a results file has at most {MAX_CELLS}: "
            f"take fewer --backends or shapes, or measure a part with softbench run --shard 1/{parts}"
        )


def most_alive(cases: Sequence[Case], device: str, budget: float) -> int:
    """How many workers fit into `budget` bytes if one worker at a time holds a case's buffers."""
    operations = tuple(operation(op) for op in dict.fromkeys(case.op for case in cases))
    return max(1, int((budget - _most_held_bytes(tuple(cases), operations)) // CONTEXT_BYTES[device]))


def _held_bytes(case: Case) -> int:
    """What a worker holds while it measures and checks a case, at most, beside its context."""
    largest = operation(case.op).largest_bytes(case)
    doubles = WHOLE_TEMPORARIES * largest * 8 // ELEMENT_BYTES[case.dtype] if operation(case.op).is_whole(case) else 0
    return WORKING_TENSORS * largest + CHECK_BYTES + doubles


@lru_cache(maxsize=2)  # each card of a fleet asks
def _most_held_bytes(cases: tuple[Case, ...], operations: tuple[Operation, ...]) -> int:
    """Of any case, as long as the operations are declared so."""
    return max(map(_held_bytes, cases), default=CHECK_BYTES)


def in_groups(names: Sequence[str], most: int, idle: Sequence[str] = ()) -> tuple[tuple[str, ...], ...]:
    """The names in ordered groups of at most `most`. The last group also has the `idle` names, which never have a worker."""
    groups = [tuple(names[i : i + most]) for i in range(0, len(names), most)] or [()]
    return (*groups[:-1], (*groups[-1], *idle))


def cases_of(settings: Settings, device: str, shard: Shard | None = None) -> tuple[Case, ...]:
    """The cases of a run on this device, or of one shard of it.

    Raises:
        UsageError: the device has no such timer or no threads, there are too many cases, or the shard has none.
    """
    if device == "cpu" and (settings.timer, settings.l2) != (TIMERS[0], "cold"):
        raise UsageError(f"--timer and --l2 need a GPU; on the CPU take --timer {TIMERS[0]} --l2 cold, where the timer is {CPU_TIMER}")
    if device != "cpu" and settings.threads is not None:
        raise UsageError("--threads sets the threads of a CPU run; leave it out, or add --device cpu")
    every = cases_of_sweeps(settings.sweep, device)
    return of_shard(every, shard) if shard else every


def make(
    settings: Settings, cases: Sequence[Case], machine: Machine, gpu: Gpu | None, infos: Sequence[BackendInfo], *, asked: bool = False
) -> Plan:
    """Plan a run of these cases. `gpu` is None on the CPU; `infos` are the selected backends.

    `asked`: the user named the reference backend, so a missing one is an error.

    Raises:
        UsageError: the reference backend is not selected.
    """
    device = "cuda" if gpu else "cpu"
    settings = _with_reference(settings, infos, asked=asked)
    free = gpu.free_bytes if gpu else machine.cpu_free_bytes
    exclusive = gpu is not None and gpu.exclusive
    most = 1 if exclusive else most_alive(cases, device, settings.memory_share * free)
    able = [info.name for info in infos if info.able]
    groups = in_groups(able, most, [info.name for info in infos if not info.able])
    notes = []
    if len(groups) > 1:
        why = "the GPU is in an exclusive compute mode" if exclusive else "memory holds no more workers"
        notes.append(f"not interleaved: {why}, so {most} of {len(able)} backends are alive at a time")
    if others := int(str(gpu.facts.get("gpu_other_processes") or 0)) if gpu else 0:
        processes = "1 other process is" if others == 1 else f"{others} other processes are"
        notes.append(f"{processes} using this GPU; results may be disturbed")
    lost = tuple(line for name in dict.fromkeys(case.operation for case in cases) for line in operation(name).lost)
    about = {"device": device, "interleaved": len(groups) == 1, "unit": unit_of(machine, gpu)}
    facts = {**machine.software, **(gpu.facts if gpu else {}), **about}
    name = gpu.name if gpu else machine.cpu
    return Plan(settings, tuple(cases), tuple(infos), device, name, free, groups, facts, tuple(notes), lost)


def _with_reference(settings: Settings, infos: Sequence[BackendInfo], *, asked: bool) -> Settings:
    names = [info.name for info in infos]
    if settings.relative_to in names:
        return settings
    if REFERENCE in names and not asked:
        return replace(settings, relative_to=REFERENCE)
    if asked:
        raise UsageError(f"--relative-to: {unknown(settings.relative_to, names, 'backend of this run')}; --backends takes more")
    return replace(settings, relative_to="")
