"""Runs: plan, measure, store. This module knows the order of the steps; the parent process never imports torch.

    open a session -> load the plugin sources -> plan.
    For each process set and each case: build in all workers at once -> check.
    Then each round: refresh the inputs -> time one batch of each worker -> verify its outputs.
    Last: profile each backend.

Each backend has its own worker, and their order changes from round to round. If the device cannot hold all buffers, workers hold them one
after the other. If it cannot hold all workers, groups of backends run one after the other: the run was then not interleaved.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Protocol

from softbench.core.case import YARDSTICK, Case
from softbench.core.json import JsonObject
from softbench.core.machine import free_memory
from softbench.core.messages import ListUnsupported, Unsupported
from softbench.core.outcome import FAILURES, Record, Status
from softbench.plan.plan import Plan, cases_of
from softbench.plan.settings import KEPT, Settings
from softbench.plugins import static_scan
from softbench.plugins.info import BackendInfo
from softbench.plugins.select import select, unknown_names
from softbench.plugins.source import PluginSource, origins
from softbench.processes.activity import Activity
from softbench.processes.session import Session, choose_device
from softbench.processes.slot import WorkerSlot, distinct
from softbench.processes.worker_pool import Lost, Pool
from softbench.results import writer
from softbench.results.columns import Row
from softbench.run import info_cache, isolation, operations, process_spread, queue, quiet
from softbench.run.cpu_load import CpuLoad
from softbench.run.header import header
from softbench.run.judged_cells import CellJudge
from softbench.run.pace import Pace, Pacing, working
from softbench.run.plan_of import plan_of
from softbench.run.request import RunRequest
from softbench.run.scheduler import Scheduler


class Observer(Protocol):
    """Receives the progress of a run (`softbench.report.progress`)."""

    def watch(self, doing: Callable[[], str]) -> None:
        """The command starts; `doing` says what it waits for."""

    def begin(self, plan: Plan, pace: Pacing, name: str) -> None:
        """The measurement starts; `pace` has the cells and the time that is left."""

    def advance(self, case: Case) -> None:
        """A case is measured."""

    def note(self, text: str, *, error: bool = False) -> None:
        """A note for the user; with `error` one of a loss, which `--quiet` shows too."""


def dry_run(request: RunRequest) -> Plan:
    """The plan of a run. It loads plugins, and neither measures nor writes.

    Without plugins and GPUs, what an earlier command found out suffices. The free memory of a GPU must be asked for.
    """
    settings = request.settings()
    known = _known(settings, operations.sources(_operations(settings), origins(settings.plugins)))
    if known and not known.machine.gpus:
        device, gpu = choose_device(settings.device, known.machine)
        return plan_of(request, replace(known.machine, cpu_free_bytes=free_memory()), device, gpu, known.infos)
    with open_session(settings) as session:
        return _planned(session, request)[0]


def interrupted_run(request: RunRequest, plan: Plan) -> tuple[writer.Run | None, list[tuple[str, bool]]]:
    """The interrupted run that a run of this plan would continue, and what `resumption` tells of it. No file changes."""
    found, note = writer.resume(request.output, header(plan, request), frozenset(plan.cases), look=True, retry=request.retry_failed)
    return found, resumption(request, found, note)


def stored(request: RunRequest, head: JsonObject, cases: Sequence[Case], observer: Observer) -> writer.Run:
    """The interrupted run that this one continues, or a new one. `cases` are those of the plan.

    Raises:
        ResultsError: the folder cannot be written, or there is no run for `--retry-failed`.
    """
    found = None
    if request.resume:
        found, note = writer.resume(request.output, head, frozenset(cases), retry=request.retry_failed)
        for text, loss in resumption(request, found, note):
            observer.note(text, error=loss)
    kept = found or writer.start(request.output, head)
    if kept.warning:
        observer.note(kept.warning)
    return kept


def resumption(request: RunRequest, found: writer.Run | None, note: str) -> list[tuple[str, bool]]:
    """What the user is told about a resumption, and whether it is a loss: a run that is there and not continued, or a part of it."""
    if found is None:
        return [(f"{note}; measuring everything", any(request.output.glob("run-*.jsonl")))]
    return [(note, False), *([(found.lost, True)] if found.lost else [])]


def finish(kept: writer.Run, observer: Observer) -> None:
    """Publish a run, unless nothing was measured. Raises ResultsError if the folder cannot be written."""
    measured = any(row.status == Status.OK for row in kept.rows())
    kept.finish(publish=measured)
    if not measured:
        observer.note("nothing was measured, so latest.csv and latest.json.gz stay those of an earlier run")


def _operations(settings: Settings) -> set[str]:
    return {op for sweep in settings.sweep for op in sweep.op}


def open_session(settings: Settings, activity: Activity | None = None) -> Session:
    """A session with the plugin sources of these settings.

    Raises:
        UsageError: as `Session` and `origins`; also for an unknown backend, if an earlier command found out all that there are.
    """
    sources = operations.sources(_operations(settings), origins(settings.plugins))
    if (known := _known(settings, sources)) and (names := unknown_names(known.infos, settings.backends)):
        select(known.infos, names)
    fresh = settings.caches != KEPT
    return Session(settings.device, settings.timeout["import"], sources, settings.threads, activity, fresh_caches=fresh)


def _known(settings: Settings, sources: Sequence[PluginSource]) -> info_cache.Known | None:
    """What an earlier command found out; None if a plugin's backends may come to it."""
    own = all(source.own for source in sources) and not operations.baselines()
    return info_cache.read(settings.device, sources) if own else None


