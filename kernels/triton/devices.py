"""What the choice of a plan depends on, of a device (`device_traits`), and what the driver does for a kernel (`prefer_shared_memory`)."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import TYPE_CHECKING, Any

import torch

from .interpreter import INTERPRETED

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

Card = tuple[str, int]
"""A name and a compute capability, as 90. The name is empty if there is no card."""
HOPPER = 9
LARGE_SHARED = 200 * 1024  # bytes a program: a generation's large GPUs have more, and clusters of 16; the small ones have clusters of 8
INTERPRETED_SMS = 4
ABSENT_SMS = 132  # an H100's or H200's
# CU_DEVICE_ATTRIBUTE_*: kHz, kHz, bits
CLOCK_RATE, MEMORY_CLOCK_RATE, MEMORY_BUS_WIDTH = 13, 36, 37
SHARED_BYTES = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES.
CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, percent.
RESERVED = 1024  # bytes of each program's shared memory that the driver takes.


@functools.cache
def device_traits(device: torch.device) -> tuple[Card, int, bool, float, bool]:
    """(card, SMs, whether it has clusters of 16 CTAs, its memory's bytes per cycle, whether it is a Hopper GPU)."""
    if INTERPRETED or device.type != "cuda":
        return ("", 10 * HOPPER), INTERPRETED_SMS, False, 0.0, False
    if not torch.cuda.is_available():  # a compiler traces for a GPU that this machine lacks
        return ("", 10 * HOPPER), ABSENT_SMS, True, 0.0, True
    found: Any = torch.cuda.get_device_properties(device)  # torch's stubs lack shared_memory_per_block_optin
    card = found.name, 10 * found.major + found.minor
    if torch.version.hip is not None:  # AMD counts its architectures otherwise: a gfx90a is 9.0 too
        return card, found.multi_processor_count, False, 0.0, False
    clusters = found.major >= HOPPER and found.shared_memory_per_block_optin >= LARGE_SHARED
    return card, found.multi_processor_count, clusters, bytes_per_cycle(device.index or 0), (found.major, found.minor) == (HOPPER, 0)


@functools.cache
def bytes_per_cycle(index: int) -> float:
    """Peak bytes that a device's memory moves in a cycle of its SMs; 0 if the driver does not report the clocks."""
    memory_khz, bits, khz = (attribute(index, one) for one in (MEMORY_CLOCK_RATE, MEMORY_BUS_WIDTH, CLOCK_RATE))
    return 2 * memory_khz * bits / 8 / khz if khz else 0.0


def attribute(index: int, number: int) -> int:
    """An attribute of a device; 0 if the driver does not report it."""
    cuda, value = driver(), ctypes.c_int()
    failed = cuda is None or cuda.cuDeviceGetAttribute(ctypes.byref(value), number, index)
    return 0 if failed else max(0, value.value)


@functools.cache
def driver() -> ctypes.CDLL | None:
    """CUDA's driver API, or None if it is not installed."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def prefer_shared_memory(compiled: CompiledKernel, device: torch.device) -> None:
    """Asks for as much shared memory as the programs of `compiled` that fit an SM need. A failure changes nothing but speed.

    By default the driver keeps the division of an SM's memory that it finds, or guesses. If a kernel has part of a row in shared memory,
    fewer programs may then fit an SM. Or L1 may be too small for its loads in flight. Triton does not offer this; CUDA's driver API does.
    """
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
