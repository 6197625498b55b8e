"""The check cases of softmax: those of all operations over rows, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import torch

from softbench.core.case import Case, Direction
from softbench.ops.check_case import CheckCase, Draw, Tensors
from softbench.ops.rowwise.check_cases import COLUMNS, OVER_INT32, RowwiseCases, one_hot
from softbench.ops.softmax import scaling

__all__ = ["OVER_INT32", "items"]

CASES = RowwiseCases(torch.softmax)


def items(op: str) -> list[CheckCase]:
    """All check cases of softmax with the parameters of `op`.

    The scale of each row goes with rows, and a function over `dim` does not know the dtype of x in a backward: no such cases.
    """
    plain = CASES.items(_gradients())
    case = Case(1, 1, "fp16", Direction.FORWARD, op=op)
    if not case.parameters:
        return plain
    rows, narrow = scaling.per_row(case), scaling.result_dtype(case) != case.dtype
    return [
        replace(item, make=partial(_with_parameters, item, case))
        for item in plain
        if item.dim is None or not (rows or (narrow and item.direction is Direction.BACKWARD))
    ]


def _gradients() -> Iterable[CheckCase]:
    yield from CASES.gradients_of_dy()
    yield CASES.gradient("y saturated", lambda dy, y: (dy, one_hot(y)))
    yield CASES.gradient("y = 0 where x was -inf", lambda dy, y: (dy, torch.where(y > 1 / COLUMNS, y, torch.zeros_like(y))))


def _with_parameters(item: CheckCase, case: Case, draw: Draw) -> Tensors:
    """The arguments of a check case with a scale of each row, and y and dy in their dtype. Products with the scale overflow no dtype."""
    result = scaling.result_dtype(replace(case, dtype=draw.dtype))
    make: Callable[[Draw], Tensors] = item.make
    given = list(make(replace(draw, dtype=result) if item.direction is Direction.BACKWARD else draw))
    if item.direction is Direction.BOTH and result != draw.dtype:
        given[1] = replace(draw, dtype=result).normal(*given[1].shape)
    if scaling.per_row(case):
        given.append(scaling.draw(len(given[0]), draw.generator, draw.device))
    if item.direction is Direction.FORWARD and item.dim is None and item.repeat in ("", "twice", "stream"):
        scaling.shrink(given[0], scaling.split(case, tuple(given))[1])
    return tuple(given)
