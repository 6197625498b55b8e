"""Measures the backends of a case together: it builds and checks all at once, times them interleaved, and profiles them last."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from softbench.core import statistics
from softbench.core.case import YARDSTICK, Case
from softbench.core.json import to_json
from softbench.core.messages import (
    BuildCase,
    CheckOutputs,
    Done,
    EndProfile,
    Failure,
    Graded,
    MeasureProducts,
    Profiled,
    Release,
    RenewInputs,
    Reply,
    Request,
    Skip,
    StartTrace,
    TimeBatch,
    TimeHost,
    TimeUsersCall,
    TraceCalls,
    Verified,
    VerifyOutputs,
)
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
from softbench.ops.registry import operation
from softbench.plan.plan import Plan
from softbench.processes.slot import WorkerSlot, revive
from softbench.processes.worker_pool import Lost, Pool
from softbench.results import labels
from softbench.run import profile_verdict, worker_clock

Answer = TypeVar("Answer", bound=Reply)
NOT_PUBLISHED = {Grade.WRONG: Status.WRONG, Grade.UNVERIFIED: Status.UNVERIFIED}
"""Grades that end a cell without a bandwidth, and its status."""
EVERY = "every"
"""The setting `profile` of a run that profiles each process set."""
PROFILE_MS = 5.0
"""Time of a profile: about thirty calls, if the flush of L2 and the pause dominate. That is enough, as device times vary little."""
USERS_ROUNDS = 5
"""Rounds of what users call: on one host a thread of autograd took 130 us in one round and 340 us in another."""
PAUSES_SECONDS = {"cuda": (0.5, 2.0, 5.0), "cpu": (0.05, 0.2)}  # before a throttled batch is measured again; each is used once
PATIENCE_SECONDS = {"cuda": 120.0, "cpu": 1.0}  # sum of the pauses in a sweep; a busy CPU seldom becomes idle soon


@dataclass(slots=True)
class SlotState:
    """What one slot has of the current case."""

    build: Build | None = None
    accuracy: Accuracy | None = None
    batches: list[Batch] = field(default_factory=list)
    timer: str = ""
    """The timer of the batches, if it is not the one that was asked."""
    profile: Profile = field(default_factory=Profile)
    outcome: Outcome | None = None
    spans: list[worker_clock.Span] = field(default_factory=list)
    """The times of its batches by two clocks."""
    retried: bool = False
    unordered: str = ""
    """Work of the last trace that is not ordered with the caller's stream."""
    invalid_reply: bool = False
    """True if the worker sent a JSON object that is not a reply to the request."""
    killed: bool = False
    """True if another process killed the worker."""


