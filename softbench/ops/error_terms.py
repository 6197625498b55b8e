"""Error terms that the bounds of operations share: units, the error of a sum, of a log-sum and of a softmax whose logits have errors.

The bound of an operation is in its own file, such as `cross_entropy.py`.

u is 2^-24, half the spacing of float32 at 1. u_o is that of the dtype of an output, 2^-11 (fp16), 2^-8 (bf16) or 0 (fp32), and eta is
half of its smallest number, or the smallest normal one. c is the error of a sum of N terms in units of u times the sum (`summing`).

Losses share the error of log(sum(exp(z))) of a row in float32 (`log_sum`). With d_j = max(z) - z_j, p_j = exp(z_j) / sum,
L = log(sum_j exp(-d_j)) and D = sum_j p_j d_j:

    error of L      u (c + 4 D + 4 L)
    error of lse    u (c + 4 D + 4 L + 7 |max(z)|)

The first is that of log-softmax: d_j is rounded, its product with log2(e) too, so a term is off by at most 4 u d_j of itself. c has the
roundings of the sum, of exp and of the logarithm. Beside one large term, u c is at most 16 u and twice the sum of the others. A logarithm
computed as log2 times a constant is rounded at L, up to four times.
The second adds the maximum, which has no error of its own. lse = (max log2(e) + log2(sum)) log(2) is rounded five times at the maximum:
both constants, both products and the sum. A fused exponent, exp2(z log2(e) - max log2(e)), is off by u |max|, twice if parts of the row
have maxima of their own. lse is a float32 of the size of the maximum, so no kernel stores it much better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from softbench.ops.lazy import torch

U = 2.0**-24
U_OUT = {"fp32": 0.0, "fp16": 2.0**-11, "bf16": 2.0**-8}
ETA = {"fp32": 2.0**-126, "fp16": 2.0**-25, "bf16": 2.0**-126}
SMALLEST = 2.0**-126
"""The smallest normal float32."""
MAX_EXPONENT = 2.0**24
"""A float32 of this size and more has no fraction."""
GOOD_PART = 0.25
DIGITS = 1e-12
"""Relative distance of two results of float64 for the same argument, at most."""
SUM = 16
"""Largest distance of a row's sum from 1 in 16 bits, in units of the rounding of y."""
LEAST = 16
"""Of a sum: roundings of exp, of the logarithm and of joined parts, which a sum of one term has too."""
AT_MAXIMUM = 7.0
"""Roundings at the size of the maximum, at most."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """Some rows of one output: float64 reference and the two bounds, all of its shape."""

    expected: torch.Tensor
    """The float64 reference."""
    tight: torch.Tensor
    """The bound of `pass`: the largest error of each element."""
    loose: torch.Tensor
    """The bound of `low-precision`."""
    high: torch.Tensor | None = None
    """The maxima of the rows of x, (rows, 1); None where x is not known."""

    def counted(self, out: torch.Tensor) -> torch.Tensor:
        """The output as it is compared: where the reference has no say, it may be another."""
        return out

    def tightest(self, out: torch.Tensor) -> torch.Tensor:
        """The bound of `pass` for this output."""
        return self.tight

    def loosest(self, out: torch.Tensor) -> torch.Tensor:
        """The bound of `low-precision` for this output."""
        return self.loose


def summing(terms: torch.Tensor, repeated: torch.Tensor | float = 0.0) -> torch.Tensor:
    """c of some rows, (rows, 1): the error of the sum of `terms`, which are (rows, N) and not negative, in units of u times that sum.

    `repeated` is the probability that two terms of a row are equal.
    """
    N = terms.shape[-1]
    total = terms.sum(dim=-1, keepdim=True)
    lost = torch.where(terms < U * total, terms, 0.0).sum(dim=-1, keepdim=True) / (U * total)
    serial = torch.sqrt(torch.as_tensor(N + N * N * repeated, dtype=total.dtype, device=total.device))
    return LEAST + 2 * math.log2(max(N, 1)) + serial + torch.where(total > 0, lost, 0.0)


def alike(terms: torch.Tensor, *, whole: bool = True) -> torch.Tensor:
    """The share of terms that round alike in a sum, (rows, 1), for terms that are (rows, N) and not negative: `repeated` of `summing`.

    `softbench.ops.log_softmax` derives it. With `whole`, whole numbers are added without rounding: they are small.
    """
    apart, total = (terms - terms.roll(1, dims=-1)).abs(), terms.sum(dim=-1, keepdim=True)
    rounded = terms >= U * total
    if whole:
        rounded &= terms != terms.round()
    near = (rounded & (apart < 2 * U * total)).double().mean(dim=-1, keepdim=True)
    return (rounded & (apart == 0)).double().mean(dim=-1, keepdim=True) + near.square()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledBound(Bounded):
    """The bound of y where each z of a row may have an error of its own; `tight` and `loose` are without these errors."""

    z: torch.Tensor
    """x * scale, (rows, N)."""
    errors: torch.Tensor
    """The largest error of each z in float32, (rows, N)."""
    loose_errors: torch.Tensor
    """The largest error of each z of `low-precision`."""
    floors: tuple[float, float]
    """The parts of `tight` and `loose` that are smallest numbers, which errors of z do not widen."""
    sums: float = math.inf
    """Largest distance of a row's sum from 1."""

    def tightest(self, out: torch.Tensor) -> torch.Tensor:
        return self._around(out, self.errors, self.tight, self.floors[0])

    def loosest(self, out: torch.Tensor) -> torch.Tensor:
        bound = self._around(out, self.loose_errors, self.loose, self.floors[1])
        normal = (out.double().sum(dim=-1, keepdim=True) - 1).abs() <= self.sums
        return torch.where(normal | self.expected.isnan(), bound, self.tightest(out))

    def largest(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Both bounds for an output on either side of the reference."""
        sides = (self.expected - 1, self.expected + 1)
        tight = torch.maximum(*(self.tightest(side) for side in sides))
        return tight, torch.maximum(*(self._around(side, self.loose_errors, self.loose, self.floors[1]) for side in sides))

    def _around(self, out: torch.Tensor, errors: torch.Tensor, rest: torch.Tensor, floor: float) -> torch.Tensor:
        """The bound on the side of the reference where `out` is."""
        below, above = (extreme(self.z, errors, sign) for sign in (1, -1))
        grown = torch.where(self.expected > 0, above / self.expected, 1.0)
        over = above - self.expected + (rest - floor) * grown + floor
        return torch.where(out.double() < self.expected, self.expected - below + rest, over)


def ties(y: torch.Tensor) -> torch.Tensor:
    """The probability that two terms of a row's sum round alike, (rows, 1).

    They do if they are equal. They also do if a good part of the row lies within one spacing of the sum's float32.
    """
    N, ordered = y.shape[-1], y.sort(dim=-1).values.contiguous()

    def within(distance: torch.Tensor | float) -> torch.Tensor:
        """How many elements are at most so far from each element; 0 for zeros, which round nothing."""
        found = torch.searchsorted(ordered, ordered + distance, right=True) - torch.searchsorted(ordered, ordered - distance)
        return torch.where(ordered > 0, found, 0).double()

    equal = within(ordered * DIGITS).sum(dim=-1, keepdim=True) / N**2
    close = within(U).amax(dim=-1, keepdim=True) / N
    return torch.maximum(equal, torch.where(close > GOOD_PART, close**2, 0.0))


def extreme(z: torch.Tensor, errors: torch.Tensor, sign: int) -> torch.Tensor:
    """The smallest (sign 1) or largest (sign -1) y for any errors of z up to `errors`; z is (rows, N) in float64.

    y_i = 1 / (1 + sum of exp(z_j - z_i) over j != i) is smallest if z_i is smallest and all other z_j are largest. The sum without i is
    the whole sum less one term; for the largest term it is summed without it, because the difference would have no digits.
    """
    others = z + sign * errors
    top = others.argmax(dim=-1, keepdim=True)
    high = others.gather(-1, top)
    z, others = z - high, others - high  # the logarithms below would be lost beside large numbers
    without_top = others.scatter(-1, top, -math.inf).logsumexp(dim=-1, keepdim=True)
    total = torch.logaddexp(without_top, others.gather(-1, top))
    rest = (total + torch.log1p(-torch.exp(others - total))).scatter(-1, top, without_top)
    return torch.sigmoid(z - sign * errors - rest)


@dataclass(frozen=True, slots=True)
class LogSum:
    """Some rows of logits; (rows,) in float64 but for p."""

    lse: torch.Tensor
    p: torch.Tensor
    """The softmax, (rows, N)."""
    mean_below: torch.Tensor
    """D."""
    log_error: torch.Tensor
    """The error of L."""
    at_maximum: torch.Tensor
    """What lse is off by at the size of the maximum."""

    @property
    def error(self) -> torch.Tensor:
        """The error of lse."""
        return self.log_error + self.at_maximum


def log_sum(z: torch.Tensor) -> LogSum:
    """The log-sum of rows of logits, (rows, N) in float64."""
    lse, high = torch.logsumexp(z, dim=-1), z.amax(dim=-1)
    below = high[:, None] - z
    p = torch.exp(z - lse[:, None])
    mean_below = weighted(p, below)
    shares = torch.exp(-below)
    of_sum = U * summing(p, alike(shares))[:, 0]
    # An addition loses at most its smaller term, so beside one large term at most twice all others, and what their exponentials lose.
    of_sum = torch.minimum(of_sum, LEAST * U + 2 * (shares.sum(dim=-1) - 1).abs())
    return LogSum(lse, p, mean_below, of_sum + 4 * U * (mean_below + lse - high), AT_MAXIMUM * U * high.abs())


def weighted(p: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """sum_j p_j values_j of each row; a p of zero counts nothing, also beside infinities."""
    return torch.where(p == 0, 0.0, p * values).sum(dim=-1)
