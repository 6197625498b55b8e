"""A worker process: it loads one backend and does with it what the parent asks. It may crash or hang without touching anyone else.

Each request is one message, each answer one message:

    probe                                   -> the machine (`softbench.environment.probe`)
    load    origin, device, name?           -> offers: what the origin holds; the named (else the first) is this worker's backend
    build   case, seed                      -> build | skip
    check                                   -> accuracy
    time    warmup_ms, batch_ms             -> samples_us, kind
    release                                 -> gives the case's device memory back; `time` takes it again

or `failed`: status, stage, reason; `poisoned` with it when the CUDA context is lost and the worker must not be used again.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from softbench import correctness, inputs, registry, timing
from softbench.environment import probe
from softbench.model import Accuracy, Build, Case, Direction, Grade, Status
from softbench.protocol import Channel, Message
from softbench.units import one_line


def serve(channel: Channel) -> None:
    """Answer until the parent closes the pipe."""
    seat = Seat()
    while (message := channel.receive()) is not None:
        stage = str(message.pop("op"))
        try:
            answer = getattr(seat, f"do_{stage}")(**message)
        except Exception as error:  # the boundary of one request: whatever a plugin raises becomes an answer
            answer = {"failed": _failure(stage, error), "poisoned": _poisoned()}
        channel.send(answer)


def _failure(stage: str, error: Exception) -> Message:
    status = Status.OOM if isinstance(error, torch.OutOfMemoryError | MemoryError) else Status.FAILED
    text = str(error).strip()
    # A compiler's log or a CUDA hint may follow; the first line says what happened, the log keeps the rest.
    reason = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
    traceback.print_exception(error)
    return {"status": status, "stage": "import" if stage == "load" else stage, "reason": one_line(reason)}


def _poisoned() -> bool:
    """True when CUDA cannot be used any more in this process (illegal address, device assert)."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


class Seat:
    """The worker's state: its backend, and the case it is at."""

    def __init__(self) -> None:
        self.backend: Any = None
        self.device = "cpu"
        self.kind = ""
        self.timer: timing.Timer | None = None
        self.case: Case | None = None
        self.seed = 0
        self.call: Callable[..., Any] | None = None
        self.inputs: tuple[torch.Tensor, ...] | None = None

    def do_probe(self) -> Message:
        return {"probe": asdict(probe())}

    def do_load(self, origin: Message, device: str, name: str | None = None) -> Message:
        """Bind the timer, then import the plugin: what it patches, it patches too late."""
        self.device = device
        self.kind, self.timer = timing.bind(device)
        door = registry.Origin(**origin)
        backends = registry.load(door)
        self.backend = next((backend for backend in backends if backend.name == name), backends[0])
        offers = [
            registry.Offer(
                name=backend.name,
                origin=door,
                unavailable=one_line(backend.available() or ""),
                summary=one_line((type(backend).__doc__ or "").strip().partition("\n")[0]),
                source=registry.source_hash(backend, door),
            )
            for backend in backends
        ]
        return {"offers": [registry.offer_to_json(offer) for offer in offers]}

    def do_build(self, case: Message, seed: int) -> Message:
        self._forget()
        self.case, self.seed = Case(**{**case, "direction": Direction(case["direction"])}), seed
        if reason := self.backend.supports(self.case):
            return {"skip": one_line(str(reason))}
        self.inputs = inputs.make(self.case, seed, torch.device(self.device))
        timing.synchronize(self.device)
        before = _compilations()
        start = time.perf_counter()
        self._prepare()
        seconds = time.perf_counter() - start
        return {"build": asdict(Build(seconds, _cache_state(before, _compilations())))}

    def do_check(self) -> Message:
        """Run into memory poisoned with NaN, and compare before the reference is computed anywhere near it."""
        case, given = self._case(), self._inputs()
        if self.call is None:
            raise RuntimeError("asked to check before a case was built")
        kept = tuple(tensor.detach().clone() for tensor in given)
        _poison(given, self.device)
        outputs = self.call(*given)
        timing.synchronize(self.device)
        results = outputs if case.direction is Direction.BOTH else (outputs,)
        if reason := _breach(case, given, kept, results):
            return {"accuracy": asdict(Accuracy(Grade.WRONG, float("inf"), reason))}
        del kept
        judge = correctness.check_yardstick if getattr(self.backend, "computes", "softmax") == "copy" else correctness.check
        try:
            accuracy = judge(case, given, results)
        except (torch.OutOfMemoryError, MemoryError) as error:
            accuracy = Accuracy(Grade.UNVERIFIED, float("nan"), f"the float64 reference needs more memory: {one_line(str(error), 120)}")
        return {"accuracy": asdict(accuracy)}

    def do_time(self, warmup_ms: float, batch_ms: float) -> Message:
        if self.inputs is None:
            self.inputs = inputs.make(self._case(), self.seed, torch.device(self.device))
        if self.call is None:
            self._prepare()
        call, given = self.call, self._inputs()
        if call is None or self.timer is None:
            raise RuntimeError("asked to time before a case was built")
        return {"samples_us": self.timer(lambda: call(*given), warmup_ms, batch_ms), "kind": self.kind}

    def do_release(self) -> Message:
        """Keep the callable if all it cost was host memory: preparing it anew may mean compiling anew."""
        self.inputs = None
        if self.device != "cuda" or torch.cuda.memory_allocated() > 0:
            self.call = None
        self._empty()
        return {"released": True}

    def _forget(self) -> None:
        self.inputs = self.call = self.case = None
        self._empty()

    def _empty(self) -> None:
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def _prepare(self) -> None:
        call = self.backend.prepare(self._case())
        if not callable(call):
            raise TypeError(f"prepare() returned {type(call).__name__}, not a callable")
        self.call = call
        call(*self._inputs())
        timing.synchronize(self.device)

    def _case(self) -> Case:
        if self.case is None:
            raise RuntimeError("asked to measure before a case was built")
        return self.case

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        if self.inputs is None:
            raise RuntimeError("asked to use inputs that were released")
        return self.inputs


