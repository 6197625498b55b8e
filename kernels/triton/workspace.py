"""The workspace of programs that share a row: an int64 counter and slots for each device and stream, zero at first, never cleared."""

from __future__ import annotations

import torch

from ..common.allocation import persistent_zeros

_kept: dict[tuple[int, int], tuple[int, torch.Tensor, torch.Tensor]] = {}
"""By device and stream: how many words, and the two views of them, as slicing costs a launch of some microseconds as much again."""
COUNTER_WORDS = 16  # the counter has a line of its own
LEAST_WORDS = 1 << 14


def workspace(device: torch.device, words: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(counter, slots) of `words` int64 slots, for launches on the current stream.

    Launches of one stream follow each other, so they may share it; a launch that is captured into a CUDA graph may be replayed beside
    others, so it gets its own, from the graph's pool, zeroed in the graph.
    """
    size = COUNTER_WORDS + words
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        fresh = torch.zeros(size, dtype=torch.int64, device=device)
        return fresh[:1], fresh[COUNTER_WORDS:]
    index = torch.cuda.current_device() if device.index is None else device.index
    key = index, torch._C._cuda_getCurrentRawStream(index)  # as Triton's launcher asks, without a Stream object
    found = _kept.get(key)
    if found is None or found[0] < size:
        fresh = persistent_zeros(index, max(size, LEAST_WORDS), torch.int64)
        found = _kept[key] = fresh.numel(), fresh[:1], fresh[COUNTER_WORDS:]
    return found[1:]
