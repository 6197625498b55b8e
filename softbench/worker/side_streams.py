"""Detects work on other streams that is not ordered with the caller's stream. No event sees such work, so no timer counts it.

A clock gives a suspicion only, because a busy host is late too. Two kinds of evidence decide, and a busy host can fake neither.

- The profiler records when each kernel ran, and on which stream, by the GPU's clock. Between two calls, the caller's stream runs a
  separator. Ordered work never runs beside a separator: it starts after the one before its call, and ends before the next one.
- The device's work after the caller's stream grows with the number of calls, in three measurements. After calls of a small fill it is
  short.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from softbench.worker.device_timer import Activity, Session, UntracedError

Call = Callable[[], object]

SUSPECT_US = 150.0
"""Device work after the caller's stream has finished that makes a call suspect. An idle device is synchronized at once."""
MAX_CALLS = 50
"""As `softbench.worker.device_timer.MAX_ISSUED`: the driver's queue must not block."""
CALLS_US = 3000.0
"""The work that is issued at once, if MAX_CALLS suffice."""
AHEAD_CYCLES = 2_000_000
"""About 1 ms on the caller's stream, so that work that waits for that stream starts later."""
SEPARATOR_CYCLES = 150_000
"""About 80 us on the caller's stream: longer than a call takes to issue, so that the GPU does not wait for the host."""
OVERLAP_NS = 1000
"""Longest overlap that may be an error of the time stamps. For a short kernel the limit is half its duration."""
TRIES = 3


def unordered_work(call: Call, each_us: float, session: Callable[[], Session] | None) -> str:
    """Which work of a call is not ordered with the caller's stream, in words, or an empty text.

    Args:
        call: the call; nothing else may run on the device.
        each_us: about the duration of a call.
        session: makes a session of the profiler, or None where the profiler must not be used. Only a suspect call is traced.
    """
    calls = max(5, min(MAX_CALLS, int(CALLS_US / max(each_us, 1.0))))

    def separated() -> None:
        torch.cuda._sleep(AHEAD_CYCLES)
        for _ in range(calls):
            call()
            torch.cuda._sleep(SEPARATOR_CYCLES)

    if busy_us(call, calls) <= SUSPECT_US:
        return ""
    found = ""
    if session is not None:
        with suppress(UntracedError):
            found = _seen(separated, calls, session)
    return found or _growth(call, calls)


def busy_us(call: Call, calls: int) -> float:
    """Microseconds for which the device stays busy after the caller's stream has finished so many calls.

    Calls that run on the caller's stream, or join it again, leave the device idle. Each try measures in two ways and takes the larger
    value; the result is the least of the tries. A sleep on the caller's stream shows work that waits for that stream. Without the sleep,
    work that waits for no stream shows.
    """
    least = float("inf")
    for _ in range(TRIES):
        least = min(least, max(_busy_us(call, calls, cycles) for cycles in (AHEAD_CYCLES, 0)))
        if least <= SUSPECT_US:
            break
    return least


def overlaps(activities: Sequence[Activity], separator: Activity, separators: int) -> str:
    """Which activity ran on another stream beside a separator, in words, or an empty text.

    One such activity is ignored if it ran beside one separator only: a call may run something once.

    Args:
        activities: what the device did.
        separator: an activity with the separators' name and the caller's stream.
        separators: how many separators ran.

    Raises:
        UntracedError: the profiler saw another number of separators.
    """
    between = [activity for activity in activities if (activity.name, activity.stream) == (separator.name, separator.stream)]
    if len(between) < separators:
        raise UntracedError(f"the profiler saw {len(between)} of {separators} separators")
    others = [activity for activity in activities if activity.stream != separator.stream]
    found = Counter(other.name for other in others for activity in between if _overlap(activity, other))
    if found.total() < 2:
        return ""
    ((name, times),) = found.most_common(1)
    return f"{name} runs on another stream, not ordered with the caller's stream, so no event sees it ({times} times in a trace)"


def _overlap(separator: Activity, other: Activity) -> bool:
    start = max(separator.start_ns, other.start_ns)
    end = min(separator.start_ns + separator.duration_ns, other.start_ns + other.duration_ns)
    return end - start > min(OVERLAP_NS, other.duration_ns // 2)


def _seen(separated: Call, calls: int, session: Callable[[], Session]) -> str:
    """As `unordered_work`, from two traces: the second confirms the first. Raises UntracedError, or what the calls raise."""
    alone = _trace(lambda: torch.cuda._sleep(1), session)
    if len(alone) != 1:
        raise UntracedError(f"the profiler saw {len(alone)} kernels where one ran")
    found = ""
    for _ in range(2):
        if not (found := overlaps(_trace(separated, session), alone[0], calls + 1)):
            break
    return found


def _trace(work: Call, session: Callable[[], Session]) -> list[Activity]:
    """What the device did during a function.

    Raises:
        UntracedError: the profiler failed, in any way. What the function raises passes through.
    """
    try:
        profiler = session()
        profiler.start()
    except Exception as error:
        raise UntracedError(str(error)) from error
    try:
        work()
    except BaseException:
        with suppress(Exception):
            profiler.stop()
        raise
    try:
        return profiler.stop()
    except Exception as error:
        raise UntracedError(str(error)) from error


def _growth(call: Call, calls: int) -> str:
    """As `unordered_work`, without the profiler: from half of the calls and from all."""
    small = torch.empty(64, dtype=torch.int32, device="cuda").zero_
    few = more = 0.0
    for _ in range(TRIES):
        few, more = busy_us(call, calls // 2), busy_us(call, calls)
        late = max(busy_us(small, calls // 2), busy_us(small, calls))
        if more <= SUSPECT_US + 2 * late or more < 1.5 * few:
            return ""
    return (
        f"the GPU works on after the caller's stream has finished, {few:.0f} us after {calls // 2} calls and {more:.0f} us after {calls}: "
        "on another stream, where no event sees it"
    )


def _busy_us(call: Call, calls: int, cycles: int) -> float:
    torch.cuda.synchronize()
    if cycles:
        torch.cuda._sleep(cycles)
    for _ in range(calls):
        call()
    end = torch.cuda.Event()
    end.record()
    end.synchronize()
    start = time.perf_counter()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6
