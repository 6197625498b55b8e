"""Worker slots: a backend's place in a run, with its present worker, how it is loaded, and the rule that gives up on a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from softbench.core.case import safe_name
from softbench.core.json import to_json
from softbench.core.messages import INVALID_REPLY, Failure, Loaded, LoadSource
from softbench.core.outcome import Failed, Outcome, Skipped, Status
from softbench.ops import registry
from softbench.plugins.info import BackendInfo, info_from_json
from softbench.plugins.source import PluginSource
from softbench.processes.worker_pool import Lost, NotStartedError, Pool, Worker

BUILDING = 5
"""So many times the deadline of an import has a source that compiles in it: by default as long as a build."""
MAX_DEATHS = 3  # cases in a row that lose a worker; after them the backend is not tried again


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """A backend and its worker, if that is alive."""

    info: BackendInfo
    worker: Worker | None = None
    deaths: int = 0
    """Cases in a row in which the worker was lost."""

    @property
    def name(self) -> str:
        return self.info.name

    def barred(self, last: Failed | None) -> Outcome | None:
        """Why this slot is not asked, or None. `last` is its latest failure."""
        if self.info.broken:
            return Failed(Status(self.info.broken_status), "import", self.info.broken)
        if self.info.unavailable:
            return Skipped(self.info.unavailable, unavailable=True)
        if self.deaths >= MAX_DEATHS and last is not None:
            return Failed(last.status, last.stage, f"not tried: {MAX_DEATHS} cases in a row ended its worker; the last {last.reason}")
        return None

    def drop(self, pool: Pool) -> None:
        """End the worker, if it is alive."""
        if self.worker is not None:
            pool.discard(self.worker)
            self.worker = None


def load_request(source: PluginSource, device: str, name: str | None = None) -> LoadSource:
    """The request that loads a backend in a worker."""
    return LoadSource(to_json(source), device, name, registry.files(), registry.layouts(), registry.solved_by(source.target))


def load_all(pool: Pool, sources: Sequence[PluginSource], device: str, env: Mapping[str, str], deadline: float) -> list[WorkerSlot]:
    """Load plugin sources, all at once. Their slots; the first of a source has its worker.

    A source that raises, crashes or hangs becomes one broken info with the source's label.
    """
    requests = [load_request(source, device) for source in sources]
    asked = {i: (started(pool, sources[i].label, env, request), request) for i, request in enumerate(requests)}
    found = loaded(pool, asked, env, _deadline(sources, deadline))
    slots = []
    for i, source in enumerate(sources):
        worker, reply = found[i]
        own = [WorkerSlot(info) for info in infos_of(source, reply)]
        if worker is not None and own[0].info.broken:
            pool.discard(worker)
        elif worker is not None:
            own[0].worker = worker
            worker.label = own[0].name  # it is this backend's from now on, and so is what it writes
        slots += own
    return slots


def _deadline(sources: Sequence[PluginSource], seconds: float) -> float:
    """The deadline of an import, which is longer if a source compiles then."""
    return seconds * (BUILDING if any(source.builds_at_import for source in sources) else 1)


def started(pool: Pool, label: str, env: Mapping[str, str], request: LoadSource) -> Worker | Lost:
    """A new worker for what it is to load, or why there is none."""
    try:
        return pool.spawn(label, env, request.source["python"])
    except NotStartedError as error:
        return Lost(Status.FAILED, f"import: {error}")


def loaded(
    pool: Pool, asked: Mapping[int, tuple[Worker | Lost, LoadSource]], env: Mapping[str, str], deadline: float
) -> dict[int, tuple[Worker | None, Loaded | Failure | Lost]]:
    """The worker and the reply of each `LoadSource`.

    What died with the forkserver is loaded again, one after the other: a plugin that ends the forkserver is alone then.
    """
    found: dict[int, tuple[Worker | None, Loaded | Failure | Lost]]
    found = {i: (None, worker) for i, (worker, _) in asked.items() if isinstance(worker, Lost)}
    requests = {i: (worker, request) for i, (worker, request) in asked.items() if isinstance(worker, Worker)}
    replies = pool.gather(requests, deadline, "import") if requests else {}
    for i, reply in replies.items():
        found[i] = requests[i][0], reply
    for i, reply in replies.items():
        if isinstance(reply, Lost) and reply.orphan:
            worker = started(pool, requests[i][0].label, env, requests[i][1])
            found[i] = (None, worker) if isinstance(worker, Lost) else (worker, pool.ask(worker, requests[i][1], deadline, "import"))
    return found


def discover(
    pool: Pool, sources: Sequence[PluginSource], device: str, env: Mapping[str, str], deadline: float, *, together: bool
) -> list[WorkerSlot]:
    """The slots of all sources. `together` loads all at once. Otherwise each worker ends before the next starts, for a GPU that takes
    one process at a time.
    """
    if together:
        return distinct(load_all(pool, sources, device, env, deadline))
    slots: list[WorkerSlot] = []
    for source in sources:
        found = load_all(pool, [source], device, env, deadline)
        for slot in found:
            slot.drop(pool)
        slots += found
    return distinct(slots)


def distinct(slots: list[WorkerSlot]) -> list[WorkerSlot]:
    """A broken info has its file's stem as name; if another backend has that name, it takes the file's whole name."""
    names = [slot.name for slot in slots]
    for slot in slots:
        if slot.info.broken and names.count(slot.name) > 1:
            slot.info = replace(slot.info, name=safe_name(Path(slot.info.origin.target).name))
    return slots


def infos_of(source: PluginSource, reply: Loaded | Failure | Lost) -> list[BackendInfo]:
    """The infos in the reply to a `LoadSource`; one broken info if it failed."""
    if isinstance(reply, Lost):
        return [BackendInfo(source.label, source, broken=reply.reason, broken_status=reply.status)]
    if isinstance(reply, Failure):
        return [BackendInfo(source.label, source, broken=f"import: {reply.reason}")]
    try:
        infos = [info_from_json(data, source) for data in reply.infos]
    except ValueError:
        return [BackendInfo(source.label, source, broken=f"import: {INVALID_REPLY}")]
    return infos or [BackendInfo(source.label, source, broken="import: it offers no backend")]


def revive(pool: Pool, slots: Sequence[WorkerSlot], device: str, env: dict[str, str], deadline: float) -> dict[WorkerSlot, Failed]:
    """Give slots without a living worker new ones, all at once; a Failed for each whose plugin does not load."""
    idle = [(i, slot) for i, slot in enumerate(slots) if slot.worker is None or slot.worker.orphan]
    requests = {i: load_request(slot.info.origin, device, slot.name) for i, slot in idle}
    asked = {i: (started(pool, slots[i].name, env, request), request) for i, request in requests.items()}
    lost: dict[WorkerSlot, Failed] = {}
    for i, (worker, reply) in loaded(pool, asked, env, _deadline([slot.info.origin for _, slot in idle], deadline)).items():
        slot = slots[i]
        [info, *_] = infos_of(slot.info.origin, reply)
        slot.worker = worker
        if info.broken:
            slot.drop(pool)
            slot.deaths += worker is not None
            lost[slot] = Failed(Status(info.broken_status), "import", info.broken)
    return lost
