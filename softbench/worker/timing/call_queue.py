"""A queue of calls that a GPU starts only when the host has issued them all. Nothing of the host is then between their events.

A kernel of one thread holds the stream back: it reads a flag in the host's memory until the host raises it. It also ends by itself, after a
limit. So a call that waits for the GPU, or a queue that is full, costs the limit and never hangs. nvbench's blocking kernel does the same.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable

import torch

from softbench.worker import cuda_driver

HOLD = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry hold(.param .u64 flags, .param .u32 number, .param .u64 limit_ns)
{
    .reg .pred %p;
    .reg .u32 %value, %number;
    .reg .u64 %flags, %limit, %start, %now;
    ld.param.u64 %flags, [flags];
    ld.param.u32 %number, [number];
    ld.param.u64 %limit, [limit_ns];
    mov.u64 %start, %globaltimer;
poll:
    ld.volatile.global.u32 %value, [%flags];
    setp.ge.u32 %p, %value, %number;
    @%p ret;
    nanosleep.u32 500;
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %p, %now, %limit;
    @%p bra poll;
    st.volatile.global.u32 [%flags+4], %number;
    ret;
}
"""
"""Waits until the first flag has reached a number; after the limit it writes the number into the second flag and ends."""
UNTIL_STARTED_SECONDS = 600.0
"""A hold without another limit: longer than any deadline of a worker."""
REHEARSAL_SECONDS = 0.6
"""So long a rehearsal holds its calls back at most."""
IN_TIME_SECONDS = 0.25
"""A call that is issued later has waited for the GPU, or the stream takes no more."""
SHARE = 0.75
"""Of the calls that were issued in time: so many are queued. The next time fewer may fit."""


class CallQueue:
    """Holds back what the current stream is given, until `start`."""

    def __init__(self) -> None:
        """Raises RuntimeError without CUDA's driver, or if it cannot compile the kernel for the GPU."""
        self._kernel = cuda_driver.kernel(HOLD, b"hold")
        self._flags = torch.zeros(2, dtype=torch.int32, pin_memory=True)
        self._memory = (ctypes.c_uint32 * 2).from_address(self._flags.data_ptr())
        self._number = 0
        self._room: tuple[Callable[..., object] | None, int] | None = None
        """A function that was rehearsed, and how many of its calls are queued."""

    def hold(self, seconds: float = UNTIL_STARTED_SECONDS) -> None:
        """Hold back what the current stream is given from now on, at most so long."""
        self._number += 1
        flags, number = ctypes.c_uint64(self._flags.data_ptr()), ctypes.c_uint32(self._number)
        cuda_driver.launch_one_thread(self._kernel, flags, number, ctypes.c_uint64(int(seconds * 1e9)))

    def start(self) -> None:
        """Let the GPU start."""
        self._memory[0] = self._number

    @property
    def number(self) -> int:
        """The number of the last hold."""
        return self._number

    def expired(self, after: int) -> bool:
        """True if a hold after that number is known to have ended by its limit."""
        return bool(self._memory[1] > after)

    def rehearsed(self, function: Callable[..., object] | None) -> bool:
        """True if `function` is that of the last rehearsal."""
        return self._room is not None and self._room[0] is function

    def room(self, function: Callable[..., object] | None) -> int:
        """How many calls of `function` are queued; 0 before a rehearsal, and if its calls wait for the GPU."""
        return self._room[1] if self._room is not None and self.rehearsed(function) else 0

    def rehearse(self, function: Callable[..., object] | None, issue: Callable[[], None], count: int, *, spare: bool = True) -> None:
        """Find how many of `count` calls of `function` fit. `issue` makes a call whose inputs are mapped.

        With `spare`, more than `count` calls are made, so that all `count` are queued if there is room for a third more. Without it, three
        quarters of `count` are queued at most. The device must be waited for before the next `hold`.
        """
        began, in_time = time.monotonic(), 0  # before the hold: after one that ended unnoticed, calls that wait would seem to fit
        self.hold(REHEARSAL_SECONDS)
        try:
            for _ in range(math.ceil(count / SHARE) if spare else count):
                issue()
                in_time += time.monotonic() - began < IN_TIME_SECONDS
        finally:
            self.start()
        self._room = function, min(count, int(SHARE * in_time))
