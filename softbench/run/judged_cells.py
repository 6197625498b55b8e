"""`--judge separate`: judges the measured cells of a run in a process that their backends cannot reach (docs/judge.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from softbench.core.case import YARDSTICK
from softbench.core.errors import WorkersError
from softbench.core.json import JsonObject
from softbench.core.outcome import FAILURES, Failed, Judged, Measured, Record, Status
from softbench.plan.plan import Plan
from softbench.processes.activity import Activity
from softbench.processes.judge_process import JudgeProcess
from softbench.results.records import disputed

SEPARATE = "separate"
JUDGEMENTS = 2
"""Judgements of a disputed cell, at most. While the driver works for other processes of the host, the judge's times are too long."""


class CellJudge:
    """Judges the cells of a plan's first process set, if the plan asks for it. Leaving the context ends the judge's process."""

    def __init__(self, plan: Plan, activity: Activity) -> None:
        """`activity` counts the time of the judgements."""
        self.activity, self.plan = activity, plan
        self.process = self._start() if plan.settings.judge == SEPARATE else None
        self.origins = {info.name: info.origin for info in plan.infos}

    def _start(self) -> JudgeProcess:
        return JudgeProcess(self.plan.settings.device, self.plan.settings.timeout)

    def __enter__(self) -> CellJudge:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.process:
            self.process.__exit__(kind, value, trace)

    def judged(self, records: list[Record], process: int, release: Callable[[], object]) -> list[Record]:
        """The records; a measured cell that the judge refuses, or disputes twice, has failed.

        `release` frees the buffers of the run's workers: a challenge takes most of a GPU's memory.
        """
        if self.process is None or process:
            return records
        release()
        return [self._judged(record) if record.backend != YARDSTICK else record for record in records]

    def _judged(self, record: Record) -> Record:
        outcome = record.outcome
        if not isinstance(outcome, Measured):
            return record
        for number in range(1, 1 + JUDGEMENTS):
            with self.activity.waiting("judge", [record.backend]):
                found = self._ask(record)
            if failed := refused(found):
                return replace(record, outcome=replace(failed, build=outcome.build, accuracy=outcome.accuracy))
            times = (found.get(name) for name in ("us", "low_us", "high_us", "at_most_us", "least_us"))
            outcome = replace(outcome, judged=Judged(number, *times))
            if not (failed := disputed(record.case, outcome)):
                break
        return replace(record, outcome=failed or outcome)

    def _ask(self, record: Record) -> JsonObject:
        """The judgement of a record; a cell whose judgements all end the judge's process is `unverified`."""
        reason = ""
        for _ in range(JUDGEMENTS):
            assert self.process is not None
            try:
                return self.process.ask(self.origins[record.backend], record.case, record.backend)
            except WorkersError as error:
                reason = str(error)
                self.process.__exit__(None, None, None)
                self.process = self._start()
        return {"status": Status.UNVERIFIED, "reason": reason}


def refused(found: JsonObject) -> Failed | None:
    """The failure of a cell whose judgement is not `ok`; None otherwise."""
    status = Status(found["status"])
    if status is Status.OK:
        return None
    return Failed(status if status in FAILURES else Status.UNVERIFIED, "time", f"judge: {found['reason']}")
