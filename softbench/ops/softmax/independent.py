"""Softmax and its gradient in numpy, for the rows that `softbench.ops.rowwise.independent` compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy

from softbench.core.case import Case, Direction
from softbench.ops.rowwise.independent import SMALLEST, WIDEST, Again, Array

MAX_WIDER = 600.0
"""Exponent of the most that errors of x * scale widen a bound."""


def forward(x: Array) -> Array:
    """softmax(x) over the last axis. Rows that hold NaN or +inf, or only -inf, are NaN."""
    with numpy.errstate(all="ignore"):
        e = numpy.exp(x - x.max(axis=-1, keepdims=True))
        found: Array = e / e.sum(axis=-1, keepdims=True)
        return found


def backward(dy: Array, y: Array) -> Array:
    """y * (dy - sum(y * dy)) over the last axis."""
    with numpy.errstate(all="ignore"):
        found: Array = y * (dy - (y * dy).sum(axis=-1, keepdims=True))
        return found


def again_forward(x: Array) -> Again:
    """A row of y."""
    y = forward(x)
    return Again(y, y, SMALLEST)


def again_backward(dy: Array, y: Array) -> Again:
    """A row of dx."""
    with numpy.errstate(all="ignore"):
        size = numpy.abs(y) * (numpy.abs(dy) + numpy.abs(y * dy).sum(axis=-1, keepdims=True))
    return Again(backward(dy, y), size, SMALLEST * (1 + 4 * float(numpy.abs(dy).max())))


def scaled(of: Callable[..., Again], case: Case, name: str, given: Sequence[Array], scale: float, u_x: float) -> Again:
    """A row of softmax with a scale, from `of`, which gives it without. `u_x` is the rounding of the dtype of x; 0 for float32."""
    if name == "y" or case.direction is Direction.BOTH:
        given = [given[0] * scale, *given[1:]]
        finite = given[0][numpy.isfinite(given[0])]
        high = float(numpy.abs(finite).max()) if finite.size else 0.0
        widest = WIDEST * float(numpy.exp(min(4 * max(u_x, 2.0**-22) * high, MAX_WIDER)))
    else:
        widest = WIDEST
    found = replace(of(case, name, *given), widest=widest)
    if name == "y":
        return found
    return replace(found, expected=found.expected * scale, size=found.size * scale, floor=found.floor * max(1.0, scale))
