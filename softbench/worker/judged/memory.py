"""The memory of judged calls: where inputs and outputs lie, and the judge's memory for outputs as the plugin's process uses it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from softbench.core.case import Case
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.ops.operation import TensorSpec
from softbench.ops.registry import operation
from softbench.worker.checking import output_checks
from softbench.worker.judged import shared_memory

Tensors = tuple[torch.Tensor, ...]
SPARE_BYTES = 2**29
"""Bytes of a GPU's block for what torch's allocator rounds up, beside half of the outputs' bytes."""
SPARE_CALLS, LARGE_SPARE_CALLS, LARGE_BYTES = 16, 4, 2**33
"""A call's temporaries have room for the outputs of so many calls, or of fewer where that would be more than LARGE_BYTES."""


def input_layout(case: Case) -> tuple[list[tuple[int, TensorSpec]], int]:
    """The byte at which each input of a call begins, and the bytes of a call's inputs."""
    return _layout(operation(case.op).inputs(case), case)


def output_layout(case: Case) -> tuple[list[tuple[int, TensorSpec]], int]:
    """The same of its outputs."""
    return _layout(operation(case.op).outputs(case).values(), case)


def output_bytes(case: Case, calls: int) -> int:
    """The bytes of a block for the outputs of so many calls. On a GPU torch's allocator takes outputs from the bytes after the slots."""
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


class OutputArena:
    """A block of the judge's memory, as a worker uses it."""

    def __init__(self, block: shared_memory.Block, case: Case, calls: int) -> None:
        self.block, self.device, self.forms = block, case.device, output_checks.forms(case)
        self.changed = [(number, form.becomes) for number, form in enumerate(self.forms) if form.becomes is not None]
        """The outputs that inputs become, each with the number of its input."""
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
        self._pools: list[Any] = []
        if case.device == "cuda":
            self._lend()

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """What this thread allocates on the GPU meanwhile lies in the arena."""
        if not self._pools:
            yield
            return
        with torch.cuda.use_mem_pool(self._pools[0]):
            yield

    def writable(self, call: int, tensors: Tensors, *, apart: bool = False) -> Tensors:
        """The tensors of a call: an input that it changes is copied to the slot where the judge reads what it becomes.

        With `apart` it is copied elsewhere, so that a later write does not reach the slot.
        """
        found = list(tensors)
        for number, place in self.changed:
            found[place] = tensors[place].clone() if apart else self.slots[call][number].copy_(tensors[place])
        return tuple(found) if self.changed else tensors

    def place(self, call: int, outputs: Any, kept: list[torch.Tensor], *, copied: bool = False) -> tuple[int, ...]:
        """The byte at which each output of a call begins. An outside output is copied; with `copied` each is. `kept` gets the others.

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

    def apart(self, places: Sequence[tuple[int, ...]]) -> bool:
        """True if no two outputs at these bytes, of each call all, share memory."""
        sizes = [slot.nbytes for slot in self.slots[0]]
        spans = sorted((place, place + size) for call in places for place, size in zip(call, sizes, strict=True))
        return all(end <= begin for (_, end), (begin, _) in pairwise(spans))

    def _lend(self) -> None:
        """Make an allocator of torch that takes the arena's memory, and a pool. CUDA graphs that ask torch for a pool get one, too."""
        takes = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(self._take)
        gives = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(lambda *_: None)
        self._functions = takes, gives  # the allocator refers to them by address
        addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in self._functions]
        self._allocator = torch._C._cuda_customAllocator(addresses[0], addresses[1])
        self._new_pool()
        torch.cuda.graph_pool_handle = self._new_pool

    def _new_pool(self) -> Any:
        """The name of a new pool of torch whose memory is the arena's."""
        self._pools.append(pool := torch.cuda.MemPool(self._allocator))
        return pool.id

    def _take(self, size: int, device: int, stream: int | None) -> int | None:
        """The address of so many bytes, or None: torch then raises an error of memory. Torch never returns them."""
        start = shared_memory.aligned(self._next)
        if start + size > self.bytes:
            return None
        self._next = start + size
        return self.start + start


def _form_of(out: object) -> str:
    return f"{out.dtype} {tuple(out.shape)} on {out.device.type}" if type(out) is torch.Tensor else type(out).__name__
