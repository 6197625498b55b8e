"""Deals the cases of a sweep to shards: to tasks of a job, or to cards. A case stays whole, as its backends are compared on one card."""

from __future__ import annotations

import re
from collections.abc import Sequence
from heapq import heapreplace
from typing import NamedTuple

from softbench.core.case import Case
from softbench.core.errors import UsageError
from softbench.ops.registry import operation

CASE_BYTES = 2**26
"""Builds, checks and rounds of a case cost about as much as this many bytes that its calls move."""
MOST = 10_000
"""Shards, at most."""


class Shard(NamedTuple):
    """A part of a sweep."""

    number: int
    """From 1."""
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def parse_shard(text: str, flag: str = "--shard") -> Shard:
    """A shard from a text such as `2/8`.

    Raises:
        UsageError: it is no such text.
    """
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip(), re.ASCII)
    if not found or not 1 <= int(found[1]) <= int(found[2]) <= MOST:
        raise UsageError(f"{flag} '{text}': write the number of the shard and how many there are, at most {MOST}, as in 2/8")
    return Shard(int(found[1]), int(found[2]))


def deal(cases: Sequence[Case], parts: int) -> list[tuple[Case, ...]]:
    """The cases in parts of about equal cost, each in the order of the sweep. The same cases always give the same parts.

    Every part gets the next largest case when it has the least work so far (Graham's rule of the longest processing time first).
    """
    costs = [CASE_BYTES + operation(case.op).bytes_moved(case) for case in cases]
    work, found = [(0, part) for part in range(parts)], [list[int]() for _ in range(parts)]
    for place in sorted(range(len(cases)), key=lambda place: -costs[place]):
        least, part = work[0]
        heapreplace(work, (least + costs[place], part))
        found[part].append(place)
    return [tuple(cases[place] for place in sorted(some)) for some in found]


def of_shard(cases: Sequence[Case], shard: Shard) -> tuple[Case, ...]:
    """The cases of a shard.

    Raises:
        UsageError: the sweep has fewer cases than there are shards, so this one has none.
    """
    found = deal(cases, shard.of)[shard.number - 1]
    if not found:
        raise UsageError(f"--shard {shard}: the sweep has {len(cases)} cases, so this shard has none; take at most {len(cases)} shards")
    return found
