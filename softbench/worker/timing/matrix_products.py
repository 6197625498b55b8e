"""The rate of torch's fastest matrix product of a dtype: the roof of a case whose matrix products take longer than its bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from softbench.worker.timing.timers import synchronize

SIDES = {"cuda": (4096, 8192), "cpu": (256, 512, 1024)}
"""Sides of the square matrices. Smaller products do not fill a device, and larger ones are no faster."""
SECONDS = 0.2
"""Seconds of the calls of one size, about."""
SECONDS_ALONE = 0.5
"""Seconds of products alone, about: a device lowers its clocks by then, as it does in calls that are timed."""
MOST_CALLS = 50


def tflops(dtype: torch.dtype, device: str) -> float:
    """10^12 operations a second of the fastest product of two square matrices, by torch (float32 without TF32).

    The fastest call counts. Raises as torch, if the dtype has no product there.
    """
    best, precision = 0.0, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        for side in SIDES[device]:
            one, other = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
            out = torch.empty_like(one)
            seconds = _least_seconds(lambda one=one, other=other, out=out: torch.mm(one, other, out=out), device)  # type: ignore[misc]
            best = max(best, 2 * side**3 / seconds / 1e12)
            if seconds > SECONDS:
                break
    finally:
        torch.set_float32_matmul_precision(precision)
    return best


def tflops_alone(sizes: tuple[int, int, int], dtype: torch.dtype, device: str, *, gradients: bool) -> float:
    """10^12 operations a second of a product of (M, K) and (N, K)^T by torch, or of it and its two gradients in turn.

    They run for as long as calls that are timed, at the clocks that a device then has. float32 is without TF32. Raises as torch, also if
    memory is lacking.
    """
    M, K, N = sizes
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        x, w, z = (torch.randn(size, device=device, dtype=dtype) for size in ((M, K), (N, K), (M, N)))
        pairs = ((x, w.T), (z, w), (z.T, x))[: 3 if gradients else 1]
        calls = [partial(torch.mm, a, b, out=torch.empty(len(a), b.shape[1], device=device, dtype=dtype)) for a, b in pairs]

        def seconds(rounds: int) -> float:
            begin = time.perf_counter()
            for call in calls * rounds:
                call()
            synchronize(device)
            return time.perf_counter() - begin

        seconds(1)
        rounds = max(1, min(MOST_CALLS, round(SECONDS_ALONE / seconds(1))))
        return 2 * M * K * N * len(calls) * rounds / seconds(rounds) / 1e12
    finally:
        torch.set_float32_matmul_precision(precision)


def _least_seconds(call: Callable[[], object], device: str) -> float:
    """The least of single calls, each of which ends with a synchronization, after one that warms up."""
    call()
    synchronize(device)
    found: list[float] = []
    while len(found) < MOST_CALLS and sum(found) < SECONDS:
        begin = time.perf_counter()
        call()
        synchronize(device)
        found.append(time.perf_counter() - begin)
    return min(found)
