"""softbench's Triton kernels of attention scores as the calls of a case, for the backend `triton`."""

from __future__ import annotations

from typing import Any

import torch

from softbench.core.case import Case, Direction
from softbench.ops.registry import operation
from softbench.plugins.backend import Call

NAME = "masked_softmax"


def refused(case: Case) -> str | None:
    """Why the kernels do not take a case; None if they do."""
    from softbench.kernels.triton.scores import MAX_COLUMNS

    forward = case.direction is Direction.FORWARD
    needs = {"causal", "sink"} | ({"mask"} if forward else set())
    special = needs & set(case.parameters)
    return f"with {' and '.join(sorted(special))} N is at most {MAX_COLUMNS}" if special and case.N > MAX_COLUMNS else None


def prepare(case: Case) -> Call:
    """The call of a case."""
    from softbench.kernels.triton import masked_softmax as kernels

    given: dict[str, Any] = dict(operation(case.op).values)
    scale, causal, masked = given["scale"], given["causal"], given["mask"] != "none"

    def forward(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        mask, sink = others[0] if masked else None, others[-1] if given["sink"] else None
        return kernels.forward(x, scale=scale, mask=mask, causal=causal, sink=sink)[0]

    def backward(dy: torch.Tensor, y: torch.Tensor, *share: torch.Tensor) -> Any:
        dx, dsink = kernels.backward(dy, y, *share, scale=scale, causal=causal)
        return (dx, dsink) if share else dx

    return forward if case.direction is Direction.FORWARD else backward
