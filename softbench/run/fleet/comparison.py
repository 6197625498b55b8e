"""Compares cards before a sweep is sharded over them: the yardstick on each card alone, then on all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from softbench.core.case import YARDSTICK, Case, Direction
from softbench.core.errors import UsageError
from softbench.core.outcome import Failed, Record
from softbench.core.text import percent, three_digits
from softbench.results.columns import Row
from softbench.results.rows import row
from softbench.run.fleet.messages import Measure

if TYPE_CHECKING:
    from softbench.run.fleet.members import Member, Members
    from softbench.run.run import Observer

APART = 0.02
"""Bandwidths of equal cards that differ by more belong in no common table."""
EXTENTS = {"cuda": (4096, 32768, "bf16"), "cpu": (1024, 2048, "fp32")}
"""M, N and dtype of the copy: too large for the L2 of any GPU, and short."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One card's copy."""

    member: Member
    alone: Row
    together: Row
    """While all other cards copy too; `alone` itself if there is one card."""

    @property
    def text(self) -> str:
        """The bandwidths with their 95 % intervals, the clocks and the temperature."""
        parts = [f"copy {_gbps(self.alone)} alone"]
        if self.together is not self.alone:
            parts.append(f"{_gbps(self.together)} with all cards at once")
        read = self.together
        clocks = [f"{name} {mhz:.0f} MHz" for name, mhz in (("SM", read.sm_clock_mhz), ("memory", read.memory_clock_mhz)) if mhz]
        return ", ".join([*parts, *clocks, *([f"{read.temperature_c:.0f} C"] if read.temperature_c else [])])


def _gbps(one: Row) -> str:
    """The bandwidth, and its interval if there is one."""
    gbps, us = one.gbps or 0.0, one.median_us or 0.0
    if one.ends is None:
        return f"{three_digits(gbps)} GB/s"
    low, high = one.ends
    return f"{three_digits(gbps)} GB/s ({three_digits(gbps * us / high)} to {three_digits(gbps * us / low)})"


def compare(members: Members) -> list[Compared]:
    """Copy on each card alone, then on all at once. Cards of several hosts are alone at the same time. A card that cannot copy is lost."""
    hosts: dict[str, list[Member]] = {}
    for member in members.alive:
        hosts.setdefault(member.unit.partition("/")[0], []).append(member)
    alone: dict[Member, Row] = {}
    for turn in range(max(map(len, hosts.values()), default=0)):
        alone |= _copy(members, [some[turn] for some in hosts.values() if turn < len(some)])
    several = len(members.alive) > 1
    together = _copy(members, members.alive) if several else alone
    return [Compared(member, alone[member], together[member]) for member in members.alive if member in alone and member in together]


def _copy(members: Members, chosen: Sequence[Member]) -> dict[Member, Row]:
    """The row of copy on each of these cards, all at once."""
    found: dict[Member, Row] = {}

    def records(member: Member, process: int, given: list[Record]) -> None:
        for record in given:
            if isinstance(record.outcome, Failed):
                members.lose(member, f"copy failed on it: {record.outcome.reason}")
                return
            found[member] = row(record, None, None, device=member.known.device_name, run="", facts=member.known.facts)

    for member in chosen:
        if not member.lost:
            M, N, dtype = EXTENTS[member.known.device]
            case = Case(M, N, dtype, Direction.FORWARD, member.known.device)
            members.measure(member, Measure((case,), backends=(YARDSTICK,)))
    while any(member.working and not member.lost for member in chosen):
        members.take(records)
    for member in chosen:
        member.busy = set()
        if not member.lost and member not in found:
            members.lose(member, "it has no result of copy")
    return {member: one for member, one in found.items() if one.gbps}


def require_alike(compared: Sequence[Compared]) -> None:
    """Cards of one model that are to share a sweep must be equally fast.

    Raises:
        UsageError: two cards of one model are further apart than APART, alone.
    """
    models: dict[str, list[Compared]] = {}
    for one in compared:
        models.setdefault(one.member.known.device_name, []).append(one)
    for model, some in models.items():
        slow, *_, fast = sorted([some[0], *some], key=lambda one: one.alone.gbps or 0)
        ratio = (fast.alone.gbps or 0) / (slow.alone.gbps or 1) - 1
        if ratio > APART:
            bandwidths = f"{three_digits(slow.alone.gbps or 0)} and {three_digits(fast.alone.gbps or 0)} GB/s"
            raise UsageError(
                f"{slow.member.name} and {fast.member.name} ({model}) are {percent(ratio)} apart: copy moves {bandwidths}, so one table of "
                "both would mislead; name equal cards with --devices, measure all of them with --spread replicate, or add --force"
            )


def compare_or_refuse(members: Members, observer: Observer, *, alike: bool) -> None:
    """Compare the cards of a run, if there are several. With `alike` those of one model must be equally fast.

    Raises:
        CardsLostError: every card is lost.
        UsageError: as `require_alike`.
    """
    if len(members.alive) < 2:
        return
    compared = compare(members)
    for one in compared:
        observer.note(f"{one.member.name} ({one.member.unit}): {one.text}")
    members.require(members.alive)
    if alike:
        require_alike(compared)
