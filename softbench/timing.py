"""Timers. Each returns raw samples in microseconds; statistics are made elsewhere.

A worker binds its timer before it imports a plugin, so that a plugin which patches `torch.cuda.Event` or `do_bench` patches too late.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

Timer = Callable[[Callable[[], object], float, float], list[float]]
"""`timer(call, warmup_ms, batch_ms)` -> latencies of single calls, microseconds, to the nanosecond (event times tick in 32)."""

GPU_KIND = "do_bench"
CPU_KIND = "torch.utils.benchmark"


def bind(device: str) -> tuple[str, Timer]:
    """The device's timer and its name, resolved now."""
    return (GPU_KIND, _gpu()) if device == "cuda" else (CPU_KIND, _cpu())


def _gpu() -> Timer:
    from triton.testing import do_bench

    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float) -> list[float]:
        # do_bench flushes L2 before every call and takes each with a pair of events: cold L2, 2-3 us of overhead a launch.
        return [round(ms * 1e3, 3) for ms in do_bench(call, warmup=warmup_ms, rep=batch_ms, return_mode="all")]

    return timer


def _cpu() -> Timer:
    from torch.utils.benchmark import Timer as BlockedTimer

    clock = time.perf_counter

    def timer(call: Callable[[], object], warmup_ms: float, batch_ms: float) -> list[float]:
        end = clock() + warmup_ms / 1e3
        while clock() < end:
            call()
        # Left alone, this Timer would measure on one thread; a user's call runs on as many as torch takes.
        blocked = BlockedTimer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        return [round(seconds * 1e6, 3) for seconds in blocked.blocked_autorange(min_run_time=batch_ms / 1e3).times]

    return timer


def synchronize(device: str) -> None:
    """Wait until the device has done all it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
