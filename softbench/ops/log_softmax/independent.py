"""Log-softmax and its gradient in numpy, for the rows that `softbench.ops.rowwise.independent` compares."""

from __future__ import annotations

import numpy

from softbench.ops.rowwise.independent import SMALLEST, Again, Array


def forward(x: Array) -> Array:
    """log_softmax(x) over the last axis. Rows that hold NaN or +inf, or only -inf, are NaN."""
    with numpy.errstate(all="ignore"):
        below = x - x.max(axis=-1, keepdims=True)
        found: Array = below - numpy.log(numpy.exp(below).sum(axis=-1, keepdims=True))
        return found


def backward(dy: Array, y: Array) -> Array:
    """dy - exp(y) * sum(dy) over the last axis."""
    with numpy.errstate(all="ignore"):
        found: Array = dy - numpy.exp(y) * dy.sum(axis=-1, keepdims=True)
        return found


def again_forward(x: Array) -> Again:
    """A row of y. Its size has 1 for the sum, whose relative error is an error of its logarithm."""
    y = forward(x)
    return Again(y, numpy.abs(y) + 1, SMALLEST)


def again_backward(dy: Array, y: Array) -> Again:
    """A row of dx."""
    with numpy.errstate(all="ignore"):
        p = numpy.exp(y)
        steep = numpy.where(p == 0, 0.0, p * (1 + numpy.abs(y)))
        size = numpy.abs(dy) + steep * numpy.abs(dy).sum(axis=-1, keepdims=True)
    return Again(backward(dy, y), size, SMALLEST * (1 + 4 * float(numpy.abs(dy).max())))
