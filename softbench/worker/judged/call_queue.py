"""A queue of calls that are issued to a GPU before their inputs are mapped.

They wait in a stream, so the host's time to issue them is no part of a challenge.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable

import torch

from softbench.worker.judged.shared_memory import call_driver

RELEASE_CYCLES = 10**9
"""Of the GPU, some .6 s: so long a rehearsal holds its calls back at most."""
IN_TIME_SECONDS = 0.25
"""A call that is issued later has waited for the GPU, or the stream takes no more."""
SHARE = 0.75
"""Of the calls that were issued in time: so many are queued. The next time fewer may fit, and a queue that is full would never start."""
AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ of cuda.h, and CU_STREAM_WRITE_VALUE_DEFAULT."""


class CallQueue:
    """Holds back what the current stream is given, until `start`."""

    def __init__(self) -> None:
        self._flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._number = 0
        self._side = torch.cuda.Stream()
        torch.cuda._sleep(1)  # the first launch of a kernel may load it, and wait for the GPU
        self._room: tuple[Callable[..., object] | None, int] | None = None
        """A function that was rehearsed, and how many of its calls are queued."""

    def hold(self) -> None:
        """Hold back what the current stream is given from now on."""
        self._number += 1
        self._on("cuStreamWaitValue32_v2", torch.cuda.current_stream())

    def start(self) -> None:
        """Let the GPU start."""
        self._flag.fill_(self._number)

    def rehearsed(self, function: Callable[..., object] | None) -> bool:
        """True if `function` is that of the last rehearsal."""
        return self._room is not None and self._room[0] is function

    def room(self, function: Callable[..., object] | None) -> int:
        """How many calls of `function` are queued; 0 before a rehearsal, and if its calls wait for the GPU."""
        return self._room[1] if self._room is not None and self.rehearsed(function) else 0

    def rehearse(self, function: Callable[..., object] | None, issue: Callable[[], None], count: int, *, spare: bool = True) -> None:
        """Find how many of `count` calls of `function` fit. `issue` makes a call whose inputs are mapped.

        With `spare`, more than `count` calls are made, so that all `count` are queued if there is room for a third more. Without it, three
        quarters of `count` are queued at most.

        The GPU itself ends the wait on another stream: a call that waits for the GPU may let no thread of Python run. The device must be
        waited for before the next `hold`.
        """
        with torch.cuda.stream(self._side):
            torch.cuda._sleep(RELEASE_CYCLES)
        self.hold()
        self._on("cuStreamWriteValue32_v2", self._side)
        began, in_time = time.monotonic(), 0
        try:
            for _ in range(math.ceil(count / SHARE) if spare else count):
                issue()
                in_time += time.monotonic() - began < IN_TIME_SECONDS
        finally:
            self.start()
        self._room = function, min(count, int(SHARE * in_time))

    def _on(self, operation: str, stream: torch.cuda.Stream) -> None:
        """Make the stream wait for the flag's number, or write it."""
        address = ctypes.c_uint64(self._flag.data_ptr())
        call_driver(operation, ctypes.c_void_p(stream.cuda_stream), address, ctypes.c_uint32(self._number), AT_LEAST)
