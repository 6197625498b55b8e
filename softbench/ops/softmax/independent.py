"""Softmax and its gradient in numpy, for the rows that `softbench.ops.rowwise.independent` compares."""

from __future__ import annotations

import numpy

from softbench.ops.rowwise.independent import SMALLEST, Again, Array


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
