"""The workspace of programs that share a row: an int64 counter and slots for each device and stream, zero at first, never cleared."""

from __future__ import annotations

import torch

from ..common.allocation import persistent_zeros
from .grid_exchange import SLOT_WORDS

_workspaces: dict[tuple[int, int, str], tuple[int, torch.Tensor, torch.Tensor]] = {}
"""By device, stream and purpose: the number of words, and the two views of them. Slicing again would cost each launch some microseconds."""
COUNTER_WORDS = SLOT_WORDS.value  # the counter has cache lines for itself, as each slot
MIN_WORDS = 1 << 17


def workspace(device: torch.device, words: int, purpose: str = "") -> tuple[torch.Tensor, torch.Tensor]:
    """(counter, slots) of `words` int64 slots, for launches on the current stream.

    Launches with one `purpose` leave the same kind of values in the slots.

    Launches on one stream follow each other, so they can share the workspace. A launch captured into a CUDA graph may be replayed beside
    others. It gets its own workspace from the graph's pool, which the graph zeroes.
    """
    size = COUNTER_WORDS + words
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        fresh = torch.zeros(size, dtype=torch.int64, device=device)
        return fresh[:1], fresh[COUNTER_WORDS:]
    index = torch.cuda.current_device() if device.index is None else device.index
    key = index, torch._C._cuda_getCurrentRawStream(index), purpose  # as in Triton's launcher, without a Stream object
    found = _workspaces.get(key)
    if found is None or found[0] < size:
        fresh = persistent_zeros(index, max(size, MIN_WORDS), torch.int64)
        found = _workspaces[key] = fresh.numel(), fresh[:1], fresh[COUNTER_WORDS:]
    return found[1:]
