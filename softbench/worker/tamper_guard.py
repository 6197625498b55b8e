"""What a plugin could do to its judge inside their common process, and how it is noticed: in-process defence deters, it does not secure.

Bound before the plugin is imported. `replaced` names what measures or judges and is not what it was: a patched `torch.cuda.Event`,
`perf_counter` or reference. `AsyncWorkWatch` tells work that is not done when a call returns: threads it leaves behind, output that still
changes, and on a GPU a device that is still busy when the caller's stream has finished.
"""

from __future__ import annotations

import _thread
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from softbench.core.text import count
from softbench.ops.softmax import inputs, reference, tolerance as correctness
from softbench.worker import output_checks as contract

Call = Callable[[], object]

SETTLE_SECONDS = 0.03  # for a thread to go on writing in, where one was left behind: beside a plugin's build it is nothing
SIDE_STREAM_US = 150.0  # of device work after the caller's stream has finished: an idle device answers at once
MOST_HIDDEN_CALLS = 50  # as `softbench.worker.device_timer.MOST_ISSUED`: never so many that the driver's queue blocks
HIDDEN_CALLS_US = 3000.0  # so much work is issued at once, where so few calls can make it
AHEAD_CYCLES = 2_000_000  # about 1 ms on the caller's stream, so that work which waits for that stream starts when the caller's is over
TRIES = 3  # a busy host can be late once; work that is hidden is hidden each time


@dataclass(frozen=True, slots=True)
class Bound:
    """A name and what it meant before any plugin was imported."""

    owner: Any
    attribute: str
    label: str
    value: Any
    code: Any
    """Of a Python function: the code may be exchanged and the function kept."""


@dataclass(frozen=True, slots=True)
class TamperGuard:
    """Everything that measures or judges, as it was."""

    bound: tuple[Bound, ...]

    def replaced(self) -> str:
        """`replaced torch.cuda.Event`, or an empty text."""
        for was in self.bound:
            now = getattr(was.owner, was.attribute, None)
            if now is not was.value or getattr(now, "__code__", None) is not was.code:
                return f"replaced {was.label}, which measures or judges it"
        return ""


def bind(device: str) -> TamperGuard:
    """The guard of this process; call it before a plugin is imported."""
    from torch.utils import benchmark

    named: list[tuple[Any, str, str]] = [
        *((time, name, "time") for name in ("perf_counter", "perf_counter_ns", "monotonic", "sleep")),
        (timeit, "default_timer", "timeit"),
        *((benchmark, name, "torch.utils.benchmark") for name in ("Timer",)),
        *((benchmark.Timer, name, "torch.utils.benchmark.Timer") for name in ("timeit", "blocked_autorange", "_timeit")),
        *((torch.cuda, name, "torch.cuda") for name in ("Event", "synchronize", "Stream", "current_stream", "CUDAGraph", "graph")),
        *((torch.cuda.Event, name, "torch.cuda.Event") for name in ("record", "elapsed_time", "synchronize", "wait", "__new__")),
        *((torch, name, "torch") for name in ("softmax", "equal", "full_like", "randn", "where", "empty")),
        *((torch.Tensor, name, "torch.Tensor") for name in ("double", "clone", "copy_", "abs", "amax", "sum", "item", "isnan", "data_ptr")),
        *(
            (correctness, name, "softbench.ops.softmax.tolerance")
            for name in ("check", "excess", "bound_forward", "bound_backward", "bound_both")
        ),
        *((reference, name, "softbench.ops.softmax.reference") for name in ("forward", "backward")),
        *((contract, name, "softbench.worker.output_checks") for name in ("breach", "poison")),
        *((inputs, name, "softbench.ops.softmax.inputs") for name in ("make", "refill", "make_adversarial")),
    ]
    if device == "cuda":
        from torch.autograd import profiler
        from triton import testing

        named += [(testing, "do_bench", "triton.testing"), (profiler, "profile", "torch.autograd.profiler")]
    found = [(owner, name, f"{where}.{name}", getattr(owner, name)) for owner, name, where in named if hasattr(owner, name)]
    return TamperGuard(tuple(Bound(owner, name, label, value, getattr(value, "__code__", None)) for owner, name, label, value in found))


class AsyncWorkWatch:
    """Around one call: whether it was done when it returned."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.threads = _thread._count()
        self.lingers = False
        """By `unfinished`: a thread was left running, and the output did not change after the call. A compiler's own may be such a one."""

    def left(self) -> str:
        """Python threads that the call started and that live on, in words; those it found running are its process's own."""
        more = _thread._count() - self.threads
        return f"left {count(more, 'thread')} running when it returned: its work may not be done" if more > 0 else ""

    def unfinished(self, results: Any) -> str:
        """Whether the output changes after the call has returned. Call it at once: it looks, waits, and looks again.

        On a GPU the first look is on the caller's stream, the second when the whole device is idle.
        """
        found = results if isinstance(results, tuple | list) else (results,)
        outputs = [out for out in found if type(out) is torch.Tensor and out.layout is torch.strided and out.device.type == self.device]
        left = self.left()
        at_once = [out.detach().clone() for out in outputs]
        if _thread._count():
            time.sleep(SETTLE_SECONDS)
        if self.device == "cuda":
            torch.cuda.synchronize()
        changed = not all(contract.same(out.detach(), early) for early, out in zip(at_once, outputs, strict=True))
        self.lingers = left != "" and not changed
        return "wrote its output after its call had returned: on another thread or stream, or later" if changed and not left else left


def side_stream_us(call: Call, each_us: float) -> float:
    """Microseconds for which the device is busy after the caller's stream has finished some calls: the least of some tries, each
    the larger of two ways. Idle where the calls run on the caller's stream, or join it again.

    Work on a stream that waits for the caller's is met behind a sleep, after which nothing else is left on the caller's; work on a
    stream that waits for nobody is met without. `each_us`: about what a call takes.
    """
    calls = max(5, min(MOST_HIDDEN_CALLS, int(HIDDEN_CALLS_US / max(each_us, 1.0))))
    least = float("inf")
    for _ in range(TRIES):
        least = min(least, max(_rest_us(call, calls, cycles) for cycles in (AHEAD_CYCLES, 0)))
        if least <= SIDE_STREAM_US:
            break
    return least


def _rest_us(call: Call, calls: int, cycles: int) -> float:
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
