"""Worker slots: a backend's place in a run, with its present worker, and the rule that gives up on a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from softbench.core.messages import LoadSource
from softbench.core.outcome import Failed, Outcome, Skipped, Status
from softbench.core.replies import INVALID, INVALID_REPLY, Failure, Loaded
from softbench.ops import registry
from softbench.plugins.info import BackendInfo, info_from_json
from softbench.plugins.source import PluginSource, safe_name
from softbench.processes.pool import Lost, Pool, Worker

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
    return LoadSource(asdict(source), device, name, registry.files())


def discover(
    pool: Pool, sources: Sequence[PluginSource], device: str, env: dict[str, str], deadline: float, *, together: bool
) -> list[WorkerSlot]:
    """Load every plugin source in its own worker.

    A source that raises, crashes or hangs becomes one broken info with the source's label. `together` loads all at once. Otherwise
    each worker ends before the next starts, for a GPU that takes one process at a time.
    """
    slots: list[WorkerSlot] = []
    for batch in [sources] if together else [[source] for source in sources]:
        workers = [pool.spawn(source.label, env) for source in batch]
        requests = {i: (worker, load_request(source, device)) for i, (worker, source) in enumerate(zip(workers, batch, strict=True))}
        replies = pool.gather(requests, deadline, "import")
        for i, (worker, source) in enumerate(zip(workers, batch, strict=True)):
            infos = infos_of(source, replies[i])
            found = [WorkerSlot(info) for info in infos]
            if together and not infos[0].broken:
                found[0].worker = worker
                worker.label = found[0].name  # it is this backend's from now on, and so is what it writes
            else:
                pool.discard(worker)
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
    except INVALID:
        return [BackendInfo(source.label, source, broken=f"import: {INVALID_REPLY}")]
    return infos or [BackendInfo(source.label, source, broken="import: it offers no backend")]


def revive(pool: Pool, slots: Sequence[WorkerSlot], device: str, env: dict[str, str], deadline: float) -> dict[WorkerSlot, Failed]:
    """Give slots without a worker new ones, all at once; a Failed for each whose plugin does not load."""
    fresh = {i: (pool.spawn(slot.name, env), load_request(slot.info.origin, device, slot.name)) for i, slot in _idle(slots)}
    lost: dict[WorkerSlot, Failed] = {}
    for i, reply in (pool.gather(fresh, deadline, "import") if fresh else {}).items():
        slot, (worker, _) = slots[i], fresh[i]
        [info, *_] = infos_of(slot.info.origin, reply)
        if info.broken:
            pool.discard(worker)
            slot.deaths += 1
            lost[slot] = Failed(Status(info.broken_status), "import", info.broken)
        else:
            slot.worker = worker
    return lost


def _idle(slots: Sequence[WorkerSlot]) -> list[tuple[int, WorkerSlot]]:
    return [(i, slot) for i, slot in enumerate(slots) if slot.worker is None]
