"""Softmax's parameters in its numerics: the scale of a case, the dtype of y, and the bounds of rounded products x * scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from softbench.core.case import Case
from softbench.ops.check_case import Tensors
from softbench.ops.registry import operation
from softbench.ops.rowwise.tolerance import Bounded, U
from softbench.ops.softmax.spec import ROW, SCALE

Scale = float | torch.Tensor | None
"""A number, one number a row as float64 of shape (rows, 1), or None for softmax without scale."""
LARGEST, SMALLEST = 2.0**3, 2.0**-3
"""The ends of the scales of rows. Two rows in a hundred have scales that are closer than 8 %."""
MARGIN = 1.02
"""A factor for the rounding of a quotient and of a product in 16 bits."""
FLOAT16 = 3e4
"""Below half of the largest float16: dx has a difference of two such numbers."""
GOOD_PART = 0.25
DIGITS = 1e-12
"""Relative distance of two results of float64 for the same argument, at most."""
SUM = 16
"""Largest distance of a row's sum from 1 in 16 bits, in units of the rounding of y."""


def result_dtype(case: Case) -> str:
    """The name of the dtype of y and dy."""
    return operation(case.op).tensors["y"].dtype_of(case)


def per_row(case: Case) -> bool:
    """True if the last input is the scale of each row."""
    return case.parameters.get(SCALE.name) == ROW


def split(case: Case, given: Tensors) -> tuple[Tensors, Scale]:
    """The inputs without the scale, and the scale."""
    if per_row(case):
        return given[:-1], given[-1].detach().double()[:, None]
    value = case.parameters.get(SCALE.name)
    return given, None if value is None else float(value)


def draw(M: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """The scales of M rows: their logarithms are uniform, so that the scale of another row is wrong."""
    span = math.log2(LARGEST / SMALLEST)
    return torch.exp2(span * torch.rand(M, generator=generator, device=device) - span / 2)


def times(x: torch.Tensor, scale: Scale) -> torch.Tensor:
    """x * scale in x's dtype."""
    if scale is None:
        return x
    return x * (scale.to(x.dtype) if isinstance(scale, torch.Tensor) else scale)


def shrink(tensor: torch.Tensor, scale: Scale) -> None:
    """Divide by a scale above 1, in place, so that products with it overflow no dtype, although quotient and product are rounded."""
    if scale is not None:
        above = (MARGIN * scale).clamp_min(1).to(tensor.dtype) if isinstance(scale, torch.Tensor) else max(1.0, MARGIN * scale)
        tensor.data.div_(above)


def fit(dy: torch.Tensor, scale: Scale) -> None:
    """Make rows of dy smaller, in place, whose product with a scale would overflow float16."""
    if scale is not None:
        high = dy.detach().double().nan_to_num(0, 0, 0).abs().amax(dim=-1, keepdim=True) * scale
        dy.data.div_((high / FLOAT16).clamp_min(1).to(dy.dtype))


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
