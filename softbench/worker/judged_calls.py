"""What a worker does for the judge (`softbench.judge`): it gives up rights, maps the judge's memory, and calls its backend there.

What a plugin changes here decides nothing: the judge has the clock, the values of the inputs, the reference and the verdict.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from softbench.core import messages
from softbench.core.case import Case
from softbench.core.messages import Request
from softbench.core.replies import Called, Confined, Done, Reply
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.ops.operation import TensorSpec
from softbench.ops.registry import operation
from softbench.plugins.traits import overwrites_output
from softbench.worker import confinement, output_checks, shared_memory
from softbench.worker.call_queue import CallQueue
from softbench.worker.collection import settle
from softbench.worker.timers import synchronize

if TYPE_CHECKING:
    from softbench.worker.server import Server

Tensors = tuple[torch.Tensor, ...]
SPARE_BYTES = 2**29
"""Of the memory for outputs on a GPU, beside half of the outputs' bytes: what torch's allocator rounds up."""
WARM_CALLS = 2
"""Calls between the first one and the rehearsal. TorchScript compiles at its second call."""
SPARE_CALLS, LARGE_SPARE_CALLS, LARGE_BYTES = 16, 4, 2**33
"""Temporaries of a call have the bytes of so many calls' outputs; of fewer where they would have LARGE_BYTES."""


def input_layout(case: Case) -> tuple[list[tuple[int, TensorSpec]], int]:
    """The byte at which each input of a call begins, and the bytes of a call's inputs."""
    return _layout(operation(case.op).inputs(case), case)


def output_layout(case: Case) -> tuple[list[tuple[int, TensorSpec]], int]:
    """The same of its outputs."""
    return _layout(operation(case.op).outputs(case).values(), case)


