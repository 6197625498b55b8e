"""How an SM's memory is parted between shared memory and L1 while a kernel runs: CUDA's driver API, which Triton does not reach.

Left alone, the driver takes what it finds or guesses, and a kernel that holds part of a row in shared memory may have fewer programs an SM
than would fit, or an L1 too small for its loads under way. Here it gets what its programs need, and L1 the rest.
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

import torch

SHARED_BYTES = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, percent
RESERVED = 1024  # bytes of shared memory a program, by the driver


@functools.cache
def driver() -> ctypes.CDLL | None:
    """CUDA's driver API, or None without one."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def prefer(compiled: Any, device: torch.device) -> None:
    """Ask for shared memory as large as the programs of `compiled` that fit an SM; a hint, so that failing changes nothing but speed."""
    cuda = driver()
    if cuda is None:
        return
    kernel = ctypes.c_void_p(compiled.function)
    own, programs = ctypes.c_int(), ctypes.c_int()
    dynamic = compiled.metadata.shared
    threads = 32 * compiled.metadata.num_warps
    if cuda.cuFuncGetAttribute(ctypes.byref(own), SHARED_BYTES, kernel):
        return
    if cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(ctypes.byref(programs), kernel, threads, ctypes.c_size_t(dynamic)):
        return
    whole = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    need = programs.value * (own.value + dynamic + RESERVED)
    cuda.cuFuncSetAttribute(kernel, CARVEOUT, min(100, math.ceil(100 * need / whole)))
