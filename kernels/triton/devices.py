"""What the choice of a plan depends on, of a device: SMs, clusters, and how fast its memory is."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .generic import INTERPRETED
from .staggered_start import bytes_per_cycle

HOPPER = 9
LARGE_SHARED = 200 * 1024  # bytes a program: a generation's large GPUs have more, and clusters of 16; the small ones have clusters of 8
INTERPRETED_SMS = 4
ABSENT_SMS = 132  # an H100's or H200's


@functools.cache
def device_traits(device: torch.device) -> tuple[str, int, bool, float, bool]:
    """(name, SMs, whether it has clusters of 16 CTAs, its memory's bytes per cycle, whether it is a Hopper GPU)."""
    if INTERPRETED or device.type != "cuda":
        return "", INTERPRETED_SMS, False, 0.0, False
    if not torch.cuda.is_available():  # a compiler traces for a GPU that this machine lacks
        return "", ABSENT_SMS, True, 0.0, True
    found: Any = torch.cuda.get_device_properties(device)  # torch's stubs lack shared_memory_per_block_optin
    if torch.version.hip is not None:  # AMD counts its architectures otherwise: a gfx90a is 9.0 too
        return found.name, found.multi_processor_count, False, 0.0, False
    clusters = found.major >= HOPPER and found.shared_memory_per_block_optin >= LARGE_SHARED
    return found.name, found.multi_processor_count, clusters, bytes_per_cycle(device.index or 0), (found.major, found.minor) == (HOPPER, 0)
