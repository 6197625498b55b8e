"""Where programs that share a row meet: an int64 counter and slots for each device and stream, zero at first, never cleared.

What is kept is allocated by a thread of its own. PyTorch can send a thread's allocations to a pool that others own: Inductor does so as it
warms a CUDA graph up, and refuses a graph in whose pool something outlives the call. Nothing here needs Triton: the CUDA kernels share it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

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
        fresh = zeros_to_keep(index, max(size, LEAST_WORDS), torch.int64)
        found = _kept[key] = fresh.numel(), fresh[:1], fresh[COUNTER_WORDS:]
    return found[1:]


def zeros_to_keep(index: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros on device `index`, for this launch on the current stream and those after it."""

    def allocate() -> tuple[torch.Tensor, torch.cuda.Event]:
        with torch.cuda.device(index):  # and on the default stream, as a thread starts there
            return torch.zeros(size, dtype=dtype, device=f"cuda:{index}"), torch.cuda.current_stream(index).record_event()

    with ThreadPoolExecutor(1) as thread:
        fresh, zeroed = thread.submit(allocate).result()
    here = torch.cuda.current_stream(index)
    here.wait_event(zeroed)
    fresh.record_stream(here)  # a larger one may replace it while launches on this stream still use it
    return fresh
