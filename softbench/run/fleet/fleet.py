"""A run on several cards: the steps of `softbench.run.run`, where each card's process measures and this process stores.

    open a process for each card -> each opens its session and loads its backends -> compare the cards -> deal the cases to them.
    Store records as they come -> deal the cases of lost cards to the others.

With the spread `shard`, the cards of one GPU model share the sweep. With `replicate` every card measures all of it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from softbench.core.case import YARDSTICK, Case
from softbench.core.json import JsonObject
from softbench.core.outcome import Failed, Record, Status
from softbench.core.text import count
from softbench.plan.deal import deal
from softbench.plan.estimate import run_seconds
from softbench.plan.plan import Plan, require_few_cells
from softbench.results import writer
from softbench.results.document import common, environments, units_of
from softbench.results.journal import SHARD
from softbench.run.fleet import comparison
from softbench.run.fleet.members import Member, Members
from softbench.run.fleet.messages import Measure
from softbench.run.header import header
from softbench.run.request import RunRequest
from softbench.run.run import finish, stored

if TYPE_CHECKING:
    from softbench.run.fleet.cards import Cards
    from softbench.run.run import Observer

REPLICATE = "replicate"
SPREADS = (SHARD, REPLICATE)


@dataclass(slots=True)
class Team:
    """Cards that share a sweep, and its cases that no card was dealt yet."""

    members: list[Member]
    waiting: list[Case]

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members if not member.lost]


class FleetPace:
    """How far the fleet is (`softbench.run.pace.Pacing`). One thread writes it; others may read it."""

    def __init__(self, members: Sequence[Member], cells: int, done: int) -> None:
        self.members, self.cells, self.done = members, cells, done

    def seconds_left(self) -> float:
        return max((member.left for member in self.members if member.working), default=0.0)

    def doing(self) -> str:
        busy = [f"{member.name}: {member.doing}" for member in self.members if member.working and member.doing]
        return "; ".join(busy) if len(busy) <= 2 else f"{busy[0]}; {count(len(busy) - 1, 'more card')}"


@dataclass(frozen=True, slots=True)
class How:
    """How a run uses several cards."""

    cards: Callable[[RunRequest], Cards]
    """Opens their processes for a request."""
    spread: str = SHARD
    force: bool = False
    """Share a sweep among cards that differ."""


def run(how: How, request: RunRequest, observer: Observer, on_start: Callable[[writer.Run], None]) -> writer.Run:
    """Measure a request on several cards and store it as one run. `on_start`: as in `softbench.run.run.run`.

    Raises:
        CardsLostError: no card is left that could measure the rest. What was measured is on disk, and can be resumed.
        SoftbenchError: a card, backend or folder cannot be used, or the cards differ too much to share a sweep.
        Interrupted: SIGINT or SIGTERM. Every card has ended, and all measured cells are on disk.
    """
    writer.writable(request.output)
    begin = time.monotonic()
    with closing(how.cards(request)) as opened:
        members = Members(opened, request, observer)
        members.open()
        comparison.compare_or_refuse(members, observer, alike=how.spread == SHARD and not how.force)
        _require_few_cells(members.alive, request, how.spread)
        head = _header(members.alive, request, how.spread)
        kept = stored(request, head, [case for member in members.alive for case in member.known.cases], observer)
        try:
            kept.cases = members.alive[0].known.cases
            on_start(kept)
            members.keep_log = kept.keep_log
            Fleet(members, kept, how.spread, observer).measure()
        except BaseException:
            kept.interrupt()
            raise
    spent = {op: sum(member.seconds.get(op, 0.0) for member in members.all) for member in members.all for op in member.seconds}
    kept.header["seconds"] = {op: round(seconds, 3) for op, seconds in {**spent, "wall": time.monotonic() - begin}.items()}
    finish(kept, observer)
    return kept


class Hand(NamedTuple):
    """What a card is dealt."""

    name: str
    """The card, such as `cuda:1`."""
    plan: Plan
    """The card's plan of the whole sweep."""
    cases: tuple[Case, ...]


