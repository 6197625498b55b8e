"""Device memory that outlives the call that allocates it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch


def persistent_zeros(index: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """`size` zeros on device `index`, for this launch on the current stream and for later ones.

    A fresh thread allocates them, because PyTorch can send a thread's allocations to a private pool. Inductor does so while it warms up
    a CUDA graph, and refuses the graph if memory in that pool outlives the call.
    """

    def allocate() -> tuple[torch.Tensor, torch.cuda.Event]:
        with torch.cuda.device(index):  # a fresh thread uses the default stream
            return torch.zeros(size, dtype=dtype, device=f"cuda:{index}"), torch.cuda.current_stream(index).record_event()

    with ThreadPoolExecutor(1) as thread:
        fresh, zeroed = thread.submit(allocate).result()
    here = torch.cuda.current_stream(index)
    here.wait_event(zeroed)
    fresh.record_stream(here)  # a larger tensor may replace it while launches on this stream still use it
    return fresh
