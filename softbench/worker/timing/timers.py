"""Timers. Each returns raw samples in microseconds; statistics are made elsewhere.

A worker binds its timer before it imports a plugin, so that a plugin which patches `torch.cuda.Event` or `do_bench` patches too late.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from softbench.core.case import CPU_TIMER
from softbench.worker.timing.device_timer import DeviceTimer, cuda_meter, keep_cupti_loaded

Timer = Callable[[Callable[[], object], float, float, int], tuple[list[float], int]]
"""`timer(call, warmup_ms, batch_ms, block)` -> latencies of single calls in microseconds, to the nanosecond, and the block.

A block is the number of calls in a CPU sample. With 0 the timer chooses, and the cell's later batches use the same number. On a GPU each
sample is one call; in a warm graph it is one replay divided by its calls.
"""

BLOCK_SECONDS = 2e-4  # least duration of a CPU sample; the clock's cost is negligible beside it
MIN_SAMPLES = 3
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

    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float, block: int) -> tuple[list[float], int]:
        # do_bench flushes L2 before every call and takes each with a pair of events: cold L2, with the events' own cost in every sample.
        return [round(ms * 1e3, 3) for ms in do_bench(call, warmup=warmup_ms, rep=batch_ms, return_mode="all")], 1

    return timer


def _warm_events() -> Timer:
    """As do_bench, without its flush: what fits L2 is found there."""
    event, synchronize, clock = torch.cuda.Event, torch.cuda.synchronize, time.perf_counter

    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float, block: int) -> tuple[list[float], int]:
        each = _warmed(call, warmup_ms, synchronize, clock)
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(max(MIN_SAMPLES, int(batch_ms / 1e3 / each)))]
        for start, end in pairs:
            start.record()
            call()
            end.record()
        synchronize()
        return [round(start.elapsed_time(end) * 1e3, 3) for start, end in pairs], 1

    return timer


def _kernels(l2: str, meter: DeviceTimer) -> Timer:
    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float, block: int) -> tuple[list[float], int]:
        _warmed(call, warmup_ms, meter.synchronize, time.perf_counter)
        return meter.device(call, batch_ms, l2)[0], 1

    return timer


def _issuing(l2: str, meter: DeviceTimer) -> Timer:
    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float, block: int) -> tuple[list[float], int]:
        _warmed(call, warmup_ms, meter.synchronize, time.perf_counter)
        return meter.host(call, batch_ms), 1

    return timer


def _graph(l2: str, meter: DeviceTimer) -> Timer:
    """Replays of a CUDA graph, without the host's share of a call. Cold: of one call, by do_bench. Warm: of many calls in a row."""
    cold, graph_of, capture = _do_bench(), torch.cuda.CUDAGraph, torch.cuda.graph
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

    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float, block: int) -> tuple[list[float], int]:
        if l2 == "cold":
            return cold(captured(call, 1).replay, warmup_ms, batch_ms, block)
        graph = captured(call, GRAPH_CALLS)
        each = _warmed(graph.replay, warmup_ms, synchronize, time.perf_counter)
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(max(GRAPH_REPLAYS, int(batch_ms / 1e3 / each)))]
        for start, end in pairs:
            start.record()
            graph.replay()
            end.record()
        synchronize()
        return [round(start.elapsed_time(end) * 1e3 / GRAPH_CALLS, 3) for start, end in pairs], GRAPH_CALLS

    return timer


GPU_TIMERS = {"do_bench": _events, "device": _kernels, "graph": _graph, "host": _issuing}


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

    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float, block: int) -> tuple[list[float], int]:
        end = clock() + warmup_ms / 1e3
        while clock() < end:
            call()
        # Left alone, the timer would measure on one thread; a user's call runs on as many as torch takes.
        blocks = FixedBlocks("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        blocks.block = block
        samples: list[float] = []
        while len(samples) < MIN_SAMPLES:
            samples += blocks.blocked_autorange(min_run_time=batch_ms / 1e3).times
        return [round(seconds * 1e6, 3) for seconds in samples], blocks.block

    return timer


def synchronize(device: str) -> None:
    """Wait until the device has done all it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
