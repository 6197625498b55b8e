"""What a worker does for the judge (`softbench.judge`): it gives up rights, maps the judge's memory, and calls its backend there.

What a plugin changes here decides nothing: the judge has the clock, the values of the inputs, the reference and the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from softbench.core import messages
from softbench.core.case import Case
from softbench.core.messages import Called, Confined, Done, Reply, Request
from softbench.plugins.traits import overwrites_output
from softbench.worker.garbage_collection import settle
from softbench.worker.guarding import triton_interpreter
from softbench.worker.judged import confinement, shared_memory
from softbench.worker.judged.memory import OutputArena, Tensors, input_layout, tensors_of_calls
from softbench.worker.timing.call_queue import CallQueue
from softbench.worker.timing.timers import synchronize

if TYPE_CHECKING:
    from softbench.worker.server import Server

PAGE_BYTES = 4096
"""Of memory: the first use of a page by a process takes longer."""
WARM_CALLS = 2
"""Calls after the first one and before `CallQueue.rehearse`. TorchScript compiles at its second call."""


class JudgedCalls:
    """A worker's answers to the judge's requests."""

    def __init__(self, server: Server, descriptors: list[int]) -> None:
        """`descriptors` are those that came with requests; an answer takes them out."""
        self.server, self.descriptors = server, descriptors
        self.case: Case | None = None
        self.calls = 0
        self.arena: OutputArena | None = None
        self.window: shared_memory.Window | None = None
        self.given: list[Tensors] = []
        """The tensors of the next calls. They are made before the clock starts, because their address does not change."""
        self.kept: list[torch.Tensor] = []
        """The outputs of the last challenge that lie in the judge's memory."""
        self.queue: CallQueue | None = None
        self.places: list[tuple[int, ...]] = []
        """Where the outputs of the calls that were issued lie."""
        self.touch = False
        self.at_once = False
        """True if the judge compares what the caller's stream reads right after each call."""
        self.copied = False
        """True once an output was copied, so that the copies of a challenge load no kernel: that waits for the GPU."""
        self.apart = False
        """True if the calls of a challenge leave their outputs in different places, although the backend overwrites its output."""
        self.events: tuple[torch.cuda.Event, ...] = ()
        """Before and after the calls of a challenge on a GPU. A backend's calls have them too: an empty challenge must cost the same."""

    def handle(self, request: Request[Any]) -> Reply:
        """The reply to a request. Exceptions of the backend pass through."""
        match request:
            case messages.ConfineProcess(readable, folder, device, sockets):
                if self.arena is not None:
                    return Confined({"network": confinement.forbid_sockets()})
                self.server.confined = True
                return Confined(confinement.confine(readable, folder, device, sockets=sockets))
            case messages.ShareOutputs(case, calls, size):
                block = shared_memory.attach(self.descriptors.pop(0), size, case.device)
                self.case, self.calls, self.arena = case, calls, OutputArena(block, case, calls)
                self.window = shared_memory.window(input_layout(case)[1] * calls, case.device)
                self.queue = CallQueue() if case.device == "cuda" else None
                return Done()
            case messages.MapInputs(size):
                if self.window is not None:
                    self.window.map(self.descriptors.pop(0), size)
                return Done()
            case messages.QueueCalls(at_once):
                self._queue(at_once)
                return Called(tuple(self.places), 0.0)
            case messages.MakeCalls(size, touch, at_once):
                self.touch, self.at_once = touch, at_once
                return self._make_calls(self.descriptors.pop(0), size)
            case messages.ReleaseOutputs():
                self.kept.clear()
                self.given = self._tensors()
                settle()
                return Done()
        raise TypeError(f"unknown request {request}")

    def _queue(self, at_once: bool) -> None:
        """Issue as many calls as the GPU's queue holds, before the clock starts. A CPU has no queue."""
        queue, self.at_once = self.queue, at_once
        if self.case is None or self.arena is None or queue is None or not (count := queue.room(self.server.call)):
            return
        if at_once:  # each copy is a kernel in the queue, too
            count = max(1, count // (1 + len(self.arena.forms)))
        self._begin()
        queue.hold()
        try:
            self._issue(count)
        except BaseException:
            queue.start()  # the last inputs are still mapped, and who handles this may wait for the GPU
            raise

    def _make_calls(self, descriptor: int, size: int) -> Called:
        if self.case is None or self.window is None:
            raise RuntimeError("calls before their memory")
        if triton_interpreter.ran():
            raise RuntimeError(triton_interpreter.RAN)
        queued = len(self.places)
        if not queued:
            self._begin()
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
        elif self._overwrites:
            self._record()
            self.queue.rehearse(self.server.call, self._next, self.calls, spare=False)
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

    @property
    def _overwrites(self) -> bool:
        """True if the backend declares that its next call overwrites the last output."""
        return self.server.backend is not None and overwrites_output(self.server.backend)

    def _begin(self) -> None:
        """Before the first call of a challenge. All its calls are one step of torch's CUDA graphs.

        Within a step torch keeps the outputs that are alive, and records a graph for each call after them.
        """
        self.kept.clear()
        self.given = self.given or self._tensors()
        if self.queue is not None and self._overwrites:
            torch.compiler.cudagraph_mark_step_begin()

    def _record(self) -> None:
        """Make all calls once, so that their CUDA graphs are recorded; torch waits for the GPU then. Their outputs do not count."""
        self.apart = True
        self._issue(self.calls)
        self.apart = self.arena is not None and self.arena.apart(self.places)
        self.places, self.events, self.given = [], (), []  # new tensors: these may have gradients now
        self._begin()

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
        if not function:  # an empty challenge copies what a plugin's does
            given = [arena.writable(call, tensors) for call, tensors in enumerate(given, first)]
        if function:
            self._call(function, arena, given, first)
        elif arena.device == "cpu" and not self.touch:
            arena.slots[0][0].view(-1)[:1].zero_()
            self.places += arena.places
        elif arena.device == "cpu":
            for call, tensors in enumerate(given, first):
                for tensor in (*tensors, *arena.slots[call]):
                    _summable(tensor).view(-1)[:: PAGE_BYTES // tensor.element_size()].sum()
                for slot in arena.slots[call]:
                    slot.view(-1)[:: PAGE_BYTES // slot.element_size()].zero_()
                self.places.append(arena.places[call])
        else:
            for call, tensors in enumerate(given, first):  # so few kernels that all calls fit into the queue
                _summable(max(tensors, key=lambda tensor: tensor.nbytes)).sum()
                max(arena.slots[call], key=lambda slot: slot.nbytes).zero_()
                self.places.append(arena.places[call])

    def _next(self) -> None:
        """Make the next call; after the last one, make the first call again."""
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

    def _call(self, function: Callable[..., Any], arena: OutputArena, given: list[Tensors], first: int) -> None:
        """Call the backend; `first` is the number of the first call."""
        overwrites = self._overwrites
        single, place, kept, places = len(arena.forms) == 1, arena.place, self.kept, self.places
        with nullcontext() if overwrites else arena.allocating():  # CUDA graphs allocate in a pool of their own
            for call, tensors in enumerate(given, first):
                results = function(*arena.writable(call, tensors, apart=self.at_once))
                outputs = (results,) if single else results
                if (self.at_once or not self.copied) and isinstance(outputs, tuple | list):
                    outputs = self._copied(outputs)
                places.append(place(call, outputs, kept, copied=overwrites and not self.apart))

    def _copied(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """Copies of outputs, made on the caller's stream; those of the first call are dropped."""
        self.copied = True
        copies = [out.detach().clone() if type(out) is torch.Tensor else out for out in outputs]
        if not self.at_once:
            return outputs
        if self.apart:  # torch records a graph for each call after outputs that are alive
            self.kept += outputs
        return copies


def _summable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, as bytes if its elements are such: torch has no sum of fp8."""
    return tensor.detach().view(torch.uint8) if tensor.element_size() == 1 else tensor.detach()


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Two events, of which the first is recorded."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    return begin, end