class Prepared(NamedTuple):
    """What is known before the first measurement."""

    plan: Plan
    slots: list[WorkerSlot]
    """One for each backend; in an interleaved run those that loaded a plugin source have their worker."""
    unsupported: frozenset[tuple[str, Case]]
    """The backends and cases of cells that will be skipped."""


def prepare(session: Session, request: RunRequest) -> Prepared:
    """Load the plugin sources of a run, and plan it.

    Raises:
        UsageError: a device, backend, reference backend or timer does not exist.
    """
    plan, opened = _planned(session, request)
    slots = [slot for info in plan.infos for slot in opened if slot.info is info]
    skipped = unsupported(session.pool, plan, opened)
    session.drop([slot for slot in opened if slot not in slots])
    if len(plan.groups) > 1:
        session.drop(slots)
    return Prepared(plan, slots, skipped)


def _planned(session: Session, request: RunRequest) -> tuple[Plan, list[WorkerSlot]]:
    """The plan of a run, and the slots of the plugin sources that it loaded. Raises as `prepare`."""
    settings = request.settings(session.device)
    cases_of(settings, session.device, request.shard)  # an error of the sweep comes before any plugin is imported
    opened = session.open_for(settings.backends, yardstick=settings.yardstick)
    infos = [slot.info for slot in opened]
    if not operations.baselines():
        info_cache.write(settings.device, session.machine, session.sources, infos)
    return plan_of(request, session.machine, session.device, session.gpu, infos), opened


def infos(settings: Settings, *, load: bool, ops: Sequence[str] = ()) -> list[BackendInfo]:
    """Every backend, available or not. Plugins are only loaded with `load`; otherwise a static scan reads them.

    Of softbench's own backends, what an earlier command found out suffices. `ops` are the problems whose baselines are asked for, if any.
    """
    if ops:
        with Session(settings.device, settings.timeout["import"], operations.sources(ops, origins(settings.plugins))) as session:
            return [slot.info for slot in session.open(session.sources)]
    sources = origins(settings.plugins)
    plugins = tuple(source for source in sources if not source.own)
    found = [] if load else [info for source in plugins for info in static_scan.at(source)]
    known = info_cache.read(settings.device, sources)
    asked = [source for source in sources if (load if source in plugins else not known)]
    slots = [WorkerSlot(info) for info in known.infos] if known else []
    if asked:
        with open_session(settings) as session:
            slots = distinct(slots + session.open(asked))
    opened = [slot.info for slot in slots]
    if not known:
        info_cache.write(settings.device, session.machine, sources, opened)
    return opened + found


