"""`softbench check`: the catalogue (`softbench.ops.softmax.check_cases`) on every backend, each in its worker; nothing is timed."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

from softbench.core.case import YARDSTICK, Direction
from softbench.core.errors import UsageError, WorkersError
from softbench.core.outcome import Grade
from softbench.plan.settings import Settings
from softbench.plugins.select import select
from softbench.plugins.source import origins
from softbench.processes.pool import Lost, Pool, Reply
from softbench.processes.session import Session
from softbench.processes.slot import MAX_DEATHS, WorkerSlot
from softbench.results.records import accuracy_from_json, failure_from_json

FAILED = "failed"
SKIPPED = "skipped"
BAD = frozenset({Grade.WRONG.value, FAILED})


@dataclass(frozen=True, slots=True)
class Finding:
    """One item on one backend in one dtype."""

    backend: str
    item: str
    direction: str
    dtype: str
    verdict: str
    """A `Grade`, or `skipped` or `failed`."""
    worst: float | None
    """The worst error over its bound; None where nothing was compared."""
    reason: str
    """Why it is not a pass; of a pass, a trait that is to be known, or empty."""
    ulp: float | None = None
    row_sum: float | None = None
    frobenius: float | None = None
    """Error as others state it (`softbench.worker.error_metrics`): shown, and no part of the verdict."""


DIAGNOSTICS = ("ulp", "row_sum", "frobenius")


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What to examine."""

    settings: Settings
    pattern: str
    """Of item names, as a shell's: `layout *`."""
    dtypes: tuple[str, ...]
    directions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was found."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    """Backends that could not be examined at all, with the reason."""
    broken: bool
    """True when one of those is a plugin that does not load."""
    device: str
    seed: int

    @property
    def exit_code(self) -> int:
        """0 when something was compared and nothing is wrong, failed or broken, else 1."""
        compared = any(finding.worst is not None and finding.verdict != Grade.UNVERIFIED for finding in self.findings)
        return 1 if self.broken or not compared or any(finding.verdict in BAD for finding in self.findings) else 0

    def document(self) -> dict[str, Any]:
        """As JSON; what JSON lacks is the text `inf` or `nan`."""
        cells = [asdict(finding) for finding in self.findings]
        for cell in cells:
            for key in ("worst", *DIAGNOSTICS):
                if cell[key] is not None and not math.isfinite(cell[key]):
                    cell[key] = str(cell[key])
        return {"device": self.device, "seed": self.seed, "notes": self.notes, "findings": cells}

    def to_repeat(self, plugins: Sequence[str]) -> list[tuple[Finding, str]]:
        """Every finding that is bad, with the command line that shows it again."""
        return [(finding, self._command(finding, plugins)) for finding in self.findings if finding.verdict in BAD]

    def _command(self, finding: Finding, plugins: Sequence[str]) -> str:
        words = ["softbench", "check", "--backends", finding.backend, f"--case={escape(finding.item)}", "--direction", finding.direction]
        words += ["--dtype", finding.dtype, "--device", self.device, "--seed", str(self.seed)]
        return shlex.join(words + [part for file in plugins for part in ("--plugin", file)])


def examine(wanted: CheckRequest, advance: Callable[[int, int], None]) -> CheckReport:
    """All findings. `advance(done, total)` is told after every item.

    Raises:
        UsageError: a backend, a device or a case that is not there.
    """
    settings = wanted.settings
    with Session(settings.device, settings.timeout["import"], origins(settings.plugins)) as session:
        items = _items(session.pool, wanted)
        opened = session.open_for(settings.backends)
        infos = select([slot.info for slot in opened], settings.backends)
        chosen = [slot for slot in opened if slot.info in infos and slot.name != YARDSTICK]
        able = [slot for slot in chosen if slot.info.able]
        notes = [f"{slot.name}: {slot.info.broken or 'unavailable: ' + slot.info.unavailable}" for slot in chosen if slot not in able]
        if not chosen:
            raise UsageError(f"--backends {YARDSTICK}: the yardstick is no softmax; name what is to be checked")
        session.drop([slot for slot in opened if slot not in able])
        checker = _Checker(session, settings)
        steps = [(dtype, item) for direction in wanted.directions for dtype in wanted.dtypes for item in items if item[1] == direction]
        findings: list[Finding] = []
        for done, (dtype, (name, direction, alone)) in enumerate(steps, 1):
            findings += checker.ask(able, name, direction, dtype, alone=alone)
            advance(done, len(steps))
    broken = any(slot.info.broken for slot in chosen)
    return CheckReport(tuple(findings), tuple(notes), broken, session.device, settings.seed)


def _items(pool: Pool, wanted: CheckRequest) -> list[tuple[str, Direction, bool]]:
    """Name, direction, and whether backends face it one after the other, of every item that is wanted."""
    worker = pool.spawn("catalogue")
    reply = pool.ask(worker, {"op": "catalogue"}, wanted.settings.timeout["import"], "import")
    pool.discard(worker)
    if isinstance(reply, Lost) or "failed" in reply:
        raise WorkersError(f"the catalogue cannot be read: {reply.reason if isinstance(reply, Lost) else reply['failed']['reason']}")
    found = [(name, Direction(direction), bool(alone)) for name, direction, alone in reply["items"]]
    pattern = wanted.pattern.removeprefix("!")
    matching = [item for item in found if fnmatchcase(item[0], pattern) != wanted.pattern.startswith("!")]
    if not matching:
        raise UsageError(f"--case {wanted.pattern}: no such case; known are {', '.join(dict.fromkeys(name for name, *_ in found))}")
    return matching


class _Checker:
    """Asks the slots for one item at a time, and gives a slot that lost its worker a fresh one."""

    def __init__(self, session: Session, settings: Settings) -> None:
        self.session, self.pool, self.settings = session, session.pool, settings
        self.together = not session.exclusive

    def ask(self, slots: Sequence[WorkerSlot], item: str, direction: Direction, dtype: str, *, alone: bool) -> list[Finding]:
        message = {"op": "examine", "item": item, "direction": direction, "dtype": dtype, "seed": self.settings.seed}
        deadline = self.settings.timeout["build"]  # an item compiles where a backend compiles
        found: list[Finding] = []
        for batch in [[slot] for slot in slots] if alone or not self.together else [slots]:
            asked: list[WorkerSlot] = []
            for slot in batch:
                if reason := self._unready(slot):
                    found.append(Finding(slot.name, item, direction, dtype, FAILED, None, reason))
                else:
                    asked.append(slot)
            requests = {i: (slot.worker, message) for i, slot in enumerate(asked) if slot.worker is not None}
            replies = self.pool.gather(requests, deadline, "check")
            found += [self._finding(slot, replies[i], item, direction, dtype) for i, slot in enumerate(asked)]
            if not self.together:
                for slot in batch:
                    slot.drop(self.pool)
        return found

    def _unready(self, slot: WorkerSlot) -> str:
        if slot.deaths >= MAX_DEATHS:
            return f"not tried: {MAX_DEATHS} cases in a row ended its worker"
        return self.session.revive([slot]).get(slot, "")

    def _finding(self, slot: WorkerSlot, reply: Reply, item: str, direction: str, dtype: str) -> Finding:
        def finding(verdict: str, worst: float | None, reason: str) -> Finding:
            return Finding(slot.name, item, direction, dtype, verdict, worst, reason)

        if isinstance(reply, Lost):
            slot.worker = None
            slot.deaths += 1
            return finding(FAILED, None, reply.reason)
        if "failed" in reply:
            if reply.get("poisoned"):
                slot.drop(self.pool)
                slot.deaths += 1
            try:
                return finding(FAILED, None, failure_from_json(reply["failed"])[1])
            except (KeyError, TypeError, ValueError):
                return self._nonsense(slot, finding)
        slot.deaths = 0
        if reason := reply.get("skip"):
            return finding(SKIPPED, None, str(reason))
        try:
            accuracy = accuracy_from_json(reply["accuracy"])
            beside = [float(reply["diagnostics"][key]) for key in DIAGNOSTICS] if "diagnostics" in reply else [None] * len(DIAGNOSTICS)
            return Finding(slot.name, item, direction, dtype, accuracy.grade.value, accuracy.worst, accuracy.detail, *beside)
        except (KeyError, TypeError, ValueError):
            return self._nonsense(slot, finding)

    def _nonsense(self, slot: WorkerSlot, finding: Callable[[str, float | None, str], Finding]) -> Finding:
        slot.drop(self.pool)
        return finding(FAILED, None, "the worker sent an invalid reply")
