"""The members of a fleet: each card with its plan, what it does, and why it was lost."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from softbench.core.case import Case
from softbench.core.errors import NotMeasurableError, UsageError, WorkersError
from softbench.core.json import JsonObject, to_json
from softbench.core.outcome import Record
from softbench.core.text import one_line
from softbench.ops import registry
from softbench.ops.declaration import to_json as operation_to_json
from softbench.plan.plan import Plan
from softbench.plugins.info import info_from_json
from softbench.plugins.source import PluginSource, origins
from softbench.results.records import record_from_json
from softbench.run import queue as place_queue
from softbench.run.fleet import messages
from softbench.run.fleet.messages import Backend, Measure, Open, Opened, ToCard
from softbench.run.plan_of import plan_of
from softbench.run.request import RunRequest, request_to_json

if TYPE_CHECKING:
    from softbench.run.fleet.cards import Cards
    from softbench.run.run import Observer

SILENT_SECONDS = 60.0
"""A card that says nothing for so long is lost. Its process says something every second, whatever its workers do."""
FIRST_SECONDS = 180.0
"""How long a card may take to say something at all: Ray starts processes on nodes that are busy."""
LOOK_SECONDS = 0.5
SKEW = ("softbench", "torch", "python")
"""Versions that all cards of a run have in common."""


class CardsLostError(WorkersError):
    """No card is left that could measure the rest of a run."""


@dataclass(slots=True, eq=False)
class Member:
    """One card."""

    number: int
    name: str
    plan: Plan | None = None
    """None until its process has loaded its backends."""
    unsupported: Collection[tuple[str, Case]] = ()
    versions: tuple[str, ...] = ()
    busy: set[Case] = field(default_factory=set)
    """The cases that it was dealt and has not measured."""
    working: bool = False
    lost: str = ""
    """Why it is lost; empty if it is not."""
    too_busy: bool = False
    """True if it is lost because other programs used it for as long as it waited."""
    heard: float = 0.0
    """Time of its last message, or of its start."""
    spoke: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    """Where its time went, by request."""
    doing: str = ""
    left: float = 0.0

    @property
    def known(self) -> Plan:
        """The plan of a card that is open."""
        assert self.plan is not None
        return self.plan

    @property
    def unit(self) -> str:
        return self.known.unit


class Members:
    """All cards, and the messages between them and the fleet."""

    def __init__(self, cards: Cards, request: RunRequest, observer: Observer) -> None:
        self.cards, self.request, self.observer = cards, request, observer
        self.all = [Member(number, name, heard=time.monotonic()) for number, name in enumerate(cards.names)]
        self.keep_log: Callable[[str, str], object] = lambda label, text: None
        self._sources = {source.label: source for source in origins(request.settings().plugins)}
        self._noted: set[str] = set()

    @property
    def alive(self) -> list[Member]:
        """The cards that are not lost."""
        return [member for member in self.all if not member.lost]

    def open(self, *, wait: bool = True) -> None:
        """Open all cards, and wait until each is open or lost. Without `wait` they do not wait for other runs, so they must not measure.

        Raises:
            CardsLostError: every card is lost.
            UsageError: the versions of two cards differ, or the request is wrong.
        """
        request = request_to_json(self.request)
        operations = {file: operation_to_json(registry.declared(registry.of_file(file))) for file in registry.files()}
        with place_queue.several(self.observer.note) if wait and len(self.all) > 1 else nullcontext():
            for member, opening in zip(self.all, self.cards.opening, strict=True):
                member.heard = time.monotonic()
                self.send(member, Open(request, operations, **opening, wait=wait))
            while any(member.plan is None for member in self.alive):
                self.take()
        self.require(self.alive)
        first = self.alive[0]
        if first.versions[0] != self.request.version:
            raise UsageError(
                f"{first.name} has softbench {first.versions[0]}, and this host has {self.request.version}: install one version"
            )
        for member in self.alive:
            for name, mine, its in zip(SKEW, first.versions, member.versions, strict=True):
                if mine != its:
                    raise UsageError(f"{member.name} has {name} {its}, and {first.name} has {mine}: install one version on all hosts")
            for info in member.known.infos:
                other = next((one for one in first.known.infos if one.name == info.name), info)
                if other.source != info.source:
                    raise UsageError(f"{member.name} and {first.name} have two sources of backend {info.name}: install one on all hosts")

    def require(self, alive: Sequence[Member], what: str = "") -> None:
        """Raise an error with the reasons if no card is left: NotMeasurableError if other programs used all, else CardsLostError."""
        if not alive:
            if all(member.too_busy for member in self.all):
                raise NotMeasurableError("; ".join(f"{member.name}: {member.lost}" for member in self.all))
            reasons = "; ".join(f"{member.name} is lost: {member.lost}" for member in self.all if member.lost)
            raise CardsLostError(f"{what}{reasons}")

    def send(self, member: Member, message: ToCard) -> None:
        """Send a message to a card."""
        self.cards.send(member.number, to_json(message))

    def measure(self, member: Member, message: Measure) -> None:
        """Let a card measure cases."""
        member.busy, member.working, member.heard = set(message.cases), True, time.monotonic()
        self.send(member, message)

    def take(self, records: Callable[[Member, int, list[Record]], object] | None = None) -> None:
        """Wait for a message, and give records to this function. A silent card is lost."""
        try:
            number, message = self.cards.events.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            pass
        else:
            self._read(self.all[number], message, records)
        now = time.monotonic()
        for member in self.alive:
            patience = SILENT_SECONDS if member.spoke else FIRST_SECONDS
            if now - member.heard > patience:
                self.lose(member, f"it said nothing for {patience:g} s")

    def lose(self, member: Member, reason: str) -> None:
        """Do without a card from now on."""
        if not member.lost:
            member.lost, member.working = reason, False
            self.observer.note(f"{member.name} is lost: {reason}", error=True)
            self.cards.kill(member.number)

    def _read(self, member: Member, data: JsonObject, records: Callable[[Member, int, list[Record]], object] | None) -> None:
        if member.lost:
            return
        member.heard, member.spoke = time.monotonic(), True
        try:
            match messages.from_card(data):
                case messages.Beat(doing, left):
                    member.doing, member.left = one_line(doing), left
                case messages.Note(text):
                    self._note(one_line(text, 2000), member)
                case messages.Log(label, text):
                    self.keep_log(f"{member.name} {label}", text)
                case messages.Opened() as opened:
                    self._opened(member, opened)
                case messages.Records(process, cells) if records:
                    records(member, process, [replace(record_from_json(cell), unit=member.unit) for cell in cells])
                case messages.Done(seconds):
                    member.working, member.seconds = False, seconds
                case messages.Error(text, UsageError.exit_code):
                    raise UsageError(one_line(text, 2000))
                case messages.Error(text, code):
                    member.too_busy = code == NotMeasurableError.exit_code
                    self.lose(member, one_line(text, 500))
                case messages.Ended(text):
                    self.lose(member, one_line(text, 500))
        except (LookupError, TypeError, ValueError) as error:
            why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            self.lose(member, one_line(f"it sent an invalid message: {why}", 200))

    def _note(self, text: str, member: Member, *, error: bool = False) -> None:
        """Cards of one host have the same notes before a run, and each comes once."""
        if text not in self._noted:
            self._noted.add(text)
            self.observer.note(f"{member.name}: {text}", error=error)

    def _opened(self, member: Member, about: Opened) -> None:
        machine = about.machine
        gpu = None if about.gpu is None else machine.gpus[about.gpu]
        infos = [info_from_json({**one.info, "origin": None}, self._source(one)) for one in about.infos]
        plan = plan_of(self.request, machine, "cuda" if gpu else "cpu", gpu, infos)
        for text in plan.lost:
            self._note(text, member, error=True)
        member.plan = replace(plan, facts={**plan.facts, "unit": about.unit})
        member.unsupported = frozenset(about.unsupported)
        member.versions = (about.softbench, machine.torch, str(machine.software.get("python")))

    def _source(self, one: Backend) -> PluginSource:
        return self._sources.get(one.label) or PluginSource(**one.info["origin"])