def run(
    request: RunRequest, observer: Observer, on_start: Callable[[writer.Run], None], on_plan: Callable[[Plan], None] = lambda plan: None
) -> writer.Run:
    """Plan, measure and store a run. `on_start` gets the run before the first measurement, so that an interruption can name its files.

    `on_plan` gets the plan before any file is written, and also before the run waits for another one. Its errors pass through.

    Raises:
        SoftbenchError: a requested backend, device or folder cannot be used.
        Interrupted: SIGINT or SIGTERM. Every worker has ended, and all measured cells are on disk.
    """
    writer.writable(request.output)  # before any work
    begin = time.monotonic()
    activity = Activity()
    observer.watch(partial(working, activity))
    with ExitStack() as end:
        session, place = in_turn(request, activity, observer, end, on_plan)
        plan, slots, skipped = prepare(session, request)
        for text in plan.lost:
            observer.note(text, error=True)
        for text in plan.notes:
            observer.note(text)
        on_plan(plan)
        load = CpuLoad(observer.note)
        if plan.device == "cpu":
            load.look()
        kept = stored(request, header(plan, request), plan.cases, observer)
        try:
            place.tell(kept.name)
            on_start(kept)
            session.pool.tell(kept.keep_log)
            pace = Pace(plan, activity, kept.has, skipped)
            observer.begin(plan, pace, kept.name)
            judge = end.enter_context(CellJudge(plan, activity))
            failed = kept.first_failures() if plan.of_a_pair else {}
            execute(plan, kept, Watch(observer, pace, load, judge.judged), session.pool, slots, session.environment, failed)
        except BaseException:
            kept.interrupt()
            raise
        wall = activity.before + time.monotonic() - begin
        kept.header["seconds"] = {key: round(value, 3) for key, value in {**activity.seconds, "wall": wall}.items()}
    if spread := process_spread.keep(plan, kept.name, zip(kept.records(), kept.rows(), strict=True)):
        kept.set_facts(spread)
    finish(kept, observer)
    return kept


def in_turn(
    request: RunRequest,
    activity: Activity,
    observer: Observer,
    end: ExitStack,
    on_plan: Callable[[Plan], None] = lambda plan: None,
) -> tuple[Session, queue.Place]:
    """A session whose device no other run measures on, and this run's place in the queue. Both are left with `end`.

    What `prepare` and `on_plan` refuse is refused before a wait.

    Raises:
        NotMeasurableError: other programs use the device for longer than `wait` allows.
    """
    settings = request.settings()
    opened = end.enter_context(ExitStack())
    session = opened.enter_context(open_session(settings, activity))
    place = end.enter_context(queue.place(session.gpu))
    mine = place.take()
    if settings.wait or not mine:
        on_plan(_expected(session, request))
        opened.close()  # its workers hold memory, and what the other run holds would count as taken
        if not mine:
            place.wait(activity, observer.note)
        quiet.wait(session.gpu, settings.wait, activity, observer.note)
        session = opened.enter_context(open_session(settings, activity))
    end.callback(opened.close)  # before the place is left, so that the next run finds the memory free
    return session, place


def _expected(session: Session, request: RunRequest) -> Plan:
    """The plan without loading softbench's own backends, if an earlier command did: another run measures now. Raises as `prepare`."""
    settings = request.settings(session.device)
    known = info_cache.read(settings.device, session.sources)
    if known is None:
        return _planned(session, request)[0]
    given = session.open([source for source in session.sources if not source.own])
    return plan_of(request, session.machine, session.device, session.gpu, [*known.infos, *(slot.info for slot in given)])


def exit_code(records: Sequence[Record] | Sequence[Row]) -> int:
    """0 if a requested backend was measured and no cell is wrong or failed, else 1. The yardstick counts only if it is alone."""
    if any(record.status in FAILURES for record in records):
        return 1
    names = {record.backend for record in records} - {YARDSTICK} or {YARDSTICK}
    return 0 if any(record.status == Status.OK for record in records if record.backend in names) else 1


