"""The tensors of a case of softmax."""

from __future__ import annotations

import torch

from softbench.core.case import Case
from softbench.ops.rowwise import inputs
from softbench.ops.softmax import scaling
from softbench.ops.softmax.reference import softmax


def make(case: Case, seed: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """As `softbench.ops.rowwise.inputs.make`, and the scale of each row if the case has it."""
    generator = inputs.generator_of(case, seed, device)
    more = (scaling.draw(case.M, generator, device),) if scaling.per_row(case) else ()

    def forward(x: torch.Tensor, rows: slice) -> torch.Tensor:
        (x, *_), scale = scaling.split(case, (x, *(tensor[rows] for tensor in more)))
        return softmax(scaling.times(x, scale))

    return *inputs.make(case, generator, forward, scaling.result_dtype(case)), *more
