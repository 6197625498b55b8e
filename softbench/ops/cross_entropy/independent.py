"""Cross entropy and its gradient in numpy, for the rows that `softbench.ops.rowwise.independent` compares."""

from __future__ import annotations

import numpy

from softbench.core.case import Case, Direction
from softbench.ops.cross_entropy.reference import Settings, settings
from softbench.ops.rowwise.independent import SMALLEST, Again, Array, log_sum, moved


def again(case: Case, *inputs: Array) -> tuple[Again, ...]:
    """The outputs of some rows, with the size of their terms; arrays are (rows, N) and (rows,)."""
    x, target, *rest = inputs
    given = settings(case)
    with numpy.errstate(all="ignore"):
        z = given.cap * numpy.tanh(x / given.cap) if given.cap else x
        if case.direction is Direction.BACKWARD:
            return (_gradient(z, target, rest[0], rest[1], given),)
        lse, high = log_sum(z)
        loss = _loss(z, target, lse, high, given)
        if case.direction is Direction.FORWARD:
            return loss, Again(lse, 1 + numpy.abs(lse) + numpy.abs(high), SMALLEST)
        return loss, _gradient(z, target, lse, numpy.ones_like(lse), given)


def _loss(z: Array, target: Array, lse: Array, high: Array, given: Settings) -> Again:
    ignored, e = target == given.ignore_index, given.smoothing
    at_target = numpy.take_along_axis(z, _places(target, given), 1)[:, 0]
    loss, size = (1 - e) * (lse - at_target), 1 + numpy.abs(lse) + numpy.abs(high) + given.cap
    if e:
        loss, size = loss + e * (lse - z.mean(axis=-1)), size + numpy.abs(z).mean(axis=-1)
    square = given.z_loss * lse**2
    size = size + numpy.abs(loss) + square * (1 + size)
    return Again(numpy.where(ignored, 0.0, loss + square), numpy.where(ignored, 1.0, size), SMALLEST)  # an ignored row may be NaN


def _gradient(z: Array, target: Array, lse: Array, dloss: Array, given: Settings) -> Again:
    N, places = z.shape[1], _places(target, given)
    p, factor = numpy.exp(z - lse[:, None]), (1 + 2 * given.z_loss * lse)[:, None]
    hot = numpy.zeros_like(z)
    numpy.put_along_axis(hot, places, 1 - given.smoothing, 1)
    dz, size = p * factor - hot - given.smoothing / N, p * numpy.abs(factor) + hot + given.smoothing / N
    steep = (
        1 + numpy.where(p == 0, 0.0, numpy.abs(z - lse[:, None])) + moved(numpy.abs(lse))[:, None] + given.z_loss * numpy.abs(lse)[:, None]
    )
    ignored = (target == given.ignore_index)[:, None]
    slope = 1 - (z / given.cap) ** 2 if given.cap else 1.0
    dx = numpy.where(ignored, 0.0, dz * slope * dloss[:, None])
    largest = float(numpy.abs(dloss).max(initial=0.0))
    whole = numpy.abs(dloss)[:, None] * size * steep * (1 + given.cap)
    return Again(dx, numpy.where(ignored, 1.0, whole), SMALLEST * (1 + 4 * largest))


def _places(target: Array, given: Settings) -> numpy.typing.NDArray[numpy.int64]:
    return numpy.where(target == given.ignore_index, 0, target).astype(numpy.int64)[:, None]
