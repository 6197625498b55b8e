"""The async-work watch: detects work that is not finished when a call returns.

Signs of such work: the output still changes, or the GPU is busy after the caller's stream.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from softbench.worker.checking.output_checks import same

Call = Callable[[], object]

LATE = "wrote its output after its call had returned: on another thread or stream, or later"

SETTLE_SECONDS = 0.03
"""Time for a remaining thread to write. It is short compared with a build."""
SUSPECT_US = 150.0
"""Time that the device is busy after the caller's stream, in microseconds, from which calls are suspect. An idle device needs less."""
MAX_CALLS = 50
"""As `softbench.worker.timing.device_timer.MAX_ISSUED`: the driver's queue must not block."""
CALLS_US = 3000.0
"""The work that is issued at once, if MAX_CALLS suffice."""
AHEAD_CYCLES = 2_000_000
"""About 1 ms on the caller's stream, so that work that waits for that stream starts later."""
TRIES = 3
GROWTH = 1.5
"""Ratio of the delays after all calls and after half of them, from which the work grows with the calls. Work on another stream has 2."""


class AsyncWorkWatch:
    """Watches one call: was its work finished when it returned?

    A thread that still runs is no fault: a library may count or log on it. What counts is whether the output changes.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.threads = _threads()

    def unfinished(self, results: Any) -> str:
        """A message if the output changes after the call; else an empty text. Use it right after the call.

        It compares two readings of the output. On a GPU the first is ordered on the caller's stream; the second waits for the device.
        """
        all_results = results if isinstance(results, tuple | list) else (results,)
        outputs = [
            out for out in all_results if type(out) is torch.Tensor and out.layout is torch.strided and out.device.type == self.device
        ]
        at_once = [torch.Tensor.detach(out).clone() for out in outputs]
        if _thread._count() or _threads() - self.threads:
            time.sleep(SETTLE_SECONDS)
        if self.device == "cuda":
            torch.cuda.synchronize()
        return "" if all(same(torch.Tensor.detach(out), early) for early, out in zip(at_once, outputs, strict=True)) else LATE


def _threads() -> frozenset[str]:
    """The threads of this process, native ones too; none on systems without /proc."""
    try:
        return frozenset(task.name for task in Path("/proc/self/task").iterdir())
    except OSError:
        return frozenset()


def late_work(call: Call, each_us: float) -> str:
    """How the device works on after the caller's stream has finished, in words; an empty text if it does not.

    A busy host is late too, so one delay is a suspicion only. What decides is the growth with the number of calls, in each of TRIES
    measurements, beyond the delay of a small fill under the same conditions. Work that takes less is found in a trace
    (`softbench.worker.timing.trace.unordered`).

    Args:
        call: the call; nothing else may run on the device.
        each_us: about the duration of a call, in microseconds.
    """
    calls = max(6, min(MAX_CALLS, int(CALLS_US / max(each_us, 1.0))))
    if busy_us(call, calls) <= SUSPECT_US:
        return ""
    small = torch.empty(64, dtype=torch.int32, device="cuda").zero_
    few = more = 0.0
    for _ in range(TRIES):
        few, more, idle = busy_us(call, calls // 2), busy_us(call, calls), busy_us(small, calls)
        if more <= SUSPECT_US + 2 * idle or more < GROWTH * few:
            return ""
    return (
        f"the GPU still works after the caller's stream has finished: {few:.0f} us after {calls // 2} calls, {more:.0f} us after {calls}. "
        "No event sees that work"
    )


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
