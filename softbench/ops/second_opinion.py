"""The second opinion of a check: rows that numpy computes again, which no operator of torch reaches.

A plugin may replace `aten::_softmax` or `aten::exp` for its whole process, as libraries of kernels do. The float64 reference and the judge
use torch too, because whole tensors are on the device. So some rows of each check are computed again with numpy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from softbench.ops.lazy import numpy, torch

Array: TypeAlias = "numpy.typing.NDArray[numpy.float64]"

ROWS = 2
"""Rows of a check that are computed again."""
CLOSE = 1e-9
"""Largest relative distance of two float64 references. Sums of 2^20 terms are 1e-13 apart."""
WIDEST = 8.0
"""A larger bound, in units of the terms' size, accepts anything. Those of softbench's operations are smaller."""
FLUSHED = 2.0**-22
"""A bound of that size, in units of 1 + 4 max |dy|, may cover flush-to-zero."""
MAX_WIDER = 600.0
"""Exponent of the most that errors of logits widen a bound."""


SAMPLED = 4096
"""Elements of an input that `drawn` looks at, about."""
FEW = 1024
"""The mean square of fewer elements is far from normal."""
ROUNDED = 0.01
"""What rounding to bf16 may move a mean."""
TINY = 1e-300
"""Where float64 loses digits."""


_by_numpy = [False]


class OverriddenError(Exception):
    """torch gives another result than numpy: an operator was replaced."""


@dataclass(frozen=True, slots=True)
class Again:
    """A row of an output as numpy computes it; arrays have its shape."""

    expected: Array
    """The output in float64."""
    size: Array
    """The size of its terms."""
    floor: float
    """The least bound for flush-to-zero."""
    widest: float = WIDEST
    """A larger bound, in units of `size`, accepts anything."""


def wide(tensor: torch.Tensor) -> Array:
    """The values of a tensor in float64, without an operator that computes."""
    there = tensor.detach().cpu().contiguous()
    if there.dtype is torch.bfloat16:
        bits = there.view(torch.int16).numpy().astype(numpy.uint16).astype(numpy.uint32) << 16
        return bits.view(numpy.float32).astype(numpy.float64)
    return there.numpy().astype(numpy.float64)


def numpy_log_sum(x: Array) -> tuple[Array, Array]:
    """log(sum(exp(x))) and the maximum over the last axis; both are -inf for a row of -inf."""
    with numpy.errstate(all="ignore"):
        high = x.max(axis=-1)
        finite = numpy.where(numpy.isneginf(high), 0.0, high)
        found: Array = finite + numpy.log(numpy.exp(x - finite[..., None]).sum(axis=-1))
        return found, high


def moved(size: Array) -> Array:
    """What a relative error of exp(x - lse) may be, in units of 1e-9, where both are of this size: float32 rounds lse, float64 too."""
    found: Array = numpy.exp(numpy.minimum(size * 2.0**-21, 50.0))
    return found


def chosen(M: int) -> frozenset[int]:
    """The rows of a check that are computed again; a plugin cannot predict them."""
    return frozenset(random.SystemRandom().sample(range(M), min(M, ROWS)))


def drawn(tensors: tuple[torch.Tensor, ...]) -> bool:
    """True unless the first tensor is not what `Draw.normal` draws, standard normal values.

    Its first rows are looked at, up to SAMPLED elements. Their mean and mean square may be eight standard deviations off. Few elements say
    too little.
    """
    first = tensors[0]
    values = wide(first[: max(1, SAMPLED // first.shape[1]), :SAMPLED]).ravel()
    n = values.size
    if n < FEW:
        return True
    return bool(abs(values.mean()) <= 8 / n**0.5 + ROUNDED and abs((values**2).mean() - 1) <= 8 * (2 / n) ** 0.5 + ROUNDED)


def compare(again: Again, out: Array, expected: Array, bound: Array, excess: Array) -> None:
    """Check the reference, the bound and the verdict of a row of an output; all arrays have its shape.

    `excess` is the error over the bound that torch found.

    Raises:
        OverriddenError: they cannot come from the operators that torch has.
    """
    with numpy.errstate(all="ignore"):
        apart = numpy.abs(expected - again.expected) > CLOSE * again.size + TINY
        off = ~(numpy.abs(out - again.expected) <= (1 + 1e-6) * bound + CLOSE * again.size)
        vacuous = ~(bound <= again.widest * again.size + again.floor)
    finite = numpy.isfinite(again.expected)
    wrong = (excess <= 1) & (off | vacuous)
    if (numpy.isfinite(expected) != finite).any() or ((apart | wrong) & finite).any():
        raise OverriddenError


@contextmanager
def by_numpy() -> Iterator[None]:
    """Within this context the reference is numpy's: torch's operators were replaced."""
    _by_numpy[0] = True
    try:
        yield
    finally:
        _by_numpy[0] = False


def uses_numpy() -> bool:
    """True within `by_numpy`."""
    return _by_numpy[0]


def exact(by_torch: Callable[..., torch.Tensor], in_numpy: Callable[..., Array], *tensors: torch.Tensor) -> torch.Tensor:
    """A function of tensors of any dtype, in float64; the two functions are the same."""
    if _by_numpy[0]:
        return torch.from_numpy(in_numpy(*map(wide, tensors))).to(tensors[0].device)
    return by_torch(*(tensor.double() for tensor in tensors))
