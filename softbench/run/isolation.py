"""A case in which a worker was killed is measured again, one backend at a time, to find a backend that kills the others.

Plugins have the user's rights, so one can send SIGKILL to all workers and be the only backend with a result. Linux sends it too, if a
machine has no memory left. So each backend is measured again beside one other worker. If that worker is killed again and
the backend is not, the backend gets no result and no more requests. If the forkserver was killed, all workers died with it: the case is
measured again as it was, and one backend at a time if the forkserver is killed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from softbench.core.case import YARDSTICK, Case
from softbench.core.outcome import Failed, Measured, Record, Status
from softbench.processes.slot import WorkerSlot

TIMES = 2
"""Kills beside a backend, each in a measurement of its own, that are evidence: the kernel kills for lack of memory too."""

if TYPE_CHECKING:
    from softbench.run.scheduler import Scheduler


def measure(scheduler: Scheduler, case: Case, note: Callable[[str], object]) -> list[Record]:
    """One case, as `Scheduler.measure`; again in isolation if a worker was killed. `note` gets a text for the user then."""
    before = scheduler.pool.restarts
    records = scheduler.measure(case)
    if scheduler.pool.restarts > before:
        note(f"{case.key}: the forkserver was killed, and not by softbench; a new one is started, and the case is measured again")
        records = scheduler.measure(case)
    killed = _killed(scheduler)
    if not killed or len(scheduler.slots) < 2:
        return records
    names = ", ".join(slot.name for slot in killed)
    note(f"{case.key}: the worker of {names} was killed, and not by softbench; the case is measured again, one backend at a time")
    slots = scheduler.slots
    try:
        return _one_by_one(scheduler, case, {record.backend: record for record in records}, killed)
    finally:
        scheduler.slots = slots


def _one_by_one(scheduler: Scheduler, case: Case, found: dict[str, Record], killed: list[WorkerSlot]) -> list[Record]:
    slots = scheduler.slots
    beside = next((slot for slot in slots if slot.name == YARDSTICK), killed[0])
    scheduler.slots = [beside]
    [alone] = scheduler.measure(case)
    if _killed(scheduler):  # it is killed alone too: no other backend is the cause
        return [found[slot.name] for slot in slots]
    if beside in killed:
        found[beside.name] = alone
    for slot in slots:
        if slot is beside or not (slot in killed or isinstance(found[slot.name].outcome, Measured)):
            continue
        for other in slots:
            other.drop(scheduler.pool)
        slot.deaths = beside.deaths = 0  # a victim is no cause
        scheduler.slots = [slot, beside]
        pair, victim = _beside(scheduler, case, beside)
        if victim:
            reason = f"{victim} was killed {TIMES} times as {beside.name} ran beside this backend, and not as {beside.name} ran alone"
            slot.drop(scheduler.pool)
            slot.info = replace(slot.info, broken=reason, broken_status=Status.FAILED)  # not asked any more
            found[slot.name] = Record(slot.name, case, Failed(Status.FAILED, "time", reason), slot.info.source, scheduler.plan.unit)
        else:
            found[slot.name] = pair[slot.name]
            if beside in killed and isinstance(pair[beside.name].outcome, Measured):
                found[beside.name] = pair[beside.name]
    return [found[slot.name] for slot in slots]


def _beside(scheduler: Scheduler, case: Case, beside: WorkerSlot) -> tuple[dict[str, Record], str]:
    """The records of a backend beside another, and what was killed each of TIMES times: that one alone, or the forkserver."""
    pair: dict[str, Record] = {}
    victim = ""
    for _ in range(TIMES):
        before = scheduler.pool.restarts
        pair = {record.backend: record for record in scheduler.measure(case)}
        beside.deaths = 0
        victim = "the forkserver" if scheduler.pool.restarts > before else f"the worker of {beside.name}"
        if scheduler.pool.restarts == before and _killed(scheduler) != [beside]:
            return pair, ""
    return pair, victim


def _killed(scheduler: Scheduler) -> list[WorkerSlot]:
    return [slot for slot, state in scheduler.state.items() if state.killed]
