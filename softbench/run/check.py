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
from softbench.core.machine import Gpu, Probe
from softbench.core.outcome import Grade
from softbench.plan.settings import Settings
from softbench.plugins import select as registry
from softbench.plugins.source import origins
from softbench.processes import slot as lanes_of
from softbench.processes.pool import Lost, Pool, Reply
from softbench.processes.slot import MAX_DEATHS, WorkerSlot
from softbench.results.records import accuracy_from_json, failure_from_json
from softbench.run.session import choose_device, environment, open_for, probe

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
    doors = origins(settings.plugins)
    with Pool() as pool:
        look = probe(pool, settings.timeout["import"])
        device, gpu = choose_device(settings.device, look)
        items = _items(pool, wanted)
        lanes = open_for(pool, doors, settings.backends, device, gpu, look, settings.timeout["import"])
        offers = registry.select([lane.offer for lane in lanes], settings.backends)
        chosen = [lane for lane in lanes if lane.offer in offers and lane.name != YARDSTICK]
        able = [lane for lane in chosen if not (lane.offer.broken or lane.offer.unavailable)]
        notes = [f"{lane.name}: {lane.offer.broken or 'unavailable: ' + lane.offer.unavailable}" for lane in chosen if lane not in able]
        if not chosen:
            raise UsageError(f"--backends {YARDSTICK}: the yardstick is no softmax; name what is to be checked")
        for lane in lanes:
            if lane not in able:
                lane.drop(pool)
        desk = _Desk(pool, settings, device, gpu, look)
        steps = [(dtype, item) for direction in wanted.directions for dtype in wanted.dtypes for item in items if item[1] == direction]
        findings: list[Finding] = []
        for done, (dtype, (name, direction, alone)) in enumerate(steps, 1):
            findings += desk.ask(able, name, direction, dtype, alone=alone)
            advance(done, len(steps))
    broken = any(lane.offer.broken for lane in chosen)
    return CheckReport(tuple(findings), tuple(notes), broken, device, settings.seed)


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


class _Desk:
    """Asks the lanes for one item at a time, and gives a lane that lost its worker a fresh one."""

    def __init__(self, pool: Pool, settings: Settings, device: str, gpu: Gpu | None, look: Probe) -> None:
        self.pool, self.settings, self.device = pool, settings, device
        self.env = environment(gpu, look)
        self.together = not (gpu and gpu.exclusive)

    def ask(self, lanes: Sequence[WorkerSlot], item: str, direction: Direction, dtype: str, *, alone: bool) -> list[Finding]:
        message = {"op": "examine", "item": item, "direction": direction, "dtype": dtype, "seed": self.settings.seed}
        deadline = self.settings.timeout["build"]  # an item compiles where a backend compiles
        found: list[Finding] = []
        for batch in [[lane] for lane in lanes] if alone or not self.together else [lanes]:
            asked: list[WorkerSlot] = []
            for lane in batch:
                if reason := self._unready(lane):
                    found.append(Finding(lane.name, item, direction, dtype, FAILED, None, reason))
                else:
                    asked.append(lane)
            requests = {i: (lane.worker, message) for i, lane in enumerate(asked) if lane.worker is not None}
            replies = self.pool.gather(requests, deadline, "check")
            found += [self._finding(lane, replies[i], item, direction, dtype) for i, lane in enumerate(asked)]
            if not self.together:
                for lane in batch:
                    lane.drop(self.pool)
        return found

    def _unready(self, lane: WorkerSlot) -> str:
        if lane.deaths >= MAX_DEATHS:
            return f"not tried: {MAX_DEATHS} cases in a row ended its worker"
        failed = lanes_of.revive(self.pool, [lane], self.device, self.env, self.settings.timeout["import"]).get(lane)
        return failed.reason if failed else ""

    def _finding(self, lane: WorkerSlot, reply: Reply, item: str, direction: str, dtype: str) -> Finding:
        def finding(verdict: str, worst: float | None, reason: str) -> Finding:
            return Finding(lane.name, item, direction, dtype, verdict, worst, reason)

        if isinstance(reply, Lost):
            lane.worker = None
            lane.deaths += 1
            return finding(FAILED, None, reply.reason)
        if "failed" in reply:
            if reply.get("poisoned"):
                lane.drop(self.pool)
                lane.deaths += 1
            try:
                return finding(FAILED, None, failure_from_json(reply["failed"])[1])
            except (KeyError, TypeError, ValueError):
                return self._nonsense(lane, finding)
        lane.deaths = 0
        if reason := reply.get("skip"):
            return finding(SKIPPED, None, str(reason))
        try:
            accuracy = accuracy_from_json(reply["accuracy"])
            beside = [float(reply["diagnostics"][key]) for key in DIAGNOSTICS] if "diagnostics" in reply else [None] * len(DIAGNOSTICS)
            return Finding(lane.name, item, direction, dtype, accuracy.grade.value, accuracy.worst, accuracy.detail, *beside)
        except (KeyError, TypeError, ValueError):
            return self._nonsense(lane, finding)

    def _nonsense(self, lane: WorkerSlot, finding: Callable[[str, float | None, str], Finding]) -> Finding:
        lane.drop(self.pool)
        return finding(FAILED, None, "its process gave an answer that is none")
