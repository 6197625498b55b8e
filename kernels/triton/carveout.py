"""Sets how an SM's memory is divided into shared memory and L1 while a kernel runs. Triton does not offer this; CUDA's driver API does.

By default the driver keeps the division it finds, or guesses. If a kernel has part of a row in shared memory, fewer programs may then fit
an SM. Or L1 may be too small for its loads in flight. This module asks for the shared memory that the programs need, and leaves the rest
to L1.
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

SHARED_BYTES = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES.
CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, percent.
RESERVED = 1024  # bytes of each program's shared memory that the driver takes.


@functools.cache
def driver() -> ctypes.CDLL | None:
    """CUDA's driver API, or None if it is not installed."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def prefer_shared_memory(compiled: CompiledKernel, device: torch.device) -> None:
    """Asks for as much shared memory as the programs of `compiled` that fit an SM need. A failure changes nothing but speed."""
    cuda = driver()
    if cuda is None:
        return
    kernel = ctypes.c_void_p(compiled.function)
    static, programs = ctypes.c_int(), ctypes.c_int()
    dynamic = compiled.metadata.shared
    threads = 32 * compiled.metadata.num_warps
    if cuda.cuFuncGetAttribute(ctypes.byref(static), SHARED_BYTES, kernel):
        return
    if cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(ctypes.byref(programs), kernel, threads, ctypes.c_size_t(dynamic)):
        return
    capacity = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    needed = programs.value * (static.value + dynamic + RESERVED)
    cuda.cuFuncSetAttribute(kernel, CARVEOUT, min(100, math.ceil(100 * needed / capacity)))