def output_bytes(case: Case, calls: int) -> int:
    """The bytes of a block for the outputs of so many calls. On a GPU the worker's allocator takes outputs from the rest."""
    size = output_layout(case)[1]
    if case.device == "cpu":
        return size * calls
    return size * (calls + calls * 3 // 2) + min(size * SPARE_CALLS, max(size * LARGE_SPARE_CALLS, LARGE_BYTES)) + SPARE_BYTES


def _layout(specs: Any, case: Case) -> tuple[list[tuple[int, TensorSpec]], int]:
    places, end = [], 0
    for spec in specs:
        places.append((end, spec))
        end += shared_memory.aligned(spec.bytes(case))
    return places, end


def tensors_of_calls(block: torch.Tensor, layout: Sequence[tuple[int, TensorSpec]], each: int, case: Case, calls: int) -> list[Tensors]:
    """The tensors of each call in a block that has `each` bytes for a call. A worker does this while the clock runs, so it is quick."""
    by_call, found = block[: each * calls].view(calls, each), []
    for place, spec in layout:
        values = by_call[:, place : place + spec.bytes(case)].view(TENSOR_DTYPES[spec.dtype_of(case)])
        found.append(values.view(calls, *spec.shape(case)).unbind())
    return list(zip(*found, strict=True))


class JudgedCalls:
    """A worker's answers to the judge's requests."""

    def __init__(self, server: Server, descriptors: list[int]) -> None:
        """`descriptors` are those that came with requests; an answer takes them out."""
        self.server, self.descriptors = server, descriptors
        self.case: Case | None = None
        self.calls = 0
        self.arena: _Arena | None = None
        self.window: shared_memory.Window | None = None
        self.given: list[Tensors] = []
        """The tensors of the next calls. They are made before the clock starts, because their address does not change."""
        self.kept: list[torch.Tensor] = []
        """The outputs of the last challenge that lie in the judge's memory."""
        self.queue: CallQueue | None = None
        self.places: list[tuple[int, ...]] = []
        """Where the outputs of the calls that were issued lie."""
        self.events: tuple[torch.cuda.Event, ...] = ()
        """Before and after the calls of a challenge on a GPU. A backend's calls have them too: an empty challenge must cost the same."""

    def handle(self, request: Request[Any]) -> Reply:
        """The reply to a request. Exceptions of the backend pass through."""
        match request:
            case messages.ConfineProcess(readable, folder, device, sockets):
                if self.arena is not None:
                    return Confined({"network": confinement.forbid_sockets()})
                return Confined(confinement.confine(readable, folder, device, sockets=sockets))
            case messages.ShareOutputs(case, calls, size):
                block = shared_memory.attach(self.descriptors.pop(0), size, case.device)
                self.case, self.calls, self.arena = case, calls, _Arena(block, case, calls)
                self.window = shared_memory.window(input_layout(case)[1] * calls, case.device)
                self.queue = CallQueue() if case.device == "cuda" else None
                return Done()
            case messages.QueueCalls():
                self._queue()
                return Called(tuple(self.places), 0.0)
            case messages.MakeCalls(size):
                return self._make_calls(self.descriptors.pop(0), size)
            case messages.ReleaseOutputs():
                self.kept.clear()
                self.given = self._tensors()
                settle()
                return Done()
        raise TypeError(f"unknown request {request}")

    def _queue(self) -> None:
        """Issue as many calls as fit, before the clock starts. A CPU has no queue."""
        queue = self.queue
        if self.case is None or queue is None or not (count := queue.room(self.server.call)):
            return
        self.kept.clear()
        self.given = self.given or self._tensors()
        queue.hold()
        try:
            self._issue(count)
        except BaseException:
            queue.start()  # the last inputs are still mapped, and who handles this may wait for the GPU
            raise

    def _make_calls(self, descriptor: int, size: int) -> Called:
        if self.case is None or self.window is None:
            raise RuntimeError("calls before their memory")
        if self.server.case not in (None, self.case):
            raise RuntimeError("only an interpreter runs it here, on fewer rows, so it is not timed")
        queued = len(self.places)
        if not queued:
            self.kept.clear()
            self.given = self.given or self._tensors()
        try:
            self.window.map(descriptor, size)
        except BaseException:
            if self.queue is not None:
                self.queue.start()  # who handles this may wait for the GPU
            raise
        if self.queue is None or self.queue.rehearsed(self.server.call):
            if self.queue is not None:
                self.queue.start()
            self._issue(self.calls)
        else:
            self._issue(1)  # the first call of a kernel may load it, and wait for the GPU
            for _ in range(WARM_CALLS):
                self._repeat()
            self.queue.rehearse(self.server.call, self._next, self.calls)
        if self.events:
            self.events[1].record()
        synchronize(self.case.device)
        us = 1e3 * self.events[0].elapsed_time(self.events[1]) if self.events else 0.0
        places, self.places, self.given, self.events = tuple(self.places[queued:]), [], [], ()
        return Called(places, us)

    def _issue(self, count: int) -> None:
        """Make the next calls, at most `count`. `places` gets where their outputs lie."""
        arena, function, first = self.arena, self.server.call, len(self.places)
        if arena is None:
            raise RuntimeError("calls before their memory")
        given = self.given[first : first + count]
        if not given:
            return
        if arena.device == "cuda" and not self.events:
            self.events = _events()
        if function:
            self._call(function, arena, given, first)
        elif arena.device == "cpu":
            arena.slots[0][0].view(-1)[:1].zero_()
            self.places += arena.places
        else:
            for call, tensors in enumerate(given, first):  # so few kernels that all calls fit into the queue
                max(tensors, key=lambda tensor: tensor.nbytes).sum()
                max(arena.slots[call], key=lambda slot: slot.nbytes).zero_()
                self.places.append(arena.places[call])

    def _next(self) -> None:
        """Make the next call. If there is none, make the first one once more."""
        if len(self.places) < self.calls:
            self._issue(1)
        else:
            self._repeat()

    def _repeat(self) -> None:
        """Make the first call once more, on tensors without its gradients. Its outputs do not count."""
        places, kept, given = self.places, self.kept, self.given
        self.places, self.kept = [], []
        self.given = [tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in given[0])]
        try:
            self._issue(1)
        finally:
            self.places, self.kept, self.given = places, kept, given

    def _tensors(self) -> list[Tensors]:
        """New tensors of calls, so that no gradient and no count of writes is that of an earlier challenge."""
        if self.case is None or self.window is None:
            return []
        layout, each = input_layout(self.case)
        given = tensors_of_calls(self.window.bytes.data, layout, each, self.case, self.calls)  # `data` has a count of its own
        grads = [tensor.requires_grad for tensor in self.server.inputs or ()]
        if not any(grads):
            return given
        return [tuple(tensor.detach().requires_grad_(grad) for tensor, grad in zip(each, grads, strict=True)) for each in given]

    def _call(self, function: Callable[..., Any], arena: _Arena, given: list[Tensors], first: int) -> None:
        """Call the backend; `first` is the number of the first call."""
        copied = self.server.backend is not None and overwrites_output(self.server.backend)
        single, place, kept, places = len(arena.forms) == 1, arena.place, self.kept, self.places
        with arena.allocating():
            for call, tensors in enumerate(given, first):
                results = function(*tensors)
                places.append(place(call, (results,) if single else results, kept, copied=copied))


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Two events, of which the first is recorded."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    return begin, end


