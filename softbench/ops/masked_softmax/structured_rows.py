"""Structured rows of masked softmax: kinds of x, or of dy and y, by the number of a row; its mask and its sink are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from softbench.core.case import Case, Direction
from softbench.ops.check_case import Tensors
from softbench.ops.masked_softmax import reference
from softbench.ops.masked_softmax.masks import Change, of_bias, of_mask, of_sink
from softbench.ops.rowwise import structured_rows
from softbench.ops.rowwise.structured_rows import Kinds, Places, of_x
from softbench.ops.softmax import scaling
from softbench.ops.softmax.structured_rows import of_dy_and_y

NOT_FINITE = ("with one NaN in dy", "with infinities in dy")
"""Kinds that a causal backward lacks: 0 times such a dy is NaN, and only some kernels read it where y is 0 because of the order."""


def _vary(values: torch.Tensor, changes: Mapping[str, Change], places: Places) -> None:
    """A change of its own for each row."""
    chosen = torch.randint(len(changes), (len(values),), generator=places.generator).to(values.device)
    for number, change in enumerate(changes.values()):
        if len(rows := (chosen == number).nonzero()[:, 0]):
            part = values[rows]
            change(part, places)
            values[rows] = part


def kinds(case: Case) -> Kinds:
    """All kinds of a case: functions of the first tensor or, in a backward, of dy and y, and of Places."""
    if case.direction is Direction.FORWARD:
        large = {"at 100": lambda x, places: x.add_(100)}
        return of_x(case.dtype) | large
    found = of_dy_and_y(case.dtype)
    causal = any(name == "seen" for name in reference.names(case))
    return {name: change for name, change in found.items() if not (causal and name in NOT_FINITE)}


def make_structured(given: Tensors, case: Case, seed: int) -> list[str]:
    """As `softbench.ops.rowwise.structured_rows.make_structured`, and masks and sinks of many kinds. scale * x has the kinds of x."""
    rows, forward = reference.split(case, [tensor.detach() for tensor in given]), case.direction is Direction.FORWARD
    places = Places(torch.Generator().manual_seed(seed), case.N, given[0].device)
    if rows.bias is not None:
        _vary(rows.bias, {**of_mask(-math.inf), **of_bias(case.dtype)}, places)
    if rows.mask is not None:
        _vary(rows.mask, of_mask(False), places)
    if rows.sink is not None and forward:
        _vary(rows.sink, of_sink(), places)
    scale = reference.scale_of(case)
    if forward:
        names = structured_rows.make_structured((rows.first,), case, seed, kinds(case))
        scaling.shrink(rows.first, scale)
        return names
    assert rows.y is not None
    names = structured_rows.make_structured((rows.first, rows.y), case, seed, kinds(case))
    if case.dtype == "fp16":
        scaling.fit(rows.first, scale)
    return names
