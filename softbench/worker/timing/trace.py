"""A trace: what the profiler recorded on the device while calls ran. It is parted into the calls, and shows work outside their order.

Around each call run two separators on the caller's stream: a fill before it, and a pause after it. Work that is ordered with that stream
starts after the fill before its call, and ends before the pause after it. All time stamps are the GPU's, so a busy host changes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from softbench.core.text import one_line

OVERLAP_NS = 1000
"""Longest overlap that may be an error of the time stamps. For a short kernel the limit is half its duration."""


class UntracedError(Exception):
    """The profiler did not see what a call runs on the device; the message says why."""


class NoKernelError(UntracedError):
    """The profiler saw its own separators, and nothing of any call."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Something that ran on the device: a kernel, a copy or a fill."""

    name: str
    start_ns: int
    duration_ns: int
    stream: int = 0
    """CUPTI's number of the stream."""

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class Separators:
    """How the separators are recognized."""

    fills: frozenset[str]
    """Names of the fill before each call."""
    pause: str
    """Name of the pause after each call."""
    stream: int
    """The caller's stream."""


@dataclass(frozen=True, slots=True)
class TracedCall:
    """What the device ran from the fill before a call to the next fill."""

    fill: Activity
    work: tuple[Activity, ...]
    """The call's own, by start."""
    pause: Activity


def separators(alone: Sequence[Activity]) -> Separators:
    """How to recognize the separators, from a trace in which a fill and then a pause ran.

    Raises:
        UntracedError: the trace has something else.
    """
    ordered = sorted(alone, key=lambda activity: activity.start_ns)
    if len(ordered) < 2 or len({activity.stream for activity in ordered}) > 1:
        raise UntracedError(f"the profiler saw {len(ordered)} kernels where a fill and a pause ran")
    *fills, pause = ordered
    return Separators(frozenset(fill.name for fill in fills), pause.name, pause.stream)


def split(activities: Sequence[Activity], calls: int, known: Separators) -> list[TracedCall]:
    """What each of so many calls ran, in their order. A call may itself run what is named as a separator is.

    Raises:
        UntracedError: the calls cannot be told apart.
    """
    ordered = sorted(activities, key=lambda activity: activity.start_ns)
    names = [activity.name for activity in ordered]
    starts = [i for i, name in enumerate(names) if name in known.fills]
    if len(starts) != calls:  # a call may run such a fill: then calls are told apart by being alike
        period = len(ordered) // calls
        if period < 2 or names[0] not in known.fills or names != names[:period] * calls:
            raise UntracedError(f"the profiler saw {len(ordered)} kernels and fills, which {calls} calls do not explain")
        starts = list(range(0, len(ordered), period))
    ends = [*starts[1:], len(ordered)]
    return [_traced_call(ordered[start], ordered[start + 1 : end], known) for start, end in zip(starts, ends, strict=True)]


def _traced_call(fill: Activity, after: list[Activity], known: Separators) -> TracedCall:
    pauses = [i for i, activity in enumerate(after) if (activity.name, activity.stream) == (known.pause, known.stream)]
    if not pauses:
        raise UntracedError("the profiler lost a pause between two calls")
    return TracedCall(fill, tuple(after[: pauses[-1]] + after[pauses[-1] + 1 :]), after[pauses[-1]])


def unordered(calls: Sequence[TracedCall]) -> str:
    """Which work of these calls ran on another stream beside separators, in words; empty if there is none.

    Work beside one separator only is ignored, because a call may run something once.
    """
    between = [separator for call in calls for separator in (call.fill, call.pause)]
    others = [activity for call in calls for activity in call.work if activity.stream != call.pause.stream]
    beside = Counter(other.name for other in others if any(_overlap(separator, other) for separator in between))
    if beside.total() < 2:
        return ""
    ((name, times),) = beside.most_common(1)
    return (
        f"{one_line(name, 80)} runs on another stream, not ordered with the caller's stream, so no event sees it "
        f"({times} times in {len(calls)} calls)"
    )


def _overlap(separator: Activity, other: Activity) -> bool:
    start, end = max(separator.start_ns, other.start_ns), min(separator.end_ns, other.end_ns)
    return end - start > min(OVERLAP_NS, other.duration_ns // 2)
