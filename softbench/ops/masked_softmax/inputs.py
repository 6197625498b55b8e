"""The tensors of rows of a case: each row has its own mask, sink, and number of keys that it sees."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from softbench.core.case import Case, Direction
from softbench.ops.check_case import Tensors
from softbench.ops.dtypes import DTYPES
from softbench.ops.masked_softmax import reference
from softbench.ops.masked_softmax.reference import Rows
from softbench.ops.masked_softmax.spec import ADDITIVE, BOOLEAN, MASK
from softbench.ops.rows import row_chunks
from softbench.ops.rowwise.inputs import generator_of

KEPT = 205
"""Of 256 elements so many take part where there is a mask. The first of each row does, so no row of the draw is NaN."""
GRID = 16
"""Sinks are multiples of 1 / GRID: 16 bits hold them, so models with sinks of 16 bits compute the same."""


def make(case: Case, seed: int, device: torch.device) -> Tensors:
    """The inputs of rows: standard normal x and dy; a bias that is normal or -inf; sinks of about log(N), so that they weigh as a row does.

    y is the forward of such rows in float32, rounded. Without the first tensor all follow from the generator's later values.
    """
    generator = generator_of(case, seed, device)

    def normal() -> torch.Tensor:
        return torch.randn((case.M, case.N), generator=generator, dtype=DTYPES[case.dtype], device=device)

    dy = None if case.direction is Direction.FORWARD else normal()
    rows = _draw(case, normal(), generator)
    if dy is not None:
        rows = _results(case, dy, rows)
    return tuple(getattr(rows, name) for name in reference.names(case))


def _draw(case: Case, x: torch.Tensor, generator: torch.Generator) -> Rows:
    """x with masks, sinks, and the number of keys that each row sees."""
    kind, device = case.parameters.get(MASK.name), x.device
    needs = reference.names(replace(case, direction=Direction.FORWARD))
    kept = None
    if kind:
        kept = torch.randint(256, x.shape, generator=generator, dtype=torch.uint8, device=device) < KEPT
        kept[:, :1] = True
    bias = None
    if kind == ADDITIVE and kept is not None:
        bias = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=device).masked_fill_(~kept, -math.inf)
    sink = seen = None
    if "sink" in needs:
        sink = ((math.log(case.N) + torch.randn(case.M, generator=generator, device=device)) * GRID).round() / GRID
    if "seen" in needs:
        seen = torch.randint(1, case.N + 1, (case.M,), generator=generator, device=device)
    return Rows(x, None, bias, kept if kind == BOOLEAN else None, sink, seen)


def _results(case: Case, dy: torch.Tensor, rows: Rows) -> Rows:
    """dy with the results of a forward of these rows: y, which takes the memory of x, and the share of the sink."""
    share = None if rows.sink is None else torch.empty_like(rows.sink)
    scale, y = reference.scale_of(case), rows.first
    for part in row_chunks(case):
        some = Rows(*(None if tensor is None else tensor[part] for tensor in (y, None, rows.bias, rows.mask, rows.sink, rows.seen)))  # type: ignore[arg-type]
        some = replace(some, first=some.first.float(), bias=None if some.bias is None else some.bias.float())
        found = reference.softmax(reference.logits(some, scale))
        y[part] = found[:, : case.N].to(y.dtype)
        if share is not None:
            share[part] = found[:, case.N]
    return Rows(dy, y, sink=share, seen=rows.seen)
