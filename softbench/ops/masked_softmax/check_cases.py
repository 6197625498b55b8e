"""The check cases of masked softmax: shapes of scores, masks and sinks that wrong kernels get wrong, and cases of several calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch

from softbench.core.case import Case, Direction
from softbench.ops import scores
from softbench.ops.check_case import CheckCase, Draw, Tensors
from softbench.ops.masked_softmax import inputs, masks, reference
from softbench.ops.masked_softmax.reference import Rows
from softbench.ops.registry import operation
from softbench.ops.rowwise.structured_rows import Places
from softbench.ops.rowwise.targets import CONTRACT

SHAPES = (
    *((1, 1, 1, 1), (1, 1, 5, 2), (2, 3, 7, 7), (1, 2, 33, 33), (2, 2, 128, 128), (3, 2, 130, 197), (1, 3, 5, 1023), (2, 1, 9, 1025)),
    *((2, 5, 70, 33), (1, 2, 4, 4097), (1, 1, 3, 8192), (2, 1, 2, 12289), (1, 2, 2, 16384)),
)
"""B, H, S and N: one query, more queries than keys and fewer, odd numbers, and the longest rows."""
SMALL = (2, 2, 24, 321)
WIDE = (2, 8, 128, 4097)
HUGE = (1, 33, 16384, 4096)
"""More than 2^31 elements."""
HUGE_TENSORS = 6
Change = Callable[[Rows, Places], object]


def items(op: str) -> list[CheckCase]:
    """All check cases of the operation with the parameters of `op`, for each pass."""
    return [item for direction in operation(op).directions for item in _of_direction(op, direction)]


def _of_direction(op: str, direction: Direction) -> Iterator[CheckCase]:
    for shape in SHAPES:
        name = "x".join(map(str, shape))
        normal = _case(f"shape {name}", op, direction, shape)
        yield normal
        yield replace(normal, name=f"structured {name}", repeat="structured")
    for name, change in _values(op, direction):
        yield _case(name, op, direction, SMALL, change)
    for name, repeat in CONTRACT.items():
        one = _case(name, op, direction, WIDE if repeat == "streams" else SMALL)
        yield replace(one, repeat=repeat, gpu_only="streams" if "stream" in repeat else "")
    huge = _case("over-2^31-elements", op, direction, HUGE)
    elements = math.prod(HUGE)
    yield replace(huge, repeat="sampled", gpu_only="it is a matter of its memory", free_bytes=HUGE_TENSORS * 4 * elements)


def _case(name: str, op: str, direction: Direction, shape: tuple[int, ...], change: Change | None = None) -> CheckCase:
    """Normal rows, which `change` changes, in tensors of the shape."""

    def make(random: Draw) -> Tensors:
        B, H, S, N = shape
        fewer = random.rows(B * H * S, N)
        S = min(S, fewer)
        H = min(H, fewer // S)
        B = min(B, fewer // (S * H))
        text = "x".join(map(str, (B, H, S, N)))
        case = Case(B * H * S, N, random.dtype, direction, random.device.type, op, text)
        seed = int(torch.randint(2**31, (), generator=random.generator, device=random.device))
        given = inputs.make(case.of_rows(case.M), seed, random.device)
        if change is not None:
            change(reference.split(case, given), Places(torch.Generator().manual_seed(seed), N, random.device))
        return scores.of_rows(case, given)

    return CheckCase(name, direction, make)


def _values(op: str, direction: Direction) -> Iterable[tuple[str, Change]]:
    """Changes of rows by name; those of tensors that the operation with its parameters lacks are left out."""
    there = reference.names(Case(1, 1, "fp32", direction, op=op))
    if direction is Direction.BACKWARD:
        yield "dy = 1", lambda rows, places: rows.first.fill_(1)
        yield "dy with a mean", lambda rows, places: rows.first.add_(5)
        yield "y of 0", lambda rows, places: _y(rows).zero_()
        yield "a row of NaN", lambda rows, places: _y(rows)[3].fill_(math.nan)
        if "sink" in there:
            yield "all in the sink", _all_in_sink
        return
    yield "one NaN", lambda rows, places: rows.first[5, :1].fill_(math.nan)
    yield "a row of -inf", lambda rows, places: rows.first[5].fill_(-math.inf)
    yield "the maximum in the last column", lambda rows, places: rows.first[:, -1].fill_(30)
    yield "x of 100", lambda rows, places: rows.first.fill_(100 / _scale(op))
    if "bias" in there:
        yield from _of_mask("bias", -math.inf)
        yield "a NaN under -inf", _nan_under_bias
    if "mask" in there:
        yield from _of_mask("mask", False)
        yield "NaN where the mask is False", partial(_under_mask, value=math.nan)
        yield "inf where the mask is False", partial(_under_mask, value=math.inf)
    if {"bias", "mask"} & set(there):
        yield "the maximum masked", _masked_maximum
    if "seen" in there:
        yield "NaN in later keys", lambda rows, places: rows.first[::2, -1].fill_(math.nan)
        yield "the maximum in later keys", lambda rows, places: rows.first.copy_(torch.linspace(-30, 30, places.N).expand(rows.first.shape))
    if "sink" in there:
        for value in (90.0, 300.0, -300.0):
            yield f"a sink of {value:g}", partial(_sink, value=value)
        yield "x and sink at 100", partial(_sink, value=100.0, x=100.0 / _scale(op))


def _scale(op: str) -> float:
    return reference.scale_of(Case(1, 1, "fp32", Direction.FORWARD, op=op))


def _of_mask(name: str, off: float) -> Iterator[tuple[str, Change]]:
    for what, change in masks.of_mask(off).items():
        yield f"a {name} {what}", partial(_changed, name, change)
        yield f"a {name} {what} in one row", partial(_changed, name, change, row=3)


def _changed(name: str, change: masks.Change, rows: Rows, places: Places, row: int | None = None) -> None:
    values = getattr(rows, name)
    change(values if row is None else values[row : row + 1], places)


def _y(rows: Rows) -> torch.Tensor:
    assert rows.y is not None
    return rows.y


def _all_in_sink(rows: Rows, places: Places) -> None:
    assert rows.sink is not None
    _y(rows).mul_(2.0**-10)
    rows.sink.fill_(1)


def _sink(rows: Rows, places: Places, *, value: float, x: float = 0.0) -> None:
    assert rows.sink is not None
    rows.sink.fill_(value)
    rows.first.add_(x)


def _nan_under_bias(rows: Rows, places: Places) -> None:
    assert rows.bias is not None
    rows.bias[4, 0], rows.first[4, 0] = -math.inf, math.nan


def _under_mask(rows: Rows, places: Places, *, value: float) -> None:
    """All rows have one mask, so that it is the mask of each head, and such values where it is False."""
    assert rows.mask is not None
    rows.mask[:] = rows.mask[0]
    rows.first.masked_fill_(~rows.mask, value)


def _masked_maximum(rows: Rows, places: Places) -> None:
    off = rows.bias[:1] == -math.inf if rows.bias is not None else ~rows.mask[:1]  # type: ignore[index]
    if rows.bias is not None:
        rows.bias[:] = rows.bias[:1]
    elif rows.mask is not None:
        rows.mask[:] = rows.mask[:1]
    rows.first.masked_fill_(off, 60)
