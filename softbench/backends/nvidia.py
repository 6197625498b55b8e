"""What backends need that only NVIDIA's GPUs run."""

from __future__ import annotations

import torch


def missing() -> str | None:
    """Why this process has no NVIDIA GPU, or None. A torch for ROCm shows AMD's GPUs as `cuda`."""
    if torch.version.hip is not None:
        return f"it needs an NVIDIA GPU, and torch {torch.__version__} is built for AMD's (ROCm)"
    return None if torch.cuda.is_available() else "no CUDA GPU here"
