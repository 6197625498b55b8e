"""When the rows of a launch begin: the first ones, as many as the card holds, one after the other.

Rows that begin at once wait for their exchanges at once, and meanwhile nothing moves; later rows follow as these end, and keep their
distance. The CUDA kernels have the same; what was measured of it is in `softmax.cu`.
"""

from __future__ import annotations

import ctypes
import functools

from .carveout import driver
from .plans import GPC_SMS, Plan, Shape, resident

# CU_DEVICE_ATTRIBUTE_*: kHz, kHz, bits
CLOCK_RATE, MEMORY_CLOCK_RATE, MEMORY_BUS_WIDTH = 13, 36, 37
LEAST_BYTES = 4 << 20  # of all that is read: what is over in a few microseconds all begins at once
MOST_CYCLES = 100_000_000


@functools.cache
def bytes_a_cycle(index: int) -> float:
    """What a device's memory moves at its peak in a cycle of its SMs; 0 where the driver does not say."""
    cuda = driver()
    if cuda is None:
        return 0.0
    found = []
    for attribute in (MEMORY_CLOCK_RATE, MEMORY_BUS_WIDTH, CLOCK_RATE):
        value = ctypes.c_int()
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, index) or value.value <= 0:
            return 0.0
        found.append(value.value)
    memory_khz, bits, khz = found
    return 2 * memory_khz * bits / 8 / khz


def turns(shape: Shape, plan: Plan) -> tuple[int, int]:
    """(rows, cycles): so many rows of a cluster's or group's plan begin so many cycles after each other; (0, 0): all as they can.

    A row's turn is as long as the memory takes to read it at its peak, and a third longer where its programs meet in global memory. Where
    all rows begin at once, clusters are .00 to .03 faster by turns, and groups slower.
    """
    row = shape.N * shape.size * shape.tensors
    if shape.M == 1 or shape.M * row < LEAST_BYTES or shape.bytes_a_cycle <= 0 or max(plan.C, plan.G) == 1:
        return 0, 0
    programs = max(1, resident(plan.T, plan.registers, plan.H))
    cycles = row / shape.bytes_a_cycle
    if plan.tier == "cluster":
        rows = max(1, programs * GPC_SMS // plan.C) * (shape.sms // GPC_SMS)
    else:
        rows = programs * shape.sms // plan.G
        cycles *= 4 / 3
        if shape.M <= rows:  # each would end later than at once
            return 0, 0
    return (rows, int(min(MOST_CYCLES, cycles))) if rows else (0, 0)
