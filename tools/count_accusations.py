"""How often the rules about other streams accuse honest calls, and how often they find hidden work: python tools/count_accusations.py

Honest calls are softmax, copies and gradients of many sizes, CUDA graphs, and work on another stream that the caller's waits for. Each
honest cell is judged once by a trace and once by its delays. Hidden calls leave their work on another stream. `--busy N` keeps N processes
busy on the host meanwhile. The last lines are a table. Exit code 1: an honest call was accused in one trace, or by its delays.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from softbench.worker.guarding import async_work
from softbench.worker.timing.device_timer import DeviceTimer, cuda_meter
from softbench.worker.timing.trace import split, unordered

Call = Callable[[], object]
CALLS = 12
"""Calls of a judged trace, fewer than a run has."""
TRACES = 100
"""Judged traces of one session of the profiler."""
SHAPES = [(64, 256), (4096, 1024), (4096, 8192), (512, 131072), (16384, 16384)]


def honest() -> Iterator[tuple[str, Call]]:
    """Calls whose work is ordered with the caller's stream, by name."""
    for M, N in SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            x, y = (torch.randn(M, N, dtype=dtype, device="cuda") for _ in range(2))
            name = f"{M}x{N} {str(dtype)[6:]}"
            yield f"softmax {name}", lambda x=x: torch.softmax(x, -1)
            yield f"copy {name}", lambda x=x, y=y: y.copy_(x)
            yield f"backward {name}", lambda x=x, y=y: torch._softmax_backward_data(x, y, -1, x.dtype)
            yield f"joined {name}", joined(x)
            yield f"graph {name}", graph(x)


def joined(x: torch.Tensor) -> Call:
    """Half of the rows on another stream, at the same time; the caller's stream waits for it."""
    stream, half = torch.cuda.Stream(), x.shape[0] // 2

    def call() -> None:
        stream.wait_stream(torch.cuda.current_stream())
        torch.softmax(x[:half], -1)
        with torch.cuda.stream(stream):
            torch.softmax(x[half:], -1)
        torch.cuda.current_stream().wait_stream(stream)

    return call


def graph(x: torch.Tensor) -> Call:
    """A CUDA graph of two branches."""
    captured = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(captured):
        joined(x)()
    return captured.replay


def hidden() -> Iterator[tuple[str, Call]]:
    """Calls that leave their work on another stream, by name."""
    small = torch.empty(64, device="cuda")
    for M, N in SHAPES:
        x = torch.randn(M, N, dtype=torch.bfloat16, device="cuda")
        for priority in (0, -1):
            stream = torch.cuda.Stream(priority=priority)
            for waits in (True, False):

                def call(x: torch.Tensor = x, stream: torch.cuda.Stream = stream, waits: bool = waits) -> None:
                    small.zero_()
                    if waits:
                        stream.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(stream):
                        torch.softmax(x, -1)

                yield f"{M}x{N} {'waiting' if waits else 'at once'}{', high priority' if priority else ''}", call


def in_traces(meter: DeviceTimer, call: Call, traces: int) -> list[str]:
    """What each of so many traces says; they share one session."""
    meter.abandon()
    meter.begin("cold")
    session, meter.running = meter.running, None
    assert session is not None
    fill = meter.fill(256 * 2**20)
    for _ in range(traces):
        for _ in range(CALLS):
            fill()
            call()
            meter.pause()
        meter.synchronize()
    calls = split(session.stop(), traces * CALLS, meter.separators["cold"])
    return [unordered(calls[start : start + CALLS]) for start in range(0, len(calls), CALLS)]


def duration_us(call: Call) -> float:
    """About the duration of a call that is issued many times, in microseconds."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e5


def spin() -> None:
    """Keep a processor busy."""
    while True:
        pass


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many busy processes."""
    spinning = [multiprocessing.get_context("spawn").Process(target=spin, daemon=True) for _ in range(processes)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=5000, help="honest cells")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="busy processes meanwhile")
    options = parser.parse_args()
    meter, accused, found = cuda_meter(), 0, []
    with busy(options.busy):
        calls = list(honest())
        each = -(-options.cells // len(calls))
        delays: list[float] = []
        suspects = traced = 0
        for name, call in calls:
            call()
            each_us = duration_us(call)
            for start in range(0, each, TRACES):
                for reason in in_traces(meter, call, min(TRACES, each - start)):
                    traced += 1
                    if reason:
                        accused += 1
                        print(f"accused by a trace: {name}: {reason}")
            for _ in range(each):
                count = max(6, min(async_work.MAX_CALLS, int(async_work.CALLS_US / max(each_us, 1.0))))
                delays.append(async_work.busy_us(call, count))
                suspects += delays[-1] > async_work.SUSPECT_US
                if reason := async_work.late_work(call, each_us):
                    accused += 1
                    print(f"accused by its delays: {name}: {reason}")
        del calls, call
        torch.cuda.empty_cache()
        for name, call in hidden():
            call()
            each_us = duration_us(call)
            seen = in_traces(meter, call, 20)
            found.append((name, each_us, sum(map(bool, seen)), len(seen), bool(async_work.late_work(call, each_us)), seen[0][:60]))
    delays.sort()
    print(f"{torch.cuda.get_device_name()}, {options.busy} busy processes")
    print("hidden work               us of a call   traces   by delays   first trace")
    for name, each_us, yes, of, late, first in found:
        print(f"{name:40} {each_us:8.1f} {yes:3}/{of} {late!s:>6}   {first}")
    print(f"honest cells: {traced} by traces, {len(delays)} by delays; accused {accused}; suspect delays {suspects}")
    print(
        "delays of honest cells, us: "
        + ", ".join(f"{share:.2%} {delays[int(share * (len(delays) - 1))]:.0f}" for share in (0.5, 0.99, 0.999, 1))
    )
    print(f"median {statistics.median(delays):.1f} us")
    return 1 if accused else 0


if __name__ == "__main__":
    sys.exit(main())