def dry_run(how: How, request: RunRequest, observer: Observer) -> list[Hand]:
    """What each card would measure, if all measure to the end. The cards open their sessions, and measure and write nothing.

    Raises:
        CardsLostError: no card opens.
        SoftbenchError: a card or backend cannot be used.
    """
    with closing(how.cards(request)) as opened:
        members = Members(opened, request, observer)
        members.open(wait=False)
        _require_few_cells(members.alive, request, how.spread)
        hands = []
        for team in _teams(members.alive, how.spread):
            cases = deal(team.members[0].known.cases, len(team.members))
            hands += [Hand(member.name, member.known, hand) for member, hand in zip(team.members, cases, strict=True)]
    return hands


def _header(members: Sequence[Member], request: RunRequest, spread: str) -> JsonObject:
    """The header of the run document: that of a card, with the units of all. The cards may be others when the run is resumed."""
    heads = [header(member.known, request) for member in members]
    first = heads[0]
    facts = {unit: one for head in heads for unit, one in units_of(head).items()}
    fingerprint = {key: value for key, value in common([head["fingerprint"] for head in heads]).items() if key != "unit"}
    return {
        **first,
        "device_name": " and ".join(dict.fromkeys(head["device_name"] for head in heads)),
        "backends": list(dict.fromkeys(name for head in heads for name in head["backends"])),
        **{
            key: {name: value for head in reversed(heads) for name, value in head[key].items()} for key in ("origins", "sources", "commits")
        },
        **environments(facts),
        "spread": spread,
        "fingerprint": {**fingerprint, "spread": spread},
    }


def _teams(members: Sequence[Member], spread: str) -> list[Team]:
    models: dict[str, list[Member]] = {}
    for member in members:
        models.setdefault(member.known.device_name if spread == SHARD else member.unit, []).append(member)
    return [Team(some, []) for some in models.values()]


def _require_few_cells(members: Sequence[Member], request: RunRequest, spread: str) -> None:
    plan = members[0].known
    require_few_cells(len(plan.cases), len(plan.infos), request.shard, len(_teams(members, spread)))


def _seconds(member: Member, cases: Sequence[Case]) -> float:
    """The estimate for cases of a card that has loaded its backends, until it tells its own."""
    plan = replace(member.known, cases=tuple(cases))
    return run_seconds(plan, lambda name, case: (name, case) not in member.unsupported, loaded=True)