class Scheduler:
    """The slots that are measured together, one case after the other."""

    pause = staticmethod(time.sleep)

    def __init__(self, plan: Plan, pool: Pool, process: int, environment: dict[str, str]) -> None:
        """`process` is the number of the process set; `environment` is added to every worker's environment."""
        self.plan, self.pool, self.process, self.environment, self.round = plan, pool, process, environment, 0
        self.deadlines = plan.settings.timeout
        self.take([])

    def take(self, slots: list[WorkerSlot]) -> None:
        """Measure these slots from now on."""
        self.slots = slots
        self.patience_seconds = PATIENCE_SECONDS[self.plan.device]
        self.last_failure: dict[WorkerSlot, Failed] = {}
        self.state: dict[WorkerSlot, SlotState] = {}

    def measure(self, case: Case) -> list[Record]:
        """Build, check and time one case; every slot gets a record."""
        large = Failed(Status.OOM, "build", reason) if (reason := self.plan.too_large(case)) else None
        self.state = {slot: SlotState(outcome=slot.barred(self.last_failure.get(slot)) or large) for slot in self.slots}
        turns = self.plan.takes_turns(case, len(self._active()))
        self._revive(self._active(), case)
        one_by_one = [[slot] for group in self._check_order(self._active(), case) for slot in group]
        for together in one_by_one if turns else [self._active()]:
            self._build_and_check(together, case, turns)
        if any(state.retried for state in self.state.values()) and not turns:
            turns = True
            self.release(self._active())
        self._rounds(0, turns)
        if self._copy_is_doubtful(case):
            for slot in self._active():
                self.state[slot].batches = []
            self._rounds(self.plan.settings.max_rounds, turns)
        if self.process == 0 or self.plan.settings.profile == EVERY:  # else one profile stands for all process sets
            for together in [[slot] for slot in self._active()] if turns else [self._active()]:
                self._profile(together, case)
                if turns:
                    self.release(together)
        return [self._record(slot, case) for slot in self.slots]

    def close(self) -> None:
        """End the workers of all slots."""
        self.pool.discard(*[slot.worker for slot in self.slots if slot.worker is not None])
        for slot in self.slots:
            slot.worker = None

    def _revive(self, slots: list[WorkerSlot], case: Case) -> None:
        for slot, failed in revive(self.pool, slots, case.device, self.environment, self.deadlines["import"]).items():
            self._end(slot, failed)

    def _active(self) -> list[WorkerSlot]:
        """The slots whose cell has not ended."""
        return [slot for slot in self.slots if self.state[slot].outcome is None]

    def _rounds(self, first: int, turns: bool) -> None:
        """All rounds of a case; `first` is the number of the first one."""
        for number in range(self.plan.settings.max_rounds):
            self._round(round_order(self._in_round(number), number), first + number, turns)

    def _copy_is_doubtful(self, case: Case) -> bool:
        """True if a backend has no percentage of copy, and the number of rounds is not fixed.

        Then all are measured again, once: ratios are of shared rounds, and what disturbed copy disturbed others too. More rounds beside
        the disturbed ones would not help, as these stay in the spread.
        """
        if self.plan.settings.rounds == self.plan.settings.max_rounds:
            return False
        records = {slot.name: self._record(slot, case) for slot in self._active()}
        copy = records.pop(YARDSTICK, None)
        return copy is not None and any(labels.doubtful_copy(copy, record, self.plan.facts) for record in records.values())

    def _in_round(self, number: int) -> list[WorkerSlot]:
        """The slots of a round: first all, later those below the target precision with the backends they are compared with."""
        active = self._active()
        if number < self.plan.settings.rounds:
            return active
        imprecise = [slot for slot in active if not self._precise(slot)]
        partners = (YARDSTICK, self.plan.settings.relative_to) if imprecise else ()
        return [slot for slot in active if slot in imprecise or slot.name in partners]

    def _precise(self, slot: WorkerSlot) -> bool:
        rounds = [batch.samples_us for batch in statistics.counted(self.state[slot].batches)]
        return statistics.settled(rounds, self.plan.settings.precision, self.plan.settings.tick_us)

    def _stopped(self, slot: WorkerSlot) -> str:
        """Why sampling stopped."""
        if self.plan.settings.rounds == self.plan.settings.max_rounds:
            return statistics.FIXED
        return statistics.PRECISE if self._precise(slot) else statistics.LIMIT

    def _build_and_check(self, slots: list[WorkerSlot], case: Case, turns: bool) -> None:
        for slot, built in self._ask(slots, BuildCase(case, self.plan.settings.seed), "build").items():
            if isinstance(built, Skip):
                self.state[slot].outcome = Skipped(built.reason)
            else:
                self.state[slot].build = built.build
        for together in self._check_order([slot for slot in slots if slot in self._active()], case):
            for slot, graded in self._ask(together, CheckOutputs(), "check").items():
                self._grade(slot, graded)
        self._retry_out_of_memory(slots, case, turns)
        if turns:
            self.release([slot for slot in slots if slot in self._active()])

    def _check_order(self, slots: list[WorkerSlot], case: Case) -> list[list[WorkerSlot]]:
        """Slots that check at the same time: all, or first the reference backend where its outputs are what the others must return."""
        first = [slot for slot in slots if slot.name == self.plan.settings.relative_to and operation(case.op).recorded]
        return [group for group in (first, [slot for slot in slots if slot not in first]) if group]

    def _grade(self, slot: WorkerSlot, graded: Graded) -> None:
        state, accuracy = self.state[slot], graded.accuracy
        state.accuracy = accuracy
        if status := NOT_PUBLISHED.get(accuracy.grade):
            self._end(slot, Failed(status, "check", accuracy.detail))
        elif graded.untimed and state.build is not None:
            state.outcome = Checked(state.build, accuracy, graded.untimed)

    def _retry_out_of_memory(self, slots: list[WorkerSlot], case: Case, turns: bool) -> None:
        """Retry once, in a new worker, after all other workers have released their buffers."""
        short = [slot for slot in slots if isinstance(o := self.state[slot].outcome, Failed) and o.status is Status.OOM]
        short = [slot for slot in short if not self.state[slot].retried]
        if not short:
            return
        self.release(self._active())
        for slot in short:
            slot.drop(self.pool)
            self.state[slot] = SlotState(retried=True)
            self._revive([slot], case)
            if self.state[slot].outcome is None:
                self._build_and_check([slot], case, turns=True)

    def _round(self, slots: list[WorkerSlot], number: int, turns: bool) -> None:
        """One batch of each slot, in this order.

        A throttled batch is measured again after a pause, until `PATIENCE_SECONDS` are used. Throttled batches stay, marked.
        """
        self.round, places = number, {slot: position for position, slot in enumerate(slots)}
        # On a GPU all workers renew inputs and verify outputs at the same time. On a CPU their threads would disturb the next batch.
        for together in [[slot] for slot in slots] if turns or self.plan.device != "cuda" else [slots]:
            self._batches(together, number, places)
            for seconds in PAUSES_SECONDS[self.plan.device]:
                throttled = [slot for slot in together if slot in self._active() and self.state[slot].batches[-1].throttled]
                if not throttled or seconds > self.patience_seconds:
                    break
                self.patience_seconds -= seconds
                self.pause(seconds)
                self._batches(throttled, number, places)
            if turns:
                self.release(together)

    def _batches(self, slots: list[WorkerSlot], number: int, places: Mapping[WorkerSlot, int]) -> None:
        """Renew the inputs of all slots, time one slot after the other, then verify the outputs of all."""
        settings, plan = self.plan.settings, self.plan
        renewed = self._ask(slots, RenewInputs(plan.l2), "time")
        request = TimeBatch(settings.warmup_ms, settings.batch_ms, plan.timer, plan.l2)
        for slot in slots:
            watch = worker_clock.Watch(slot.worker.pid if slot.worker else 0)
            for timed in self._ask([slot] if slot in renewed else [], request, "time").values():
                state = self.state[slot]
                state.spans.append(worker_clock.Span(watch.us(), timed.spent_us, timed.calls, timed.whole_us))
                if timed.timer != state.timer:  # its calls wait for the GPU: earlier batches have another kind of time
                    state.timer, state.batches = timed.timer, []
                state.batches.append(Batch(self.process, number, places[slot], timed.samples_us))
        timed_slots = [slot for slot in slots if slot in renewed and slot in self._active()]
        for slot, verified in self._ask(timed_slots, VerifyOutputs(), "time").items():
            self._verified(slot, verified)

    def _verified(self, slot: WorkerSlot, verified: Verified) -> None:
        """Record the telemetry and the accuracy of a timed call: a wrong output ends the cell, and the worst accuracy is kept."""
        state, accuracy = self.state[slot], verified.accuracy
        state.batches[-1] = replace(state.batches[-1], telemetry=verified.telemetry)
        if accuracy is None:
            return
        if status := NOT_PUBLISHED.get(accuracy.grade):
            state.accuracy = accuracy
            self._end(slot, Failed(status, "time", accuracy.detail))
        elif state.accuracy is None or accuracy.rank > state.accuracy.rank:
            state.accuracy = accuracy

    def _profile(self, slots: list[WorkerSlot], case: Case) -> None:
        """Profile the slots after the rounds, so that no sample contains effects of the profiler. A profile can end a cell."""
        self._trace(slots, case)
        suspects = {slot: reason for slot in slots if (reason := self.state[slot].unordered)}
        if suspects:  # a second trace decides
            self._trace([slot for slot in self._active() if slot in suspects], case)
        for slot in self._active():
            state = self.state[slot]
            if slot in slots and (
                failed := profile_verdict.failed(state.profile, suspects.get(slot, ""), state.unordered, case, self.plan)
            ):
                self._end(slot, failed)

    def _trace(self, slots: list[WorkerSlot], case: Case) -> None:
        """Trace calls: the profilers of all workers start and stop together, as that is slow; the calls of a worker have the GPU alone."""
        batch_ms, l2 = min(PROFILE_MS, self.plan.settings.batch_ms), self.plan.l2
        self._ask_measured([[slot] for slot in slots if slot.name == YARDSTICK and operation(case.op).flops(case)], MeasureProducts())
        if self.plan.device == "cuda" and self.plan.settings.profile != "off":
            slots = self._ask_measured([[slot] for slot in slots], TimeHost(batch_ms, l2))
            for _ in range(USERS_ROUNDS if self.plan.timer == "host" else 0):
                slots = self._ask_measured([[slot] for slot in slots], TimeUsersCall(batch_ms, self._reference()))
            slots = self._ask_measured([slots], StartTrace(l2))
            slots = self._ask_measured([[slot] for slot in slots], TraceCalls(batch_ms, l2))
        self._ask_measured([slots], EndProfile())

    def _reference(self) -> tuple[dict[str, str], str] | None:
        """The source and the name of the reference backend; None if its cell has failed, as its call then may, too."""
        infos = [slot.info for slot in self._active() if slot.name == self.plan.settings.relative_to]
        return (to_json(infos[0].origin), infos[0].name) if infos else None

    def _ask_measured(self, groups: list[list[WorkerSlot]], request: Request[Done | Profiled]) -> list[WorkerSlot]:
        """Ask one group after the other; returns the slots that replied.

        The cells are measured already, so a lost worker costs the profile only. A JSON object that is no reply ends the cell.
        """
        replied: list[WorkerSlot] = []
        for slots in groups:
            replies = self._ask(slots, request, "time")
            replied += replies
            for slot in slots:
                state = self.state[slot]
                if isinstance(failed := state.outcome, Failed) and not state.invalid_reply:
                    state.profile, state.unordered, state.outcome = Profile(note=failed.reason), "", None
            for slot, reply in replies.items():
                if isinstance(reply, Profiled):
                    self.state[slot].profile, self.state[slot].unordered = reply.profile, reply.unordered
                    if reply.unverified:
                        self._end(slot, Failed(Status.UNVERIFIED, "time", reply.unverified))
        return replied

    def release(self, slots: Sequence[WorkerSlot]) -> None:
        """Free the buffers of slots that have measured a case."""
        self._ask(list(slots), Release(), "time")

    def _ask(self, slots: list[WorkerSlot], request: Request[Answer], phase: str) -> dict[WorkerSlot, Answer]:
        """The replies by slot. A slot that failed has its outcome already; if its worker was lost, it has no worker."""
        workers = {i: (slot.worker, request) for i, slot in enumerate(slots) if slot.worker is not None}
        replies: dict[WorkerSlot, Answer] = {}
        for i, reply in self.pool.gather(workers, self.deadlines[phase], phase).items():
            slot = slots[i]
            if isinstance(reply, Lost):
                slot.worker = None
                self.state[slot].invalid_reply, self.state[slot].killed = reply.invalid, reply.killed
                more = f"; --timeout {phase}=SECONDS allows more" if reply.status is Status.TIMEOUT else ""
                self._end(slot, Failed(reply.status, phase, f"{reply.reason}{more}"), lost=True)
            elif isinstance(reply, Failure):
                if reply.poisoned:
                    slot.drop(self.pool)
                self._end(slot, Failed(reply.status, phase, f"{phase}: {reply.reason}"), lost=reply.poisoned)
            else:
                replies[slot] = reply
        return replies

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
            timing = Timing(tuple(state.batches), state.timer or self.plan.timer, self.plan.l2, self._stopped(slot))
            outcome = Measured(state.build, state.accuracy, timing, state.profile)
            if failed := worker_clock.disputed(state.spans):
                outcome = replace(failed, build=state.build, accuracy=state.accuracy)
        if slot.worker is not None:
            slot.deaths = 0  # the worker survived the case
        return Record(slot.name, case, outcome, slot.info.source, self.plan.unit)


def round_order(slots: Sequence[WorkerSlot], number: int) -> list[WorkerSlot]:
    """A round's order: rotated by one every second round and reversed in every odd one, so two slots go AB BA BA AB."""
    if not slots:
        return []
    start = (number // 2) % len(slots)
    order = [*slots[start:], *slots[:start]]
    return order[::-1] if number % 2 else order
