"""One backend's place in a run: its worker over all the worker's lives, and when to give up on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from softbench.core.channel import Message
from softbench.core.outcome import Failed, Outcome, Skipped, Status
from softbench.plugins.info import BackendInfo, info_from_json
from softbench.plugins.source import PluginSource, safe_name
from softbench.processes.pool import Lost, Pool, Reply, Worker

MAX_DEATHS = 3  # cases in a row that end a worker: the next ones would only cost their deadlines


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """A backend and, while it is alive, its worker."""

    offer: BackendInfo
    worker: Worker | None = None
    deaths: int = 0
    """Cases in a row in which its worker was lost."""

    @property
    def name(self) -> str:
        return self.offer.name

    def barred(self, last: Failed | None) -> Outcome | None:
        """Why this lane need not be asked at all, or None. `last` is how it ended the latest case it failed."""
        if self.offer.broken:
            return Failed(Status(self.offer.broken_status), "import", self.offer.broken)
        if self.offer.unavailable:
            return Skipped(self.offer.unavailable, unavailable=True)
        if self.deaths >= MAX_DEATHS and last is not None:
            return Failed(last.status, last.stage, f"not tried: {MAX_DEATHS} cases in a row ended its worker; the last {last.reason}")
        return None

    def drop(self, pool: Pool) -> None:
        """End the worker, if there is one."""
        if self.worker is not None:
            pool.discard(self.worker)
            self.worker = None


def load_message(door: PluginSource, device: str, name: str | None = None) -> Message:
    """The request that makes a worker a backend's."""
    return {"op": "load", "origin": asdict(door), "device": device, "name": name}


def discover(
    pool: Pool, doors: Sequence[PluginSource], device: str, env: dict[str, str], deadline: float, *, together: bool
) -> list[WorkerSlot]:
    """Open every door in a worker of its own and see what stands behind it.

    A door that raises, crashes or hangs is one broken offer under its own label. `together`: all at once; otherwise one after
    the other, each worker ended before the next starts (a GPU that takes one process at a time).
    """
    lanes: list[WorkerSlot] = []
    for batch in [doors] if together else [[door] for door in doors]:
        workers = [pool.spawn(door.label, env) for door in batch]
        requests = {i: (worker, load_message(door, device)) for i, (worker, door) in enumerate(zip(workers, batch, strict=True))}
        replies = pool.gather(requests, deadline, "import")
        for i, (worker, door) in enumerate(zip(workers, batch, strict=True)):
            offers = offers_of(door, replies[i])
            found = [WorkerSlot(offer) for offer in offers]
            if together and not offers[0].broken:
                found[0].worker = worker
                worker.label = found[0].name  # it is this backend's from now on, and so is what it writes
            else:
                pool.discard(worker)
            lanes += found
    return distinct(lanes)


def distinct(lanes: list[WorkerSlot]) -> list[WorkerSlot]:
    """What did not load goes by its file's stem; where another owns that name, it takes the file's whole name."""
    names = [lane.name for lane in lanes]
    for lane in lanes:
        if lane.offer.broken and names.count(lane.name) > 1:  # what did not load goes by its file's stem, which another may own
            lane.offer = replace(lane.offer, name=safe_name(Path(lane.offer.origin.target).name))
    return lanes


def offers_of(door: PluginSource, reply: Reply) -> list[BackendInfo]:
    """What a `load` was answered with, as offers."""
    if isinstance(reply, Lost):
        return [BackendInfo(door.label, door, broken=reply.reason, broken_status=reply.status)]
    try:
        if "failed" in reply:
            return [BackendInfo(door.label, door, broken=f"import: {reply['failed']['reason']}")]
        return [info_from_json(data, door) for data in reply["offers"]] or [
            BackendInfo(door.label, door, broken="import: it offers no backend")
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        return [BackendInfo(door.label, door, broken="import: its process gave an answer that is none")]


def revive(pool: Pool, lanes: Sequence[WorkerSlot], device: str, env: dict[str, str], deadline: float) -> dict[WorkerSlot, Failed]:
    """Give lanes without a worker fresh ones, all at once; a Failed of each whose plugin does not load this time."""
    fresh = {i: (pool.spawn(lane.name, env), load_message(lane.offer.origin, device, lane.name)) for i, lane in _idle(lanes)}
    lost: dict[WorkerSlot, Failed] = {}
    for i, reply in (pool.gather(fresh, deadline, "import") if fresh else {}).items():
        lane, (worker, _) = lanes[i], fresh[i]
        [offer, *_] = offers_of(lane.offer.origin, reply)
        if offer.broken:
            pool.discard(worker)
            lane.deaths += 1
            lost[lane] = Failed(Status(offer.broken_status), "import", offer.broken)
        else:
            lane.worker = worker
    return lost


def _idle(lanes: Sequence[WorkerSlot]) -> list[tuple[int, WorkerSlot]]:
    return [(i, lane) for i, lane in enumerate(lanes) if lane.worker is None]
