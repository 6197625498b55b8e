"""Masked softmax and its gradient in numpy, for the rows that `softbench.ops.rowwise.independent` compares."""

from __future__ import annotations

import numpy
import numpy.typing

from softbench.ops.rowwise.independent import SMALLEST, WIDEST, Again, Array

MAX_WIDER = 600.0
"""Exponent of the most that errors of z widen a bound."""
LEAST_ERROR = 2.0**-22
"""Errors of z, in units of its terms, at least."""


def softmax(z: Array) -> Array:
    """softmax(z) over the last axis. Rows that hold NaN or +inf, or only -inf, are NaN."""
    with numpy.errstate(all="ignore"):
        e = numpy.exp(z - z.max(axis=-1, keepdims=True))
        found: Array = e / e.sum(axis=-1, keepdims=True)
        return found


def dot(dy: Array, y: Array) -> Array:
    """sum(dy y) over the last axis, which stays."""
    with numpy.errstate(all="ignore"):
        found: Array = (dy * y).sum(axis=-1, keepdims=True)
        return found


def again_forward(z: Array, columns: int, terms: float, u_x: float) -> Again:
    """The first columns of softmax of a row of z. `terms`: the size of the largest term of z. `u_x`: the rounding of x; 0 for float32."""
    y = softmax(z)[:columns]
    return Again(y, y, SMALLEST, WIDEST * float(numpy.exp(min(6 * max(u_x, LEAST_ERROR) * terms, MAX_WIDER))))


def again_dx(dy: Array, y: Array, scale: float, unseen: numpy.typing.NDArray[numpy.bool_] | None = None) -> Again:
    """A row of dx; `unseen` is True where it is 0."""
    with numpy.errstate(all="ignore"):
        size = scale * numpy.abs(y) * (numpy.abs(dy) + numpy.abs(y * dy).sum(axis=-1, keepdims=True))
        dx = scale * y * (dy - dot(dy, y))
    if unseen is not None:
        dx, size = numpy.where(unseen, 0.0, dx), numpy.where(unseen, 0.0, size)
    return Again(dx, size, _floor(dy) * max(1.0, scale))


def again_dsink(dy: Array, y: Array, share: Array) -> Again:
    """dsink of a row, (1,)."""
    with numpy.errstate(all="ignore"):
        return Again(-share * dot(dy, y), share * numpy.abs(y * dy).sum(axis=-1, keepdims=True), _floor(dy))


def _floor(dy: Array) -> float:
    return SMALLEST * (1 + 4 * float(numpy.abs(dy).max(initial=0.0)))
