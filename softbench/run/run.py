"""The conductor: the only place that knows the order of things. It never imports torch; a probe worker tells it what there is.

    probe the machine -> open the plugins' doors -> for each set of processes, for each case:
        build (all backends at once), check, then rounds: other inputs (beside a GPU all at once), every backend in turn a short
        batch, its outputs verified (beside a GPU all at once); last, each one's profile

Backends are isolated (a worker process each) and interleaved (the rounds' order rotates and reverses) at once. Where their
buffers do not fit on the device together, they take turns holding them; where the device takes only so many processes, the
sweep is run group by group, and the result says that it was not interleaved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from softbench.core.case import YARDSTICK, Case
from softbench.core.errors import ResultsError
from softbench.core.outcome import FAILURES, Record, Status
from softbench.plan import settings as config
from softbench.plan.plan import Plan
from softbench.plugins import static_scan as glance
from softbench.plugins.info import BackendInfo
from softbench.plugins.source import origins
from softbench.processes.pool import Pool
from softbench.processes.slot import WorkerSlot
from softbench.results import store
from softbench.run.scheduler import Scheduler
from softbench.run.session import choose_device, make_plan, open_doors, probe, run_header


class Observer(Protocol):
    """Who watches a run (`softbench.report.progress`)."""

    def begin(self, plan: Plan, cells: int, name: str) -> None:
        """Measuring starts: so many cells, over all sets of processes."""

    def advance(self, case: Case, cells: int, *, stored: bool = False) -> None:
        """So many cells of a case are done; `stored`: before this run began."""

    def note(self, text: str) -> None:
        """Something the user should know."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for: a run, or only the plan of one."""

    file: config.Layer
    flags: config.Layer
    quick: bool
    output: Path
    resume: bool
    command: str
    """The command line, stored beside the figures."""
    version: str


def dry_run(request: Request) -> Plan:
    """The plan that `run` would carry out; plugins are loaded, nothing is measured or written."""
    with Pool() as pool:
        return make_plan(pool, request.file, request.flags, quick=request.quick)[0]


def offers(settings: config.Settings, *, load: bool) -> list[BackendInfo]:
    """Every backend there is, available or not. Only softbench's own code is run, unless `load`: then plugins are, and broken ones told."""
    doors = origins(settings.plugins)
    foreign = () if load else tuple(door for door in doors if not door.own)
    with Pool() as pool:
        look = probe(pool, settings.timeout["import"])
        device, gpu = choose_device(settings.device, look)
        opened = [door for door in doors if door not in foreign]
        lanes = open_doors(pool, opened, device, gpu, look, settings.timeout["import"])
    return [lane.offer for lane in lanes] + [offer for door in foreign for offer in glance.at(door)]


def run(request: Request, observer: Observer, on_start: Callable[[store.Run], None]) -> store.Run:
    """Plan, measure and store a run. `on_start` gets it before the first measurement, so that an interruption can name its files.

    Raises:
        SoftbenchError: something asked for is not there, or cannot be written.
        Interrupted: SIGINT or SIGTERM; every worker is gone, and what was measured is on disk.
    """
    store.writable(request.output)  # before any work
    begin = time.monotonic()
    with Pool() as pool:
        plan, lanes = make_plan(pool, request.file, request.flags, quick=request.quick)
        for text in plan.notes:
            observer.note(text)
        header = run_header(plan, request.command, request.version)
        found = None
        if request.resume:
            found, told = store.resume(request.output, header)
            observer.note(told if found else f"{told}; measuring everything")
        kept = found or store.start(request.output, header)
        on_start(kept)
        pool.tell(kept.keep_log)
        observer.begin(plan, plan.settings.processes * len(plan.cases) * len(plan.offers), kept.name)
        try:
            execute(plan, kept, observer, pool, lanes)
        except BaseException:
            with suppress(ResultsError):
                kept.write_rows()
            raise
        kept.header["seconds"] = {key: round(value, 3) for key, value in {**pool.spent, "wall": time.monotonic() - begin}.items()}
    kept.finish(publish=any(record.status is Status.OK for record in kept.records()))
    return kept


def exit_code(records: Sequence[Record]) -> int:
    """0 when something that was asked for was measured and nothing is wrong or failed, else 1. The yardstick alone counts only alone."""
    if any(record.status in FAILURES for record in records):
        return 1
    names = {record.backend for record in records} - {YARDSTICK} or {YARDSTICK}
    return 0 if any(record.status is Status.OK for record in records if record.backend in names) else 1


def execute(plan: Plan, kept: store.Run, observer: Observer, pool: Pool, first: list[WorkerSlot]) -> None:
    """Measure all that is not stored yet. `first` are the lanes that planning left open in `pool`, for the first set of processes.

    Every further set has a nursery of its own too: addresses and start-up history differ, as between two runs. Beside a GPU it imports
    torch while the set before is measured; on a CPU that would take from what is measured.
    """
    left = [process for process in range(plan.settings.processes) if process == 0 or not _complete(plan, kept, process)]
    observer.advance(plan.cases[-1], (plan.settings.processes - len(left)) * len(plan.cases) * len(plan.offers), stored=True)
    ahead: Pool | None = pool
    with ExitStack() as end:  # of every pool, however this is left
        for process, more in zip(left, [*left[1:], None], strict=True):
            current = ahead or end.enter_context(Pool(spent=pool.spent))
            ahead = end.enter_context(Pool(spent=pool.spent)) if more is not None and plan.device == "cuda" else None
            current.tell(kept.keep_log)
            _one_set(plan, kept, observer, current, [WorkerSlot(offer) for offer in plan.offers] if process else first, process)
            if process:
                current.close()


def _complete(plan: Plan, kept: store.Run, process: int) -> bool:
    return all(kept.has(process, names, case) for names in plan.groups for case in plan.cases)


def _one_set(plan: Plan, kept: store.Run, observer: Observer, pool: Pool, lanes: list[WorkerSlot], process: int) -> None:
    by_name = {lane.name: lane for lane in lanes}
    for names in plan.groups:
        ensemble = Scheduler(plan, pool, [by_name[name] for name in names], process)
        for case in plan.cases:
            stored = kept.has(process, names, case)
            if not stored:
                kept.add(process, ensemble.measure(case))
            observer.advance(case, len(names), stored=stored)
        ensemble.close()
