"""Measures the device time and the host time of a call.

Device time is the sum of the durations of a call's kernels, copies and fills. CUPTI measures them, through torch's profiler. Before each
call a fill runs, and after it a pause; they separate the calls and are not counted. With a cold L2 the filled buffer is larger than any L2;
with a warm L2 it has a few bytes. Overlapping kernels are counted in full, up to the limit below. Host time is the time to issue a call,
without its wait.

Tracing slows some kernels. On an H200, torch 2.11's softmax of 16384 x 16384 in bfloat16 takes 484 us by ncu and 515 us under CUPTI,
without the limit. The limit is the time of a few calls between events, without the profiler.
If the traced median exceeds it, all samples are scaled down to it.

While CUPTI stays loaded between sessions, every CUDA call of the process takes longer. So CUPTI is unloaded after each session;
`tests/gpu/test_timers_gpu.py` requires that a profile takes at most 0.1 s with that. It stays loaded if a backend or a timer captures CUDA
graphs, because unloading can crash then. Before CUDA 12.6, torch.profiler also keeps it loaded.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from softbench.worker.timing.trace import Activity, NoKernelError, Separators, UntracedError, separators, split, unordered

FLUSH_BYTES = 256 * 2**20  # as do_bench flushes
MARK_BYTES = 256
PAUSE_CYCLES = 150_000  # about 80 us: longer than the host takes to issue a short call, so that the GPU does not wait for it
MIN_CALLS = 5
MAX_CALLS = 100  # of a traced window; each costs the profiler tens of microseconds
MAX_ISSUED = 50  # calls in a row without a wait; 20 kernels each stay below the 1024 launches that the driver queues
TEARDOWN = "TEARDOWN_CUPTI"
"""Kineto's variable: with `1`, one of the CUDA calls after a session unloads CUPTI."""
TEARDOWN_GIVEN = TEARDOWN in os.environ  # then the user's value is kept
LEAVE_SECONDS = 0.2  # longest wait until CUPTI is unloaded
ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})

Call = Callable[[], object]


class Session(Protocol):
    """The profiler at work, from `start` to `stop`, which returns what the device did meanwhile; all of that is then done."""

    def start(self) -> object: ...

    def stop(self) -> list[Activity]: ...


@dataclass(slots=True)
class DeviceTimer:
    """Device and host time of calls. Its parts can be replaced, so that tests need no GPU.

    Device time is measured in three steps, because the profiler's start and stop take far longer than the calls. `begin` and `end` may run
    in several processes at once; `run` needs the device alone.
    """

    session: Callable[[], Session]
    fill: Callable[[int], Call]
    """A call that fills a buffer of so many bytes, by one kernel."""
    pause: Call
    """Keeps the caller's stream busy for some microseconds, by one kernel."""
    synchronize: Call
    clock_ns: Callable[[], int] = time.perf_counter_ns
    between: Callable[[Call, Call, int], list[float]] = lambda separate, call, times: [math.inf]
    """Microseconds of so many calls, from an event before each to one after it, the first function before each; none waits for another."""
    separators: dict[str, Separators] = field(default_factory=dict)
    """How the separators are recognized, by L2: the same in every window."""
    running: Session | None = None
    window: tuple[str, int] = ("", 0)
    """L2 and number of the calls in the running session."""
    limit_us: float = math.inf
    """What the next window's calls take at most, as `untraced` found."""
    unordered: str = ""
    """Work of the last window that is not ordered with the caller's stream, as `softbench.worker.timing.trace.unordered`."""

    def device(self, call: Call, batch_ms: float, l2: str) -> tuple[list[float], list[str]]:
        """Microseconds of each call's kernels, and the kernels' names in the order of a call. `l2`: `cold` or `warm`.

        Raises:
            UntracedError: the profiler cannot be used here, or does not see the kernels.
        """
        self.untraced(call, l2)
        self.begin(l2)
        self.run(call, batch_ms, l2)
        return self.end()

    def untraced(self, call: Call, l2: str) -> None:
        """Measure the limit of the next window, without the profiler. Raises what the call raises."""
        found = self.between(self._separator(l2), call, 2 * MIN_CALLS + 1)
        self.limit_us = statistics.median(found[1:] or found)

    def begin(self, l2: str) -> None:
        """Start the profiler. Raises as `device`."""
        self.abandon()
        if l2 not in self.separators:  # by itself: a window that lost its first fill would take something else for one
            self.running = self.session()
            self.running.start()
            self._separator(l2)()
            self.pause()
            self.separators[l2] = separators(self._stopped())
        self.running = self.session()
        self.running.start()

    def run(self, call: Call, batch_ms: float, l2: str) -> None:
        """The calls of a window. Raises what a call raises; the profiler is then stopped."""
        separate = self._separator(l2)

        def apart() -> None:
            separate()
            call()
            self.pause()

        try:
            calls = self._calls(apart, batch_ms, MAX_CALLS) + 1
            _repeated(apart, calls)()
            self.synchronize()  # another worker runs its calls next
            self.window = l2, calls
        except BaseException:
            self.abandon()
            raise

    def end(self) -> tuple[list[float], list[str]]:
        """Stop the profiler; as `device`. Raises NoKernelError if no call ran a kernel, a copy or a fill."""
        (l2, calls), self.unordered = self.window, ""
        traced = split(self._stopped(), MIN_CALLS + calls, self.separators[l2])
        traced = traced[MIN_CALLS + 1 :]  # without those that only told how many to make, and one more for the warmth that the wait took
        if not any(call.work for call in traced):
            raise NoKernelError(f"the profiler saw no kernel of {len(traced)} calls, so nothing shows that they computed")
        self.unordered = unordered(traced)
        if not all(call.work for call in traced):
            raise UntracedError("the profiler saw no kernel of a call")
        kernels, _ = Counter(tuple(activity.name for activity in call.work) for call in traced).most_common(1)[0]
        sums_us = [sum(activity.duration_ns for activity in call.work) / 1e3 for call in traced]
        slowed, self.limit_us = max(1.0, statistics.median(sums_us) / (self.limit_us or math.inf)), math.inf
        return [round(us / slowed, 3) for us in sums_us], list(kernels)

    def abandon(self) -> None:
        """Stop the profiler, if it runs, whatever it saw."""
        if self.running is not None:
            with suppress(UntracedError):
                self._stopped()

    def _stopped(self) -> list[Activity]:
        if self.running is None:
            raise UntracedError("the profiler was not started")
        session, self.running = self.running, None
        return session.stop()

    def _separator(self, l2: str) -> Call:
        return self.fill(FLUSH_BYTES if l2 == "cold" else MARK_BYTES)

    def host(self, call: Call, batch_ms: float) -> list[float]:
        """Microseconds of issuing each call. A call that itself waits for the device has that wait in it."""
        samples = []
        calls = self._calls(call, batch_ms, MAX_ISSUED)
        for _ in range(calls):
            begin = self.clock_ns()
            call()
            samples.append(round((self.clock_ns() - begin) / 1e3, 3))
        self.synchronize()
        return samples

    def _calls(self, call: Call, batch_ms: float, most: int) -> int:
        """How many fit into a batch; they warm up what is called, and the device is idle after them."""
        self.synchronize()
        begin = self.clock_ns()
        _repeated(call, MIN_CALLS)()
        self.synchronize()
        each_ns = (self.clock_ns() - begin) / MIN_CALLS
        return max(MIN_CALLS, min(most, int(batch_ms * 1e6 / max(each_ns, 1))))


