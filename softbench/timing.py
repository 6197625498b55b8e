"""Timers. Each returns raw samples in microseconds; statistics are made elsewhere.

A worker binds its timer before it imports a plugin, so that a plugin which patches `torch.cuda.Event` or `do_bench` patches too late.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

Timer = Callable[[Callable[[], object], float, float, int], tuple[list[float], int]]
"""`timer(call, warmup_ms, batch_ms, block)` -> latencies of single calls in microseconds, to the nanosecond, and the block.

A block is how many calls a CPU sample spans; 0 lets the timer choose, and the cell's later batches are given its choice again, so that
samples of all rounds are of one kind. On a GPU every sample is one call.
"""

GPU_KIND = "do_bench"
CPU_KIND = "torch.utils.benchmark"
BLOCK_SECONDS = 2e-4  # of a CPU sample at least: beside it, reading the clock is nothing
LEAST_SAMPLES = 3


def bind(device: str) -> tuple[str, Timer]:
    """The device's timer and its name, resolved now."""
    return (GPU_KIND, _gpu()) if device == "cuda" else (CPU_KIND, _cpu())


def _gpu() -> Timer:
    from triton.testing import do_bench

    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float, block: int) -> tuple[list[float], int]:
        # do_bench flushes L2 before every call and takes each with a pair of events: cold L2, with the events' own cost in every sample.
        return [round(ms * 1e3, 3) for ms in do_bench(call, warmup=warmup_ms, rep=batch_ms, return_mode="all")], 1

    return timer


def _cpu() -> Timer:
    from torch.utils.benchmark import Timer as BlockTimer

    clock = time.perf_counter

    class FixedBlocks(BlockTimer):
        """torch's blocked timer, with the block that it is given: left alone, it would choose another in every batch."""

        block = 0

        def _estimate_block_size(self, min_run_time: float) -> int:
            if not self.block:
                once = min(self.timeit(1).median for _ in range(LEAST_SAMPLES))
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
        while len(samples) < LEAST_SAMPLES:
            samples += blocks.blocked_autorange(min_run_time=batch_ms / 1e3).times
        return [round(seconds * 1e6, 3) for seconds in samples], blocks.block

    return timer


def synchronize(device: str) -> None:
    """Wait until the device has done all it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
