"""Log-probability, entropy and their gradient in numpy, for the rows that `softbench.ops.rowwise.independent` compares."""

from __future__ import annotations

import numpy

from softbench.core.case import Case, Direction
from softbench.ops.rowwise.independent import SMALLEST, Again, Array, log_sum, moved


def again(case: Case, *inputs: Array) -> tuple[Again, ...]:
    """The outputs of some rows, with the size of their terms; arrays are (rows, N) and (rows,)."""
    x, target, *rest = inputs
    places = target.astype(numpy.int64)[:, None]
    with numpy.errstate(all="ignore"):
        if case.direction is Direction.BACKWARD:
            return (_gradient(x, places, *rest),)
        lse, high = log_sum(x)
        y = x - lse[:, None]
        p = numpy.exp(y)
        logprob = numpy.take_along_axis(y, places, 1)[:, 0]
        entropy, square, mean = (numpy.where(p == 0, 0.0, p * of).sum(axis=-1) for of in (-y, y**2, numpy.abs(x)))
        size = 1 + numpy.abs(lse) + numpy.abs(high)
        return Again(logprob, size + numpy.abs(logprob), SMALLEST), Again(entropy, (size + mean) * (1 + entropy) + square, SMALLEST)


def _gradient(x: Array, places: numpy.typing.NDArray[numpy.int64], lse: Array, entropy: Array, dlogprob: Array, dentropy: Array) -> Again:
    y = x - lse[:, None]
    p, a, b = numpy.exp(y), dlogprob[:, None], dentropy[:, None]
    far = numpy.where(p == 0, 0.0, numpy.abs(y))
    hot = numpy.zeros_like(x)
    numpy.put_along_axis(hot, places, 1.0, 1)
    dx = a * (hot - p) - b * numpy.where(p == 0, 0.0, p * (y + entropy[:, None]))
    terms = numpy.abs(a) * (hot + p) + numpy.abs(b) * p * (far + numpy.abs(entropy)[:, None] + moved(numpy.abs(lse))[:, None])
    steep = 1 + far + moved(numpy.abs(lse))[:, None]
    largest = max(float(numpy.abs(given).max(initial=0.0)) for given in (dlogprob, dentropy))
    return Again(dx, terms * steep, SMALLEST * (1 + 4 * largest))
