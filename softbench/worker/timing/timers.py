"""Timers. Each returns raw samples in microseconds; statistics are made elsewhere.

A worker binds its timer before it imports a plugin, so that a plugin which patches `torch.cuda.Event` or `do_bench` patches too late.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from softbench.core.case import CPU_TIMER, DO_BENCH
from softbench.worker.timing.call_queue import CallQueue
from softbench.worker.timing.device_timer import FLUSH_BYTES, Call, DeviceTimer, cuda_meter, keep_cupti_loaded


@dataclass(frozen=True, slots=True)
class Samples:
    """What a timer found in a batch."""

    us: list[float]
    """Latencies of single calls, microseconds, to the nanosecond."""
    block: int = 0
    """What the cell's next batch is given: calls of a CPU sample, or calls that are queued together on a GPU."""
    calls: int = 1
    """Calls of a sample. On the CPU they take long enough for the clock; a replay of a warm graph has several too."""
    timer: str = ""
    """The timer that took them, if it is not the one that was asked."""
    made: int = 0
    """On a CPU: all calls of the batch, with those of its warm-up."""
    spent_us: float = 0.0
    """Microseconds of all these calls."""


Timer = Callable[[Callable[[], object], float, float, int], Samples]
"""`timer(call, warmup_ms, batch_ms, block)`; the block is 0 in the first batch of a cell."""

BLOCK_SECONDS = 2e-4  # least duration of a CPU sample; the clock's cost is negligible beside it
MIN_SAMPLES = 3
MOST_QUEUED = 16
"""Calls that are queued together. Two queues of calls with thirty kernels each fit into the 1024 launches that a stream takes."""
ESTIMATED_CALLS = 5  # as do_bench
TICK_MS = 32e-6  # of the clock of events
HOLD_SECONDS = 0.25
"""So long a queue waits for the host, at most: a call that waits for the GPU waits as long."""
QUEUE_TRIALS = 3
"""Queues that may reach their limit before a call is known to wait for the GPU. A host that stood still for a moment causes one."""
HOST_BATCHES = 4
"""A host that issues more slowly than the GPU computes may take so many times the length of a batch."""
WAITS = -1
"""The block of a call that cannot be queued."""
GRAPH_CALLS = 20  # of a warm graph; the host pays one replay for all of them
GRAPH_REPLAYS = 10


@dataclass(frozen=True, slots=True)
class Timers:
    """The device's timers, by name and L2, and its meter. On the CPU the L2 is empty and there is no meter."""

    by_name: dict[tuple[str, str], Timer]
    meter: DeviceTimer | None


def bind(device: str) -> Timers:
    """The timers of a device. Their functions are looked up now."""
    if device != "cuda":
        return Timers({(CPU_TIMER, ""): _cpu()}, None)
    meter = cuda_meter()
    found = {(timer, l2): make(l2, meter) for timer, make in GPU_TIMERS.items() for l2 in ("cold", "warm")}
    return Timers(found, meter)


def _events(l2: str, meter: DeviceTimer) -> Timer:
    return _do_bench() if l2 == "cold" else _warm_events()


def _do_bench() -> Timer:
    from triton.testing import do_bench

    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float, block: int) -> Samples:
        # do_bench flushes L2 before every call and takes each with a pair of events: cold L2, with the events' own cost in every sample.
        return Samples([round(ms * 1e3, 3) for ms in do_bench(call, warmup=warmup_ms, rep=batch_ms, return_mode="all")])

    return timer


def _warm_events() -> Timer:
    """As do_bench, without its flush: what fits L2 is found there."""
    event, synchronize, clock = torch.cuda.Event, torch.cuda.synchronize, time.perf_counter

    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float, block: int) -> Samples:
        each = _warmed(call, warmup_ms, synchronize, clock)
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(max(MIN_SAMPLES, int(batch_ms / 1e3 / each)))]
        for start, end in pairs:
            start.record()
            call()
            end.record()
        synchronize()
        return Samples([round(start.elapsed_time(end) * 1e3, 3) for start, end in pairs])

    return timer


