"""How far a run is: the cells that are done, what runs now, and the time that is left.

The estimate (`softbench.plan.estimate`) is corrected by phase with the ratio of what finished cases took to what was estimated for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from softbench.core.case import Case
from softbench.core.outcome import Record, Skipped
from softbench.core.text import duration
from softbench.plan import estimate
from softbench.plan.plan import Plan
from softbench.processes.activity import Activity

PHASE = {
    **dict.fromkeys(("start", "probe", "load", "operation"), "load"),
    **dict.fromkeys(("renew", "time", "verify"), "time"),
    **dict.fromkeys(("host", "users", "trace", "calls", "profile", "release"), "profile"),
}
"""The phase of a request; the others have their own name."""
SHOWN = {
    "list_unsupported": "supported cases of",
    "queue": "waiting for",
    "quiet": "waiting for",
    "start": "start of a worker:",
    "load": "import of",
    "judge": "judgement of",
}
"""The words of phases; of the others it is their name with `of`."""
PRIOR_SECONDS = 1.0
"""Weight of the estimate in its correction: a few short cells say little about long ones."""
OVERDUE = 0.25
"""What is left of a case that takes longer than estimated, as a share of the time so far."""
OVER_BEFORE_TIME = ("first build", "build", "check")
OF_THE_MACHINE = ("check", "time", "profile", "judge")
"""Phases that show how fast the machine is; builds and imports depend on caches."""
FEW = 3
"""Names of more backends are counted."""
Key = tuple[int, tuple[str, ...], Case]


class Pacing(Protocol):
    """How far a run is, for an observer."""

    @property
    def done(self) -> int:
        """Cells that are measured."""

    @property
    def cells(self) -> int:
        """Cells to measure."""

    def seconds_left(self) -> float:
        """The estimate for the rest of the run."""

    def doing(self) -> str:
        """What runs now, in words."""


class Pace:
    """The pace of one run. One thread writes it; others may read it."""

    def __init__(
        self,
        plan: Plan,
        activity: Activity,
        stored: Callable[[int, tuple[str, ...], Case], bool],
        unsupported: Collection[tuple[str, Case]] = (),
    ) -> None:
        """`stored`: whether an earlier run measured these backends on a case, in a process set; `unsupported`: cells to be skipped."""
        self.plan, self.activity = plan, activity
        self.done = 0
        """Cells that are measured, by this run or an earlier one, without those that a backend does not support."""
        self._able = {info.name for info in plan.infos if info.able}
        self._unsupported = set(unsupported)
        self._left: dict[Key, estimate.Seconds] = {}

        def supported(name: str, case: Case) -> bool:
            return (name, case) not in self._unsupported

        sets = [estimate.set_seconds(plan, supported, process) for process in (0, 1)]
        for process in range(plan.settings.processes):
            for number, (case, names, seconds) in enumerate(sets[process > 0]):
                loaded = process == number == 0 and len(plan.groups) == 1  # by the session
                own = {phase: s for phase, s in seconds.items() if phase != "load"} if loaded else seconds
                self._left[process, names, case] = own
        self.cells = sum(self._count(names, case) for _, names, case in self._left)
        """Cells to measure, over all process sets. It shrinks when a backend turns out not to support a case."""
        for key in [key for key in self._left if stored(*key)]:
            del self._left[key]
            self.done += self._count(*key[1:])
        self._expected: estimate.Seconds = {}
        """The sum of `_left` by phase."""
        for seconds in self._left.values():
            _add(self._expected, seconds)
        self._estimated: estimate.Seconds = {}
        self._spent: estimate.Seconds = {}
        self._current: Key | None = None
        self._before: dict[str, float] = {}
        self._round: Callable[[], int] = int
        self._begin = activity.clock()

    def begin(self, process: int, names: tuple[str, ...], case: Case, number: Callable[[], int]) -> None:
        """These cells are measured from now on; `number` gives the number of the present round while they are timed."""
        self._round = number
        self._before, self._begin = dict(self.activity.seconds), self.activity.clock()
        self._current = (process, names, case)

    def end(self, records: Sequence[Record]) -> None:
        """The current cells are measured."""
        assert self._current is not None
        _, names, case = self._current
        seconds = self._left.pop(self._current)
        self._current = None
        _add(self._spent, self._since(seconds))
        _add(self._estimated, seconds)
        _add(self._expected, seconds, -1)
        skipped = {(record.backend, case) for record in records if isinstance(record.outcome, Skipped)} - self._unsupported
        if skipped:
            self._skip(names, case, skipped)
        self.done += self._count(names, case)

    def drop(self, process: int, names: tuple[str, ...], case: Case) -> None:
        """These cells are not measured."""
        _add(self._expected, self._left.pop((process, names, case)), -1)
        self.cells -= self._count(names, case)

    def _skip(self, names: tuple[str, ...], case: Case, skipped: set[tuple[str, Case]]) -> None:
        """No process set measures these backends on the case."""
        before = self._count(names, case)
        self._unsupported |= skipped
        later = [key for process in range(self.plan.settings.processes) if (key := (process, names, case)) in self._left]
        self.cells -= (before - self._count(names, case)) * (1 + len(later))
        rest = [name for name in names if (name, case) not in self._unsupported]
        for key in later:
            old = self._left[key]
            new = estimate.case_seconds(self.plan, case, rest, first="first build" in old, process=key[0])
            self._left[key] = {**{phase: s for phase, s in old.items() if phase == "load"}, **new}
            _add(self._expected, old, -1)
            _add(self._expected, self._left[key])

    def seconds_left(self) -> float:
        """The corrected estimate for the rest of the run."""
        key = self._current
        if key is None:
            return self._corrected(self._expected)
        seconds = self._left.get(key, {})
        current = self._corrected(seconds)
        elapsed = self.activity.clock() - self._begin
        others = max(0.0, self._corrected(self._expected) - current)
        return others + (self._left_of_rounds(seconds) or max(current - elapsed, OVERDUE * elapsed))

    def _left_of_rounds(self, seconds: estimate.Seconds) -> float:
        """What is left of the current case, from the time of its rounds; 0 before the first round has ended."""
        now, rounds = self.activity.now, self._round()
        if not rounds or now is None or PHASE.get(now.op) != "time":
            return 0.0
        spent = self._since(seconds).get("time", 0.0) + self.activity.clock() - now.since
        done = rounds + 0.5  # half of the present one
        profile = {phase: s for phase, s in seconds.items() if phase == "profile"}
        return spent / done * max(estimate.rounds_of(self.plan) - done, 0.5) + self._corrected(profile)

    def doing(self) -> str:
        """What runs now, in words: phase, backends, case and time so far."""
        now, current = self.activity.now, self._current
        if now is None:
            return "storing results" if current is None else ""
        return working(self.activity, current[2].key if current else "")

    def _since(self, expected: estimate.Seconds) -> estimate.Seconds:
        """What the current case took up to now, by phase."""
        found: estimate.Seconds = {}
        for op, spent in list(self.activity.seconds.items()):
            phase = PHASE.get(op, "first build" if op == "build" and "first build" in expected else op)
            _add(found, {phase: spent - self._before.get(op, 0.0)})
        return found

    def _count(self, names: tuple[str, ...], case: Case) -> int:
        return 0 if self.plan.too_large(case) else sum(name in self._able and (name, case) not in self._unsupported for name in names)

    def _corrected(self, seconds: estimate.Seconds) -> float:
        return sum(self._ratio(phase) * expected for phase, expected in list(seconds.items()))

    def _ratio(self, phase: str) -> float:
        spent, estimated = dict(self._spent), dict(self._estimated)
        now, key = self.activity.now, self._current
        if now and key and PHASE.get(now.op) == "time":  # so the case's build and check are over
            expected = self._left.get(key, {})
            _add(estimated, {phase: expected[phase] for phase in OVER_BEFORE_TIME if phase in expected})
            _add(spent, {phase: s for phase, s in self._since(expected).items() if phase in OVER_BEFORE_TIME})
        taken, due = (sum(seconds.get(p, 0.0) for p in OF_THE_MACHINE) for seconds in (spent, estimated))
        overall = (taken + PRIOR_SECONDS) / (due + PRIOR_SECONDS) if phase in OF_THE_MACHINE else 1.0
        return (spent.get(phase, 0.0) + PRIOR_SECONDS * overall) / (estimated.get(phase, 0.0) + PRIOR_SECONDS)


def _add(total: estimate.Seconds, more: estimate.Seconds, sign: int = 1) -> None:
    for phase, seconds in more.items():
        total[phase] = total.get(phase, 0.0) + sign * seconds


def working(activity: Activity, case: str = "") -> str:
    """The present wait in words, such as `check of torch, naive on forward-fp32-8x8, for 12 s`."""
    now = activity.now
    if now is None:
        return ""
    names = ", ".join(now.labels) if len(now.labels) <= FEW else f"{len(now.labels)} backends"
    phase = now.op if now.op in SHOWN else PHASE.get(now.op, now.op)
    seconds = activity.clock() - now.since
    place, length = f" on {case}" if case else "", f", for {duration(seconds)}" if seconds >= 1 else ""
    return f"{SHOWN.get(phase, f'{phase} of')} {names}{place}{length}"
