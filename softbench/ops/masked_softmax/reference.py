"""Masked softmax and its gradient of rows, in float64.

With z = scale x + bias where an element takes part, and -inf where the mask is False or the query sees no such key, s the sink of the row,
and y and dy of a backward 0 where the query sees no such key:

    y_i          = exp(z_i) / (exp(s) + sum_j exp(z_j))      without a sink exp(s) is 0
    sink_share   = exp(s) / (exp(s) + sum_j exp(z_j))
    dx_i         = scale y_i (dy_i - D),  D = sum_j y_j dy_j
    dsink        = -sink_share D

What does not take part is not read, so it may be NaN. A row in which nothing takes part is NaN without a sink, as in torch, and 0 with one.
The backward gets y, so it needs no mask. dsink is the gradient of each row's sink. That of a head is its sum over batch and queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from softbench.core.case import Case, Direction
from softbench.ops.masked_softmax import independent
from softbench.ops.masked_softmax.spec import ADDITIVE, BOOLEAN, CAUSAL, MASK, SCALE, SINK
from softbench.ops.rowwise.reference import reference

OPERATORS = ("softmax", "cat", "arange")
"""What the tamper guard protects of torch for this reference."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The inputs of some rows, by name; those that a case lacks are None."""

    first: torch.Tensor
    """x or dy, (rows, N)."""
    y: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    sink: torch.Tensor | None = None
    """The sink of a forward or its share of a backward, (rows,)."""
    seen: torch.Tensor | None = None
    """How many columns each row sees, (rows,)."""


def names(case: Case) -> tuple[str, ...]:
    """The names of the inputs of rows of a case, in order: fields of Rows."""
    given = case.parameters
    second = {ADDITIVE: ("bias",), BOOLEAN: ("mask",)}.get(str(given.get(MASK.name)), ())
    second = second if case.direction is Direction.FORWARD else ("y",)
    return "first", *second, *("sink",) * (SINK.name in given), *("seen",) * (CAUSAL.name in given)


def split(case: Case, inputs: Sequence[torch.Tensor]) -> Rows:
    """The inputs of rows of a case by name."""
    return Rows(**dict(zip(names(case), inputs, strict=True)))


def scale_of(case: Case) -> float:
    """The factor of x."""
    return float(case.parameters.get(SCALE.name, SCALE.default))


def hidden(rows: Rows) -> torch.Tensor | None:
    """Where elements do not take part, (rows, N); None if all do."""
    unseen = None if rows.seen is None else torch.arange(rows.first.shape[1], device=rows.first.device) >= rows.seen[:, None]
    if rows.mask is None:
        return unseen
    return ~rows.mask if unseen is None else ~rows.mask | unseen


def without(tensor: torch.Tensor, where: torch.Tensor | None, value: float = 0.0) -> torch.Tensor:
    """The tensor with a value in these places."""
    return tensor if where is None else torch.where(where, value, tensor)


def logits(rows: Rows, scale: float) -> torch.Tensor:
    """z of rows of x in its dtype, with the sink as the last column if there is one."""
    z = scale * rows.first
    if rows.bias is not None:
        z = z + rows.bias
    z = without(z, hidden(rows), -math.inf)
    return z if rows.sink is None else torch.cat([z, rows.sink.to(z.dtype)[:, None]], dim=1)


def softmax(z: torch.Tensor) -> torch.Tensor:
    """softmax(z) over the last axis, in its dtype."""
    return torch.softmax(z, dim=-1)


def forward(z: torch.Tensor) -> torch.Tensor:
    """softmax(z) over the last axis in float64, of any dtype."""
    return reference(softmax, independent.softmax, z)


def dot(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """D of each row, (rows, 1), in float64."""
    return reference(lambda dy, y: (dy * y).sum(dim=-1, keepdim=True), independent.dot, dy, y)