class _Queued:
    """As do_bench, but calls are queued and start when the host has issued them all: their times have no part of the host.

    While a queue runs, the host issues the next one. A call that waits for the GPU cannot be queued; do_bench times it.
    """

    def __init__(self, l2: str, meter: DeviceTimer) -> None:
        self.plain, self.event, self.clock, self.synchronize = _events(l2, meter), torch.cuda.Event, time.perf_counter, meter.synchronize
        self.flush = (lambda: meter.fill(FLUSH_BYTES)) if l2 == "cold" else (lambda: _nothing)
        self.queue: CallQueue | None = None

    def __call__(self, call: Callable[[], object], warmup_ms: float, batch_ms: float, block: int) -> Samples:
        together = block or MOST_QUEUED
        if block != WAITS and (queue := self._queue()):
            for _ in range(QUEUE_TRIALS):
                found = self._batch(queue, call, warmup_ms, batch_ms, together)
                if isinstance(found, list):
                    return Samples(found, together)
                together = max(1, min(found * 3 // 4, together))
        return replace(self.plain(call, warmup_ms, batch_ms, 0), block=WAITS, timer=DO_BENCH)

    def _queue(self) -> CallQueue | None:
        """The queue; None with another vendor's driver, or on a GPU older than the kernel that holds a stream back."""
        with suppress(RuntimeError):
            self.queue = self.queue or CallQueue()
        return self.queue

    def _batch(self, queue: CallQueue, call: Call, warmup_ms: float, batch_ms: float, together: int) -> list[float] | int:
        """Microseconds of each call, or how many could be issued at once."""
        flush = self.flush()
        call()
        flush()
        self.synchronize()
        began = self.clock()
        estimate = self._issue(queue, flush, call, ESTIMATED_CALLS, together)
        if isinstance(estimate, int):
            return estimate
        host_ms = (self.clock() - began) * 1e3 / ESTIMATED_CALLS
        each_ms = max(estimate[0][0].elapsed_time(estimate[-1][0]) / (ESTIMATED_CALLS - 1), TICK_MS)
        for _ in range(max(1, int(warmup_ms / each_ms))):
            call()
        calls = max(MIN_SAMPLES, int(min(batch_ms / each_ms, HOST_BATCHES * batch_ms / host_ms)))
        pairs = self._issue(queue, flush, call, calls, together)
        return pairs if isinstance(pairs, int) else [round(start.elapsed_time(end) * 1e3, 3) for start, end in pairs]

    def _issue(
        self, queue: CallQueue, flush: Call, call: Call, calls: int, together: int
    ) -> list[tuple[torch.cuda.Event, torch.cuda.Event]] | int:
        """The events around each call, done; or how many calls the host issued before one had to wait for the GPU."""
        event, clock, before, issued = self.event, self.clock, queue.number, 0
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(calls)]
        for first in range(0, calls, together):
            queue.hold(HOLD_SECONDS)
            began, issued = clock(), 0
            try:
                for start, end in pairs[first : first + together]:
                    flush()
                    start.record()
                    call()
                    end.record()
                    issued += clock() - began < HOLD_SECONDS
            finally:
                queue.start()
            if queue.expired(before):
                break
        self.synchronize()
        return issued if queue.expired(before) else pairs


def _kernels(l2: str, meter: DeviceTimer) -> Timer:
    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float, block: int) -> Samples:
        _warmed(call, warmup_ms, meter.synchronize, time.perf_counter)
        return Samples(meter.device(call, batch_ms, l2)[0])

    return timer


def _issuing(l2: str, meter: DeviceTimer) -> Timer:
    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float, block: int) -> Samples:
        _warmed(call, warmup_ms, meter.synchronize, time.perf_counter)
        return Samples(meter.host(call, batch_ms))

    return timer


def _graph(l2: str, meter: DeviceTimer) -> Timer:
    """Replays of a CUDA graph, without the host's share of a call. Cold: of one call, queued. Warm: of many calls in a row."""
    cold, graph_of, capture = _Queued(l2, meter), torch.cuda.CUDAGraph, torch.cuda.graph
    event, stream_of, use, synchronize = torch.cuda.Event, torch.cuda.Stream, torch.cuda.stream, torch.cuda.synchronize

    def captured(call: Callable[[], object], calls: int) -> torch.cuda.CUDAGraph:
        keep_cupti_loaded()
        synchronize()
        with use(stream_of()):  # capturing needs what a first call sets up to be there
            call()
        synchronize()
        graph = graph_of()
        with capture(graph):
            for _ in range(calls):
                call()
        return graph

    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float, block: int) -> Samples:
        if l2 == "cold":
            return replace(cold(captured(call, 1).replay, warmup_ms, batch_ms, block), timer="")
        graph = captured(call, GRAPH_CALLS)
        each = _warmed(graph.replay, warmup_ms, synchronize, time.perf_counter)
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(max(GRAPH_REPLAYS, int(batch_ms / 1e3 / each)))]
        for start, end in pairs:
            start.record()
            graph.replay()
            end.record()
        synchronize()
        return Samples([round(start.elapsed_time(end) * 1e3 / GRAPH_CALLS, 3) for start, end in pairs], calls=GRAPH_CALLS)

    return timer


GPU_TIMERS: dict[str, Callable[[str, DeviceTimer], Timer]] = {
    "queued": _Queued,
    DO_BENCH: _events,
    "device": _kernels,
    "graph": _graph,
    "host": _issuing,
}


def _nothing() -> None:
    """A warm L2 is not flushed."""


def _warmed(call: Callable[[], object], warmup_ms: float, synchronize: Callable[[], object], clock: Callable[[], float]) -> float:
    """Call until it is warm; the seconds that a call takes with the wait for it."""
    start, calls = clock(), 0
    while calls < MIN_SAMPLES or clock() - start < warmup_ms / 1e3:
        call()
        synchronize()
        calls += 1
    return (clock() - start) / calls


def _cpu() -> Timer:
    from torch.utils.benchmark import Timer as BlockTimer

    clock = time.perf_counter

    class FixedBlocks(BlockTimer):
        """torch's blocked timer, with the block that it is given: left alone, it would choose another in every batch."""

        block = 0

        def _estimate_block_size(self, min_run_time: float) -> int:
            if not self.block:
                once = min(self.timeit(1).median for _ in range(MIN_SAMPLES))
                self.block = max(1, math.ceil(BLOCK_SECONDS / once))
            return self.block

    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float, block: int) -> Samples:
        # Left alone, the timer would measure on one thread; a user's call runs on as many as torch takes.
        # The clock of `TimedCalls` runs during the backend's calls only.
        spent = getattr(call, "clock", clock)
        blocks = FixedBlocks("call()", globals={"call": call}, timer=spent, num_threads=torch.get_num_threads())
        blocks.block = block
        end = clock() + warmup_ms / 1e3
        while clock() < end:
            call()
        samples: list[float] = []
        while len(samples) < MIN_SAMPLES:
            samples += blocks.blocked_autorange(min_run_time=batch_ms / 1e3).times
        return Samples([round(seconds * 1e6, 3) for seconds in samples], blocks.block, blocks.block)

    return timer


def synchronize(device: str) -> None:
    """Wait until the device has done all it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
