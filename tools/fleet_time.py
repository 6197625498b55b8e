"""Where a shared sweep's wall time went, and what it takes if the cards are compared while their backends load.

    python tools/fleet_time.py ONE.json FLEET.json [--load .75]

ONE is the run document of one card. FLEET is that of several cards which were compared after the load, as the runs in results/h100 were.
The parts that no document has are the differences of the two: FLEET has the cells of ONE, and two comparisons of each card.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Document = dict[str, Any]
MEASURING = ("build", "check", "renew", "time", "verify", "host", "trace", "calls", "profile")
ROUNDS = ("renew", "time", "verify")
RELOAD = 0.4
"""Seconds in which a card ended its worker of copy and loaded it again, after each comparison: .2 and .2 on an H100."""
COPY_LOADS = 2.6
"""Seconds until copy is loaded: in that time all of torch, triton and cuda are, in results/h100/fleet-replicate.json."""


@dataclass(frozen=True)
class Parts:
    """The wall time of a fleet by part, in seconds. All are those of one card, and follow each other."""

    probe: float
    """The probe of the host before the cards start, with an import of torch."""
    start: float
    """The start of a card's workers, and its own probe."""
    load: float
    turn: float
    """One comparison of copy: it was built, checked and timed."""
    turns: int
    """The comparisons: each card alone, then all at once."""
    measure: float
    """The cells of the card with the most batches."""
    rest: float
    """Processes, messages and files."""

    @property
    def wall(self) -> float:
        """The sum."""
        return self.probe + self.start + self.load + self.turns * self.turn + self.measure + self.rest

    def overlapped(self, *, known: bool, load: float) -> float:
        """The wall time with the comparison during the load. `known`: the host's GPUs are; `load` is the factor of the load's time."""
        loading = max(load * (self.load - RELOAD / 2), COPY_LOADS + self.turns * (self.turn - RELOAD) + RELOAD)
        return (0.0 if known else self.probe) + self.start + loading + self.measure + self.rest


def largest_builds(document: Document) -> float:
    """The sum over cases of the longest build, as workers build at once."""
    found: dict[tuple[str, str], float] = {}
    for cell in document["cells"]:
        key = cell["unit"], json.dumps(cell["case"], sort_keys=True)
        found[key] = max(found.get(key, 0.0), cell["outcome"]["build"]["seconds"])
    return sum(found.values())


def batches(document: Document) -> Counter[str]:
    """The batches of each card."""
    found: Counter[str] = Counter()
    for cell in document["cells"]:
        found[cell["unit"]] += len(cell["outcome"]["timing"]["batches"])
    return found


def parts(one: Document, fleet: Document) -> Parts:
    """The parts of the wall time of FLEET."""
    alone, spent, cards = one["seconds"], fleet["seconds"], len(fleet["units"])
    of_one, of_fleet = batches(one), batches(fleet)
    each = sum(alone[phase] for phase in ROUNDS) / of_one.total()
    build = spent["build"] - largest_builds(fleet) - (alone["build"] - largest_builds(one))
    rounds = sum(spent[phase] for phase in ROUNDS) - each * of_fleet.total()
    compared = max(0.0, build) + max(0.0, spent["check"] - alone["check"]) + max(0.0, rounds)
    turn = compared / (2 * cards)
    mean = (sum(spent[phase] for phase in MEASURING) - compared) / cards
    measure = mean + each * (max(of_fleet.values()) - of_fleet.total() / cards)
    start, load = (spent["start"] + spent["probe"]) / cards, spent["load"] / cards
    probe = alone["start"] + alone["probe"]
    rest = spent["wall"] - probe - start - load - (cards + 1) * (turn + RELOAD) - measure
    return Parts(probe, start, load, turn + RELOAD, cards + 1, measure, rest)


def main() -> None:
    """Print the parts and the predictions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("one", type=Path)
    parser.add_argument("fleet", type=Path)
    parser.add_argument("--load", type=float, default=1.0, help="the factor of the load's time since these runs")
    given = parser.parse_args()
    one, fleet = (json.loads(file.read_text()) for file in (given.one, given.fleet))
    found = parts(one, fleet)
    wall = one["seconds"]["wall"]
    loaded = wall - (1 - given.load) * one["seconds"]["load"]
    for name, seconds in (
        ("probe of the host", found.probe),
        ("start and probe of a card", found.start),
        ("load", found.load),
        (f"comparison, {found.turns} turns of {found.turn:.1f} s", found.turns * found.turn),
        ("cells of the card with the most batches", found.measure),
        ("rest", found.rest),
    ):
        print(f"{seconds:6.1f} s  {name}")
    print(f"{found.wall:6.1f} s  wall time, {found.wall / wall:.2f} of one card's {wall:.1f} s")
    for known, what in ((True, "the GPUs are known"), (False, "the host is probed")):
        seconds = found.overlapped(known=known, load=given.load)
        fractions = f"{seconds / wall:.3f} of {wall:.1f} s, {seconds / loaded:.3f} of one card's {loaded:.1f} s now"
        print(f"{seconds:6.1f} s  predicted if {what}: {fractions}")


if __name__ == "__main__":
    main()
