"""Structured rows of masked softmax: kinds of x, or of dy and y, by the number of a row; its mask and its sink are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch

from softbench.core.case import Case, Direction
from softbench.ops.check_case import Tensors
from softbench.ops.masked_softmax import reference
from softbench.ops.rowwise import structured_rows
from softbench.ops.rowwise.structured_rows import Kinds, Places, of_x, put
from softbench.ops.softmax import scaling
from softbench.ops.softmax.structured_rows import of_dy_and_y

LARGE_SINK = 300.0
LOWEST = {"fp32": -(2.0**127), "fp16": -65504.0, "bf16": -(2.0**127)}
"""What code adds in place of -inf. A sum with z overflows only in float16, and there to -inf."""
NOT_FINITE = ("with one NaN in dy", "with infinities in dy")
"""Kinds that a causal backward lacks: 0 times such a dy is NaN, and only some kernels read it where y is 0 because of the order."""
Change = Callable[[torch.Tensor, Places], object]


def _one_key(values: torch.Tensor, places: Places, *, off: float) -> None:
    values.fill_(off)
    put(values, places, 1 if values.dtype is torch.bool else 0)


def _first(values: torch.Tensor, places: Places, *, off: float) -> None:
    values[places.before(len(values))] = off


def _last(values: torch.Tensor, places: Places, *, off: float) -> None:
    values[places.before(len(values)).flip(1)] = off


def of_mask(off: float) -> Mapping[str, Change]:
    """Changes of rows of a mask or a bias, by name; `off` is what takes an element out."""
    return {
        "as drawn": lambda values, places: values,
        "with one key": partial(_one_key, off=off),
        "without a key": lambda values, places: values.fill_(off),
        "without the first keys": partial(_first, off=off),
        "without the last keys": partial(_last, off=off),
        "with scattered keys": lambda values, places: values.masked_fill_(places.some(len(values)), off),
    }


def of_bias(dtype: str) -> Mapping[str, Change]:
    """Changes of rows of a bias that are none of a mask, by name."""
    return {
        "30 times as wide": lambda bias, places: bias.nan_to_num_(neginf=0.0).mul_(30),
        "with the lowest number": lambda bias, places: bias.masked_fill_(places.some(len(bias)), LOWEST[dtype]),
        "falling with the distance": lambda bias, places: bias.copy_(
            -0.5 * torch.arange(places.N, device=bias.device).flip(0).clamp(max=120)
        ),
    }


def of_sink() -> Mapping[str, Change]:
    """Changes of sinks, by name."""
    return {
        "as drawn": lambda sink, places: sink,
        f"of {LARGE_SINK:g}": lambda sink, places: sink.fill_(LARGE_SINK),
        f"of {-LARGE_SINK:g}": lambda sink, places: sink.fill_(-LARGE_SINK),
    }


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
