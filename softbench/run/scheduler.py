"""Measures the backends of a case together: it builds and checks all at once, times them interleaved, and profiles them last."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from softbench.core import statistics, stopping
from softbench.core.case import YARDSTICK, Case
from softbench.core.channel import Message
from softbench.core.outcome import (
    Accuracy,
    Batch,
    Build,
    Checked,
    Failed,
    Grade,
    Measured,
    Outcome,
    Profile,
    Record,
    Skipped,
    Status,
    Timing,
)
from softbench.plan.plan import Plan
from softbench.processes.pool import Lost, Pool
from softbench.processes.slot import WorkerSlot, revive
from softbench.results import records

PROFILE_MS = 3.0
"""Time of a profile: about thirty calls, if the flush of L2 dominates. Device times scatter little, and each cell pays for it."""
PAUSES_SECONDS = (0.5, 2.0, 5.0)
"""Pauses before a batch of a throttled GPU is measured again; each is used once."""
PATIENCE_SECONDS = 120.0
"""Sum of such pauses in a sweep. A GPU that is always throttled is then measured as it is, and labelled."""


@dataclass(slots=True)
class SlotState:
    """How far one slot is with the current case."""

    build: Build | None = None
    accuracy: Accuracy | None = None
    batches: list[Batch] = field(default_factory=list)
    profile: Profile = field(default_factory=Profile)
    outcome: Outcome | None = None
    retried: bool = False


class Scheduler:
    """The slots that are measured together, one case after the other."""

    pause = staticmethod(time.sleep)

    def __init__(self, plan: Plan, pool: Pool, process: int, environment: dict[str, str]) -> None:
        """`process` is the number of the process set; `environment` is added to every worker's environment."""
        self.plan, self.pool, self.process, self.environment = plan, pool, process, environment
        self.deadlines = plan.settings.timeout
        self.take([])

    def take(self, slots: list[WorkerSlot]) -> None:
        """Measure these slots from now on."""
        self.slots = slots
        self.patience_seconds = PATIENCE_SECONDS
        self.last_failure: dict[WorkerSlot, Failed] = {}
        self.state: dict[WorkerSlot, SlotState] = {}

    def measure(self, case: Case) -> list[Record]:
        """Build, check and time one case; a record for every slot, whatever happened to it."""
        self.state = {slot: SlotState(outcome=slot.barred(self.last_failure.get(slot))) for slot in self.slots}
        turns = self.plan.takes_turns(case, len(self._going()))
        self._revive(self._going(), case)
        for together in [[slot] for slot in self._going()] if turns else [self._going()]:
            self._build_and_check(together, case, turns)
        if any(state.retried for state in self.state.values()) and not turns:
            turns = True
            self._release(self._going())
        for turn in range(self.plan.settings.max_rounds):
            self._round(round_order(self._wanting(turn), turn), turn, turns)
        if self.process == 0:  # what a call costs apart is no matter of processes
            for together in [[slot] for slot in self._going()] if turns else [self._going()]:
                self._profile(together)
                if turns:
                    self._release(together)
        return [self._record(slot, case) for slot in self.slots]

    def close(self) -> None:
        """End the workers of all slots."""
        self.pool.discard(*[slot.worker for slot in self.slots if slot.worker is not None])
        for slot in self.slots:
            slot.worker = None

    def _revive(self, slots: list[WorkerSlot], case: Case) -> None:
        for slot, failed in revive(self.pool, slots, case.device, self.environment, self.deadlines["import"]).items():
            self._end(slot, failed)

    def _going(self) -> list[WorkerSlot]:
        return [slot for slot in self.slots if self.state[slot].outcome is None]

    def _wanting(self, turn: int) -> list[WorkerSlot]:
        """Who takes part in this round: all until the floor, then those whose figure is not known, and whom they are compared with."""
        going = self._going()
        if turn < self.plan.settings.rounds:
            return going
        unknown = [slot for slot in going if not self._known(slot)]
        partners = (YARDSTICK, self.plan.settings.relative_to) if unknown else ()
        return [slot for slot in going if slot in unknown or slot.name in partners]

    def _known(self, slot: WorkerSlot) -> bool:
        settings = self.plan.settings
        rounds = [batch.samples_us for batch in statistics.counted(self.state[slot].batches)]
        return stopping.settled(rounds, settings.precision, settings.tick_us)

    def _stopped(self, slot: WorkerSlot) -> str:
        if self.plan.settings.rounds == self.plan.settings.max_rounds:
            return stopping.FIXED
        return stopping.PRECISE if self._known(slot) else stopping.LIMIT

    def _build_and_check(self, slots: list[WorkerSlot], case: Case, turns: bool) -> None:
        build = {"op": "build", "case": asdict(case), "seed": self.plan.settings.seed}
        for slot, reply in self._ask(slots, build, "build").items():
            self._take(slot, reply, partial(self._built, slot), "build")
        for slot, reply in self._ask([slot for slot in slots if slot in self._going()], {"op": "check"}, "check").items():
            self._take(slot, reply, partial(self._judge, slot), "check")
        self._retry_out_of_memory(slots, case, turns)
        if turns:
            self._release([slot for slot in slots if slot in self._going()])

    def _built(self, slot: WorkerSlot, reply: dict[str, Any]) -> None:
        if reason := reply.get("skip"):
            self.state[slot].outcome = Skipped(str(reason))
        else:
            self.state[slot].build = records.build_from_json(reply["build"])

    def _judge(self, slot: WorkerSlot, reply: dict[str, Any]) -> None:
        state = self.state[slot]
        untimed = str(reply.get("untimed", ""))
        state.accuracy = accuracy = records.accuracy_from_json(reply["accuracy"])
        if accuracy.grade is Grade.WRONG:
            self._end(slot, Failed(Status.WRONG, "check", accuracy.detail))
        elif accuracy.grade is Grade.UNVERIFIED:
            self._end(slot, Failed(Status.UNVERIFIED, "check", accuracy.detail))
        elif untimed and state.build is not None:
            state.outcome = Checked(state.build, accuracy, untimed)

    def _retry_out_of_memory(self, slots: list[WorkerSlot], case: Case, turns: bool) -> None:
        """Once, in a fresh worker, with everyone else's buffers given back."""
        short = [slot for slot in slots if isinstance(o := self.state[slot].outcome, Failed) and o.status is Status.OOM]
        short = [slot for slot in short if not self.state[slot].retried]
        if not short:
            return
        self._release(self._going())
        for slot in short:
            slot.drop(self.pool)
            self.state[slot] = SlotState(retried=True)
            self._revive([slot], case)
            if self.state[slot].outcome is None:
                self._build_and_check([slot], case, turns=True)

    def _round(self, slots: list[WorkerSlot], turn: int, turns: bool) -> None:
        """A batch of each, in this order; of a throttled GPU again after a pause, as long as there is patience. What was throttled is kept,
        and marked."""
        places = {slot: position for position, slot in enumerate(slots)}
        # Beside a GPU the hosts' work between batches is done at once; on a CPU its threads would still spin beside the first batch.
        for together in [[slot] for slot in slots] if turns or self.plan.device != "cuda" else [slots]:
            self._batches(together, turn, places)
            for seconds in PAUSES_SECONDS:
                hot = [slot for slot in together if slot in self._going() and self.state[slot].batches[-1].throttled]
                if not hot or seconds > self.patience_seconds:
                    break
                self.patience_seconds -= seconds
                self.pause(seconds)
                self._batches(hot, turn, places)
            if turns:
                self._release(together)

    def _batches(self, slots: list[WorkerSlot], turn: int, places: Mapping[WorkerSlot, int]) -> None:
        """Renew the inputs of all, time one after the other, verify what was timed of all."""
        renewed = self._ask(slots, {"op": "renew", "l2": self.plan.l2}, "time")
        for slot in slots:
            if slot in renewed:
                self._batch(slot, turn, places[slot])
        timed = [slot for slot in slots if slot in renewed and slot in self._going()]
        for slot, reply in self._ask(timed, {"op": "verify"}, "time").items():
            self._take(slot, reply, partial(self._verified, slot), "time")

    def _batch(self, slot: WorkerSlot, turn: int, position: int) -> None:
        settings = self.plan.settings
        how = {"timer": self.plan.timer, "l2": self.plan.l2}
        message = {"op": "time", "warmup_ms": settings.warmup_ms, "batch_ms": settings.batch_ms, **how}
        for reply in self._ask([slot], message, "time").values():
            self._take(slot, reply, partial(self._timed, slot, turn, position), "time")

    def _timed(self, slot: WorkerSlot, turn: int, position: int, reply: dict[str, Any]) -> None:
        samples = tuple(float(sample) for sample in reply["samples_us"])
        if not samples or not all(0 < sample < math.inf for sample in samples):
            raise ValueError("no samples")
        self.state[slot].batches.append(Batch(self.process, turn, position, samples))

    def _verified(self, slot: WorkerSlot, reply: dict[str, Any]) -> None:
        """What a timed call returned is judged too: it ends what is wrong; where it is worse than the check was, it stands."""
        state = self.state[slot]
        state.batches[-1] = replace(state.batches[-1], telemetry=records.telemetry_from_json(reply.get("telemetry")))
        if reply["accuracy"] is None:
            return
        accuracy = records.accuracy_from_json(reply["accuracy"])
        if accuracy.grade in (Grade.WRONG, Grade.UNVERIFIED):
            status = Status.WRONG if accuracy.grade is Grade.WRONG else Status.UNVERIFIED
            state.accuracy = accuracy
            self._end(slot, Failed(status, "time", accuracy.detail))
        elif state.accuracy is None or accuracy.worst > state.accuracy.worst:
            state.accuracy = accuracy

    def _profile(self, slots: list[WorkerSlot]) -> None:
        """After the rounds, so that what the profiler leaves behind in the process is in none of the case's samples.

        The profilers start and stop in all processes at once, as that takes longer than the calls; these have the GPU for themselves.
        """
        how = {"batch_ms": min(PROFILE_MS, self.plan.settings.batch_ms), "l2": self.plan.l2}
        if self.plan.device == "cuda" and self.plan.settings.profile == "on":
            slots = self._spared([[slot] for slot in slots], {"op": "host", **how})
            slots = self._spared([slots], {"op": "trace", "l2": self.plan.l2})
            slots = self._spared([[slot] for slot in slots], {"op": "calls", **how})
        self._spared([slots], {"op": "profile"})

    def _spared(self, groups: list[list[WorkerSlot]], message: Message) -> list[WorkerSlot]:
        """Ask one group after the other; returns who answered. The cells were measured before: lost are profiles, and perhaps workers."""
        left: list[WorkerSlot] = []
        for slots in groups:
            answers = self._ask(slots, message, "time")
            for slot in slots:
                if isinstance(failed := self.state[slot].outcome, Failed):
                    self.state[slot].profile, self.state[slot].outcome = Profile(note=failed.reason), None
            for slot, reply in answers.items():
                if message["op"] == "profile":
                    self._take(slot, reply, partial(self._profiled, slot), "time")
            left += answers
        return left

    def _profiled(self, slot: WorkerSlot, reply: dict[str, Any]) -> None:
        self.state[slot].profile = records.profile_from_json(reply["profile"])

    def _release(self, slots: Sequence[WorkerSlot]) -> None:
        self._ask(list(slots), {"op": "release"}, "time")

    def _ask(self, slots: list[WorkerSlot], message: Message, phase: str) -> dict[WorkerSlot, dict[str, Any]]:
        """The replies by slot. A slot that failed has its outcome already; if its worker was lost, it has no worker."""
        workers = {i: (slot.worker, message) for i, slot in enumerate(slots) if slot.worker is not None}
        answers: dict[WorkerSlot, dict[str, Any]] = {}
        for i, reply in self.pool.gather(workers, self.deadlines[phase], phase).items():
            slot = slots[i]
            if isinstance(reply, Lost):
                slot.worker = None
                self._end(slot, Failed(reply.status, phase, reply.reason), lost=True)
            elif "failed" in reply:
                if poisoned := bool(reply.get("poisoned")):
                    slot.drop(self.pool)
                self._take(slot, reply["failed"], partial(self._failed, slot, phase, poisoned), phase)
            else:
                answers[slot] = reply
        return answers

    def _failed(self, slot: WorkerSlot, phase: str, poisoned: bool, answer: dict[str, Any]) -> None:
        status, reason = records.failure_from_json(answer)
        self._end(slot, Failed(status, phase, f"{phase}: {reason}"), lost=poisoned)

    def _take(self, slot: WorkerSlot, reply: dict[str, Any], take: Callable[[dict[str, Any]], None], phase: str) -> None:
        """Read an answer; one that is not what was asked for ends the worker: something else writes into its pipe."""
        try:
            take(reply)
        except (KeyError, TypeError, ValueError, AttributeError):
            slot.drop(self.pool)
            self._end(slot, Failed(Status.FAILED, phase, f"{phase}: the worker sent an invalid reply"), lost=True)

    def _end(self, slot: WorkerSlot, failed: Failed, *, lost: bool = False) -> None:
        state = self.state[slot]
        state.outcome = replace(failed, build=state.build, accuracy=state.accuracy)
        self.last_failure[slot] = failed
        slot.deaths += lost

    def _record(self, slot: WorkerSlot, case: Case) -> Record:
        state = self.state[slot]
        outcome = state.outcome
        if outcome is None:
            if state.build is None or state.accuracy is None or not state.batches:
                raise AssertionError(f"{slot.name} on {case.key} was neither measured nor ended")
            timing = Timing(tuple(state.batches), self.plan.timer, self.plan.l2, self._stopped(slot))
            outcome = Measured(state.build, state.accuracy, timing, state.profile)
        if slot.worker is not None:
            slot.deaths = 0  # whatever became of the case, its worker outlived it
        return Record(slot.name, case, outcome, slot.info.source)


def round_order(slots: Sequence[WorkerSlot], turn: int) -> list[WorkerSlot]:
    """A round's order: rotated by one every second round and reversed in every odd one, so two slots go AB BA BA AB."""
    if not slots:
        return []
    start = (turn // 2) % len(slots)
    order = [*slots[start:], *slots[:start]]
    return order[::-1] if turn % 2 else order
