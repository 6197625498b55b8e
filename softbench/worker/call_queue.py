"""Calls that a GPU is given before their inputs are mapped.

They wait in its stream, so the host's time to issue them is no part of a challenge.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from softbench.worker.shared_memory import call_driver

WAIT_SECONDS = 1.0
"""After so long in a rehearsal a call that has not been issued waits for the GPU, or the stream takes no more."""
SHARE = 0.75
"""Of the calls that were issued by then: so many are queued."""
AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ of cuda.h."""


class CallQueue:
    """Holds back what the current stream is given, until `start`."""

    def __init__(self) -> None:
        self._flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._number = 0
        self._room: tuple[Callable[..., object] | None, int] | None = None
        """A function that was rehearsed, and how many of its calls are queued."""

    def hold(self) -> None:
        """Hold back what the current stream is given from now on."""
        self._number += 1
        stream, address = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), ctypes.c_uint64(self._flag.data_ptr())
        call_driver("cuStreamWaitValue32_v2", stream, address, ctypes.c_uint32(self._number), AT_LEAST)

    def start(self) -> None:
        """Let the GPU start."""
        self._flag.fill_(self._number)

    def rehearsed(self, function: Callable[..., object] | None) -> bool:
        """True if `function` is that of the last rehearsal."""
        return self._room is not None and self._room[0] is function

    def room(self, function: Callable[..., object] | None) -> int:
        """How many calls of `function` are queued; 0 before a rehearsal, and if its calls wait for the GPU."""
        return self._room[1] if self._room is not None and self._room[0] is function else 0

    @contextmanager
    def rehearsal(self, function: Callable[..., object] | None, issued: Callable[[], int]) -> Iterator[None]:
        """Find how many calls of `function` fit, while the context issues them with mapped inputs.

        `issued` is the number of calls so far. The GPU starts after the context, or after WAIT_SECONDS.
        """
        at_limit: list[int] = []

        def end() -> None:
            at_limit.append(issued())
            self.start()

        timer = threading.Timer(WAIT_SECONDS, end)
        self.hold()
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            self.start()
        self._room = function, int(SHARE * at_limit[0]) if at_limit else issued()