def _repeated(call: Call, times: int) -> Call:
    def body() -> None:
        for _ in range(times):
            call()

    return body


def cuda_meter() -> DeviceTimer:
    """The meter of the GPU, its parts resolved now."""
    # Not torch.profiler's, which only wraps this one: its first session imports Inductor, for seconds in every process.
    from torch.autograd.profiler import profile

    os.environ.setdefault(TEARDOWN, "1")
    synchronize = torch.cuda.synchronize

    def fill(size: int) -> Call:
        return torch.empty(size // 4, dtype=torch.int32, device="cuda").zero_

    def between(separate: Call, call: Call, times: int) -> list[float]:
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(times)]
        for start, end in events:
            separate()
            start.record()
            call()
            end.record()
        synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in events]

    def session() -> _Kineto:
        # Without CPU activities a call's host side stays as it is.
        return _Kineto(profile(use_device="cuda", use_cpu=False, use_kineto=True), synchronize)

    return DeviceTimer(session, fill, partial(torch.cuda._sleep, PAUSE_CYCLES), synchronize, between=between)


def keep_cupti_loaded() -> None:
    """From now on CUPTI stays in this process between sessions: before CUDA graphs are captured, and where sessions follow at once."""
    if not TEARDOWN_GIVEN:
        os.environ[TEARDOWN] = "0"


def threads() -> frozenset[str]:
    """This process's, Python's and others; none where /proc does not tell."""
    try:
        return frozenset(entry.name for entry in Path("/proc/self/task").iterdir())
    except OSError:
        return frozenset()


def wait_until_gone(before: frozenset[str], synchronize: Call, clock: Callable[[], float] = time.perf_counter) -> None:
    """Make CUDA calls until CUPTI has left, because a session that begins earlier would lose its kernels.

    CUPTI leaves during such a call. It has left when the thread that Kineto starts for it has ended.

    Args:
        before: the threads while the session was on. Where /proc does not list them, the wait has its full length.
    """
    end, leaving = clock() + LEAVE_SECONDS, threads() - before
    while os.environ.get(TEARDOWN) == "1" and (leaving & threads() or not before) and clock() < end:
        synchronize()
        time.sleep(0.001)


@dataclass(slots=True)
class _Kineto:
    """torch's profiler as a session."""

    profiler: Any
    synchronize: Call

    def start(self) -> None:
        self.synchronize()
        self.profiler.__enter__()

    def stop(self) -> list[Activity]:
        self.synchronize()
        before = threads()
        self.profiler.__exit__(None, None, None)
        wait_until_gone(before, self.synchronize)
        results = self.profiler.kineto_results
        if results is None:
            raise UntracedError("torch's profiler gave no results")
        found = [
            Activity(event.name(), event.start_ns(), event.duration_ns(), event.device_resource_id())
            for event in results.events()
            if _on_device(event)
        ]
        if not found:
            why = "does another profiler hold CUPTI?" if torch.version.hip is None else "it needs roctracer, as ROCm has no CUPTI"
            raise UntracedError(f"torch's profiler saw nothing on the device; {why}")
        return found


def _on_device(event: Any) -> bool:
    """True for a kernel, a copy or a fill; False for an annotated range."""
    if hasattr(event, "activity_type"):
        return str(event.activity_type()) in ON_DEVICE
    # An older torch does not say what an event is; waits and annotations are then known by what they are called.
    return event.device_type() == torch.profiler.DeviceType.CUDA and not event.is_user_annotation() and " Sync" not in event.name()
