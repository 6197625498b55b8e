"""The messages between a fleet and its cards: a type for each. They travel as lines of JSON, over pipes or through Ray."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from msgspec import Struct

from softbench.core.case import Case
from softbench.core.json import JsonObject, from_json
from softbench.core.machine import Machine
from softbench.core.outcome import Count


class ToCard(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op"):
    """A message to a card."""


class Open(ToCard, frozen=True, tag="open"):
    """Open the session, and load the backends. The answer is `Opened`."""

    request: JsonObject
    """As `softbench.run.request.request_to_json` makes it."""
    operations: dict[str, JsonObject]
    """Users' operations by file, as `softbench.ops.declaration.to_json` makes them: the cases of a problem are those asked for."""
    device: str
    processors: tuple[int, ...] = ()
    """Those that the process may use; with none it takes its share of what it may use, if it has `of_node`."""
    of_node: tuple[int, int] | None = None
    """The place of the card on its node, and the number of cards there."""
    wait: bool = True
    """Wait for other runs on the device. Without it the card must not measure."""


class Measure(ToCard, frozen=True, tag="measure"):
    """Measure cases, after `Opened` or `Done`. The answers are `Records` for each case, then `Done`."""

    cases: tuple[Case, ...]
    stored: tuple[tuple[int, Case], ...] = ()
    """The process sets and cases that the fleet has from this unit already."""
    backends: tuple[str, ...] | None = None
    """None: all."""


class FromCard(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op"):
    """A message of a card."""


class Beat(FromCard, frozen=True, tag="beat"):
    """Comes every second, and says how far the card is."""

    doing: str
    left: float
    """Seconds."""


class Note(FromCard, frozen=True, tag="note"):
    """A note for the user."""

    text: str


class Log(FromCard, frozen=True, tag="log"):
    """The output of a failed worker."""

    label: str
    text: str


class Backend(Struct, frozen=True):
    """A backend of a card."""

    label: str
    """Of its plugin source."""
    info: JsonObject
    """As `softbench.plugins.info.info_to_json` makes it."""


class Opened(FromCard, frozen=True, tag="opened"):
    """All backends are loaded. What the fleet plans with."""

    softbench: str
    """Its version."""
    machine: Machine
    gpu: Count | None
    """The number of the card's GPU in `machine`; None on a CPU."""
    unit: str
    infos: tuple[Backend, ...]
    unsupported: tuple[tuple[str, Case], ...]
    """Backends, and cases that they do not support."""


class Records(FromCard, frozen=True, tag="records"):
    """The records of a case."""

    process: Count
    """Number of the process set, from 0."""
    records: tuple[JsonObject, ...]
    """As `softbench.results.records.record_to_json` makes them."""


class Done(FromCard, frozen=True, tag="done"):
    """All cases of a `Measure` are measured."""

    seconds: dict[str, float]
    """Where the card's time went, by request."""


class Error(FromCard, frozen=True, tag="error"):
    """The card ends."""

    text: str
    code: int
    """The exit code of its kind of error."""


class Ended(FromCard, frozen=True, tag="ended"):
    """The last message of a card, from who watches its process."""

    text: str
    """How it ended."""


_TO_CARD = Open | Measure
_FROM_CARD = reduce(or_, (Beat, Note, Log, Opened, Records, Done, Error, Ended))


def to_card(data: JsonObject) -> Open | Measure:
    """A message to a card from its JSON. Raises ValueError if it is invalid."""
    message: Open | Measure = from_json(_TO_CARD, data)  # type: ignore[arg-type]
    return message


def from_card(data: JsonObject) -> Any:
    """A message of a card from its JSON. Raises ValueError if it is invalid; the message says where."""
    return from_json(_FROM_CARD, data)  # type: ignore[arg-type]