def unsupported(pool: Pool, plan: Plan, opened: Sequence[WorkerSlot]) -> frozenset[tuple[str, Case]]:
    """The backends and cases of cells that will be skipped, from the worker of each plugin source. One that does not reply is lost."""
    asked = [slot for slot in opened if slot.worker is not None]
    requests = {
        i: (slot.worker, ListUnsupported(names, plan.cases))
        for i, slot in enumerate(asked)
        if slot.worker and (names := tuple(info.name for info in plan.infos if info.able and info.origin == slot.info.origin))
    }
    found: set[tuple[str, Case]] = set()
    for i, reply in (pool.gather(requests, plan.settings.timeout["import"], "import") if requests else {}).items():
        if isinstance(reply, Unsupported):
            named = [(name, place) for name in requests[i][1].names for place in reply.places.get(name, ())]
            found |= {(name, plan.cases[place]) for name, place in named if 0 <= place < len(plan.cases)}
        elif isinstance(reply, Lost):
            asked[i].worker = None
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Watch:
    """What follows a run's cells."""

    observer: Observer
    pace: Pace
    load: CpuLoad
    judged: Callable[[list[Record], int, Callable[[], object]], list[Record]] = lambda records, process, release: records


AHEAD = 2
"""Process sets whose forkservers import torch while an earlier one is measured on a GPU. The import takes longer than a few cells."""


def execute(
    plan: Plan,
    kept: writer.Keeps,
    watch: Watch,
    pool: Pool,
    first: list[WorkerSlot],
    environment: dict[str, str],
    failed: Mapping[Case, int] = MappingProxyType({}),
) -> None:
    """Measure all cells that are not stored yet. `first` are the open slots of the first process set, whose workers live in `pool`.

    In a comparison of two backends, sets after one in which a case has failed leave it out; `failed` has those of an interrupted run.

    Every other set also has a new forkserver: addresses and start-up history differ, as between two runs. With a GPU, forkservers import
    torch while AHEAD sets before theirs are measured; on the CPU that would disturb the measurement.
    """
    cells = [(names, case) for names in plan.groups for case in plan.cases]
    left = [process for process in range(plan.settings.processes) if process == 0 or not all(kept.has(process, *cell) for cell in cells)]
    pools = deque([pool])
    wanted = 1 + (AHEAD if plan.device == "cuda" else 0)
    decided = dict(failed)

    def fresh() -> Pool:
        return end.enter_context(Pool(activity=pool.activity, threads=pool.threads, pythons=pool.pythons))

    with ExitStack() as end:  # closes every pool on every exit
        for number, process in enumerate(left):
            while len(pools) < min(wanted, len(left) - number):
                pools.append(fresh())
            current = pools.popleft()
            current.tell(kept.keep_log)
            slots = [WorkerSlot(info) for info in plan.infos] if process else first
            _one_set(plan, kept, watch, Scheduler(plan, current, process, environment), slots, decided)
            if process:
                current.close()


def _one_set(plan: Plan, kept: writer.Keeps, watch: Watch, scheduler: Scheduler, slots: list[WorkerSlot], failed: dict[Case, int]) -> None:
    """`failed` are the cases of a comparison in which a backend has failed, with the first such set; it gets those of this set."""
    by_name = {slot.name: slot for slot in slots}
    for names in plan.groups:
        start_order = reversed(names) if scheduler.process % 2 else names  # so that starting first favours nobody
        scheduler.take([by_name[name] for name in start_order])
        for case in plan.cases:
            cells = (scheduler.process, names, case)
            if kept.has(*cells):
                continue
            if failed.get(case, scheduler.process) < scheduler.process:
                watch.pace.drop(*cells)
                continue
            watch.pace.begin(*cells, lambda: scheduler.round)
            records = isolation.measure(scheduler, case, watch.observer.note)
            records = watch.judged(records, scheduler.process, lambda: scheduler.release([*scheduler.state]))
            kept.add(scheduler.process, records)
            if plan.of_a_pair and any(record.status in FAILURES for record in records):
                failed.setdefault(case, scheduler.process)
            watch.pace.end(records)
            watch.load.measured(case, records)
            watch.observer.advance(case)
        scheduler.close()