class _Arena:
    """The judge's memory for outputs. On a GPU torch allocates there during calls, so that outputs need no copy."""

    def __init__(self, block: shared_memory.Block, case: Case, calls: int) -> None:
        self.block, self.device, self.forms = block, case.device, output_checks.forms(case)
        layout, size = output_layout(case)
        self.start, self.bytes = block.bytes.data_ptr(), block.bytes.nbytes
        self.slots = tensors_of_calls(block.bytes, layout, size, case, calls)
        """Where outputs are copied that lie elsewhere."""
        self.places = [tuple(slot.data_ptr() - self.start for slot in call) for call in self.slots]
        """The bytes at which the slots begin."""
        self._due = [
            (form.shape, form.dtype, slot.device, self.bytes - slot.nbytes) for form, slot in zip(self.forms, self.slots[0], strict=True)
        ]
        """The form of each output, and its last place. They are read for each call while the clock runs."""
        self._next = calls * size
        self._pool = self._mem_pool() if case.device == "cuda" else None

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """What this thread allocates on the GPU meanwhile lies in the arena."""
        if self._pool is None:
            yield
            return
        with torch.cuda.use_mem_pool(self._pool):
            yield

    def place(self, call: int, outputs: Any, kept: list[torch.Tensor], *, copied: bool = False) -> tuple[int, ...]:
        """The byte at which each output of a call begins. An output outside is copied, and with `copied` each; `kept` gets the others.

        Raises:
            ValueError: an output has another form.
        """
        if not isinstance(outputs, tuple | list) or len(outputs) != len(self._due):
            raise ValueError(f"must return ({', '.join(form.name for form in self.forms)})")
        found = []
        for number, (shape, dtype, device, last) in enumerate(self._due):
            out = outputs[number]
            if type(out) is not torch.Tensor or out.shape != shape or out.dtype is not dtype or out.device != device:
                raise ValueError(f"returned {_form_of(out)}, not {dtype} {shape} on {self.device}")
            place = out.data_ptr() - self.start
            if 0 <= place <= last and not copied and out.is_contiguous():
                kept.append(out)
            else:
                self.slots[call][number].copy_(out.detach() if out.requires_grad else out)
                place = self.places[call][number]
            found.append(place)
        return tuple(found)

    def _mem_pool(self) -> Any:
        """A pool of torch whose memory is the arena's."""
        takes = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(self._take)
        gives = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(lambda *_: None)
        self._functions = takes, gives  # the pool refers to them by address
        addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in self._functions]
        self._allocator = torch._C._cuda_customAllocator(addresses[0], addresses[1])
        return torch.cuda.MemPool(self._allocator)

    def _take(self, size: int, device: int, stream: int | None) -> int | None:
        """The address of so many bytes, or None: torch then raises an error of memory. Torch keeps what it took."""
        start = shared_memory.aligned(self._next)
        if start + size > self.bytes:
            return None
        self._next = start + size
        return self.start + start


def _form_of(out: object) -> str:
    return f"{out.dtype} {tuple(out.shape)} on {out.device.type}" if type(out) is torch.Tensor else type(out).__name__