def _poison(given: tuple[torch.Tensor, ...], device: str) -> None:
    """Leave NaN in the memory that the next allocations of the inputs' size will get, so that stale results cannot pass for new."""
    for _ in range(2):
        spare = [torch.full_like(tensor, float("nan"), requires_grad=False) for tensor in given]
        del spare
    timing.synchronize(device)


def _breach(case: Case, given: tuple[torch.Tensor, ...], kept: tuple[torch.Tensor, ...], results: Any) -> str:
    """How a call broke its contract (see `softbench.backends.Backend`), or an empty text."""
    if not isinstance(results, tuple | list) or (case.direction is Direction.BOTH and len(results) != 2):
        return "must return (y, dx)"
    for out in results:
        if type(out) is not torch.Tensor:
            return f"returned {type(out).__name__}, not a torch.Tensor"
        for what, got, want in (
            ("shape", tuple(out.shape), (case.M, case.N)),
            ("dtype", out.dtype, given[0].dtype),
            ("device", out.device, given[0].device),
            ("layout", out.layout, torch.strided),
        ):
            if got != want:
                return f"returned {what} {got}, not {want}"
        if any(out.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for tensor in given):
            return "returned its input's memory"
    if any(not torch.equal(tensor.detach(), copy) for tensor, copy in zip(given, kept, strict=True)):
        return "changed its input"
    return ""


def _compilations() -> tuple[int, int, int]:
    """(cache hits, cache misses, kernels in Triton's cache folder): how a build is told cold from cached."""
    hits = misses = 0
    if dynamo := sys.modules.get("torch._dynamo.utils"):
        counts = dynamo.counters["inductor"]
        hits, misses = counts["fxgraph_cache_hit"], counts["fxgraph_cache_miss"] + counts["fxgraph_cache_bypass"]
    return hits, misses, _triton_entries()


def _triton_entries() -> int:
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0


def _cache_state(before: tuple[int, int, int], after: tuple[int, int, int]) -> str:
    hits, misses, entries = (now - then for now, then in zip(after, before, strict=True))
    if misses or entries:
        return "cold"
    return "cached" if hits else ""
