"""`softbench doctor --devices`: what the cards of this host copy, alone and at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Protocol

from softbench import __version__
from softbench.core.case import YARDSTICK, Case
from softbench.core.errors import UsageError, WorkersError
from softbench.plan.plan import Plan
from softbench.run.doctor import Finding
from softbench.run.fleet import comparison
from softbench.run.fleet.cards import Cards, LocalCards
from softbench.run.fleet.members import Members
from softbench.run.pace import Pacing
from softbench.run.request import RunRequest


class Tell(Protocol):
    """Takes a note for the user; with `error` one of a loss."""

    def __call__(self, text: str, *, error: bool = False) -> object: ...


class Notes:
    """An observer that only passes notes on."""

    def __init__(self, note: Tell) -> None:
        self._note = note

    def watch(self, doing: Callable[[], str]) -> None:
        """Nothing is shown."""

    def begin(self, plan: Plan, pace: Pacing, name: str) -> None:
        """Nothing is shown."""

    def advance(self, case: Case) -> None:
        """Nothing is shown."""

    def note(self, text: str, *, error: bool = False) -> None:
        self._note(text, error=error)


def examine(devices: str, note: Tell, cards: Callable[[str], Cards] = LocalCards) -> list[Finding]:
    """A finding for each card, and a warning if equal cards are too far apart to share a sweep.

    Raises:
        UsageError: there is no such GPU.
    """
    request = RunRequest({}, {"backends": (YARDSTICK,), "M": (1,), "N": (1,)}, False, Path(), False, "softbench doctor", __version__)
    with closing(cards(devices)) as opened:
        members = Members(opened, request, Notes(note))
        try:
            members.open()
            compared = comparison.compare(members)
        except WorkersError as error:
            return [("cards", "missing", str(error))]
    found: list[Finding] = [(one.member.name, "ok", f"{one.member.unit}: {one.text}") for one in compared]
    found += [(member.name, "missing", f"lost: {member.lost}") for member in members.all if member.lost]
    try:
        comparison.require_alike(compared)
    except UsageError as error:
        found.append(("cards", "warning", str(error)))
    return found