class Fleet:
    """Deals cases to cards, and stores what they measure."""

    def __init__(self, members: Members, kept: writer.Run, spread: str, observer: Observer) -> None:
        self.members, self.kept, self.observer = members, kept, observer
        self.teams = _teams(members.alive, spread)
        self.suspects: set[Case] = set()
        """Cases in which copy failed on a card that was given up for that."""
        self.units: dict[object, set[str]] = defaultdict(set)
        """The units of each GPU model, also those of the interrupted run."""
        for unit, facts in units_of(kept.header).items():
            self.units[facts.get("gpu")].add(unit)
        cells = done = 0
        for team in self.teams:
            plan = team.members[0].known
            team.waiting = [case for case in plan.cases if not self._measured(team, case)]
            cells += sum(self._cells(team.members[0], case) for case in plan.cases)
            waiting = frozenset(team.waiting)
            done += sum(self._cells(team.members[0], case) for case in plan.cases if case not in waiting)
        self.pace = FleetPace(members.all, cells, done)

    def measure(self) -> None:
        """Measure all cases that are not stored. Raises CardsLostError if a team has cases and no card left."""
        first = self.members.alive[0].known
        names = ", ".join(dict.fromkeys(member.known.device_name for member in self.members.alive))
        about = f"{count(len(self.members.alive), 'card')} ({names})"
        self._deal_all()
        self.observer.begin(replace(first, device_name=about), self.pace, self.kept.name)
        while any(member.working for member in self.members.alive):
            self.members.take(self._records)
            self._deal_all()
        left = sum(len(team.waiting) for team in self.teams if not team.alive)
        if left:
            self.members.require([], f"{count(left, 'case')} of {self.kept.name} could not be measured: ")

    def _deal_all(self) -> None:
        for team in self.teams:
            self._collect(team)
            self._deal(team)

    def _collect(self, team: Team) -> None:
        """Take back what lost and idle cards were dealt and did not measure."""
        for member in team.members:
            if member.busy and not member.working and not member.lost:
                self.members.lose(member, f"it did not measure {next(iter(member.busy)).key}")
            if member.busy and not member.working:
                team.waiting += [case for case in member.known.cases if case in member.busy]
                member.busy = set()

    def _deal(self, team: Team) -> None:
        """Deal the waiting cases to the idle cards. A case of which a card has a part goes to that card."""
        idle = [member for member in team.alive if not member.working]
        if not team.waiting or not idle:
            return
        of_unit = {member.unit: member for member in idle}
        some = [(case, of_unit[unit]) for case in team.waiting for unit in self.kept.cells.units(case) if unit in of_unit]
        begun = {case: member for case, member in some if self._begun(member, case)}
        order = {case: place for place, case in enumerate(idle[0].known.cases)} if begun else {}
        hands = deal([case for case in team.waiting if case not in begun], len(idle))
        for member, hand in zip(idle, hands, strict=True):
            own = [case for case, of in begun.items() if of is member]
            if cases := sorted([*hand, *own], key=order.__getitem__) if own else hand:
                stored = tuple((process, case) for case in cases for process in self._begun(member, case))
                self.members.measure(member, Measure(tuple(cases), stored))
                member.left = _seconds(member, cases)
        team.waiting = []

    def _records(self, member: Member, process: int, records: list[Record]) -> None:
        """Store the records of a case. A card on which copy fails is lost, and another one measures the case."""
        failed = next((record.outcome for record in records if record.backend == YARDSTICK and isinstance(record.outcome, Failed)), None)
        others = any(member in team.members and len(team.alive) > 1 for team in self.teams)
        cases = {record.case for record in records}
        if failed and failed.status in (Status.FAILED, Status.TIMEOUT) and others and not cases & self.suspects:
            self.suspects |= cases
            self.members.lose(member, f"copy failed on it: {failed.reason}")
            return
        self.kept.add(process, records)
        able = {info.name for info in member.known.infos if info.able}
        new = sum(record.backend in able and (record.backend, record.case) not in member.unsupported for record in records)
        self.pace.done = min(self.pace.cells, self.pace.done + new)  # what a lost card had of a case is measured anew
        for case in cases:
            if len(self._begun(member, case)) == member.known.settings.processes:
                member.busy.discard(case)
                self.observer.advance(case)

    def _begun(self, member: Member, case: Case) -> list[int]:
        """The process sets in which this card has measured a case."""
        plan = member.known
        sets = range(plan.settings.processes)
        return [process for process in sets if all(self.kept.has(process, names, case, member.unit) for names in plan.groups)]

    def _measured(self, team: Team, case: Case) -> bool:
        """True if a card of the team, or one of an earlier run that shared the sweep, has measured the case in all process sets."""
        plan = team.members[0].known
        alike = {plan.unit} if self.kept.header["spread"] == REPLICATE else self.units[plan.facts.get("gpu")]
        sets = range(plan.settings.processes)
        units = [unit for unit in self.kept.cells.units(case) if unit in alike]
        return any(all(self.kept.has(process, names, case, unit) for process in sets for names in plan.groups) for unit in units)

    def _cells(self, member: Member, case: Case) -> int:
        """Cells of a case that are measured, over all process sets."""
        plan = member.known
        names = [info.name for info in plan.infos if info.able and (info.name, case) not in member.unsupported]
        return 0 if plan.too_large(case) else len(names) * plan.settings.processes
