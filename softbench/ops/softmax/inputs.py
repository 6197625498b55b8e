"""The tensors of a case of softmax."""

from __future__ import annotations

import torch

from softbench.core.case import Case
from softbench.ops.rowwise import inputs
from softbench.ops.softmax.reference import softmax


def make(case: Case, seed: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """As `softbench.ops.rowwise.inputs.make`."""
    return inputs.make(case, seed, device, softmax)
