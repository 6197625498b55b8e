"""The tensors of a case of log-softmax."""

from __future__ import annotations

import torch

from softbench.core.case import Case
from softbench.ops.log_softmax.reference import log_softmax
from softbench.ops.rowwise import inputs


def make(case: Case, seed: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """As `softbench.ops.rowwise.inputs.make`."""
    return inputs.make(case, inputs.generator_of(case, seed, device), lambda x, rows: log_softmax(x))
