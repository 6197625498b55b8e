"""Where programs that share a row meet: an int64 counter and slots for each device and stream, zero at first, never cleared."""

from __future__ import annotations

import torch

_kept: dict[tuple[int, int], torch.Tensor] = {}
COUNTER_WORDS = 16  # the counter has a line of its own


def workspace(device: torch.device, words: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(counter, slots) of `words` int64 slots, for launches on the current stream.

    Launches of one stream follow each other, so they may share it; a launch that is captured into a CUDA graph may be replayed beside
    others, so it gets its own, from the graph's pool, zeroed in the graph.
    """
    size = COUNTER_WORDS + words
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        fresh = torch.zeros(size, dtype=torch.int64, device=device)
        return fresh[:1], fresh[COUNTER_WORDS:]
    key = (device.index or 0, torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else (-1, 0)
    kept = _kept.get(key)
    if kept is None or kept.numel() < size:
        # The old one may go: what a launch under way still reads of it is not handed out again before that launch ends.
        kept = _kept[key] = torch.zeros(max(size, 1 << 14), dtype=torch.int64, device=device)
    return kept[:1], kept[COUNTER_WORDS:]
