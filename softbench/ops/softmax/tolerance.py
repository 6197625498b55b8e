"""The accuracy bound: an elementwise bound on the error against float64, derived from the arithmetic.

With u = 2^-24, u_o = 2^-11 (fp16) or 2^-8 (bf16), d_i = max(x) - x_i, D = sum_j y_j d_j, eta = 2^-25 (fp16) or 2^-126 (else), and
c = 16 + 2 log2 N + sqrt(N + r N^2) + lost:

    forward   B_i = [16-bit: u_o y_i] + u y_i (c + 4 (d_i + D)) + eta
    backward  B_i = [16-bit: u_o |dx_i|] + u S_i (c - 8) + eta,  S_i = |y_i| (|dy_i| + sum_j |y_j dy_j|)

The last two terms of c are for a sum of one float32 term after the other, as torch's is over another axis. Its N roundings are independent
if the terms differ: they add up to 0.3 sqrt(N) u of the result (one standard deviation). Equal terms round alike, so their errors add up:
r is the probability that two elements are equal. Near the maximum float32 has a spacing of at most 2 u |max|, so r is about u |max|, at
most 1, where a row's standard deviation is one. The backward does not know x, and takes 0. Terms below u times the sum may be lost whole:
`lost` is their sum, in units of u times the whole sum.

The relative error of exp grows with |x - max|, and the error of sums and dots with their depth. Terms of dx cancel, so its scale is S and
not dx. The term eta covers flush-to-zero. The backward also has 2^-126 (|dy_i| + sum_j |y_j dy_j|), because a y below 2^-126 may be
read as 0. `low-precision` is a second class, for backends that round intermediates to 16 bits:

    forward   B_i + u_o y_i (4 + 2 (d_i + D)) + eta
    backward  B_i + u_o (2 S_i + |dx_i|) + 2 eta

The forward's second eta is for the numerator: in fp16 exp(x - max) may be subnormal, and is rounded before the division rounds again.
Eager naive on randn of scale 10 needs it.

A float32 softmax may compute exp(x - max) as exp2(x log2 e - max log2 e), with one fused multiply-add. The rounded product max log2 e is
off by u |max| log2 e, so a term is off by a factor of exp(+-u |max|). If the parts of a row have maxima of their own, these factors differ
between an element and the sum. With h = 2 u |max| the error is at most y (exp(h) - 1) above y and y (1 - exp(-h)) below it. A maximum of a
part is at most d_i further from zero, which 4 (d_i + D) covers. This is `low-precision` too, while |max| log2 e < 2^24; beyond that the
product has no fraction.

`both` is checked against float64 from x on, so a backend's own y counts. With dx = y (dy - s) and s = sum_j y_j dy_j, an error of y within
the forward bound F moves dx. It moves by at most F_i (|dy_i| + |s|) + |y_i| sum_j F_j |dy_j|, which is added to the backward bound.

With a scale s, z = x s stands for x. A product is rounded, and exp may be of x (s log2 e): each z has an error of up to 2 u |z|. The
factor of d_i + D is 6, because s itself is rounded, or is 1 / T. The bounds of y are those for any such errors (`scaling.extreme`), plus
the terms above. Where x has 16 bits, `low-precision` has errors of u_x |z|: torch rounds x * s and x / T to the dtype of x. A scale that
is rounded to 16 bits is within it too, and so is no scale where x * s rounds to x. Such a row still has the sum 1. In float32 `low-
precision` adds u |max| to the error of each z, as above. The backward is that of softmax times s, with 4 u S more, and its `low-
precision` has one more rounding, of dx before the product.

With out_dtype=fp32, u_o and eta of y are those of float32. With either parameter, r is counted (`scaling.ties`): elements of 16
bits are often equal, and so are those of narrow rows, nearly.

Common tolerances are vacuous here: with rtol = atol = 1e-2 a bf16 output of zeros passes on normal rows of N = 16384.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from softbench.core.case import Case, Direction
from softbench.ops.check_case import Tensors
from softbench.ops.rowwise.independent import Again, Array, wide
from softbench.ops.rowwise.tolerance import ETA, MAX_EXPONENT, OVERRIDDEN, SMALLEST, U_OUT, Bounded, Tolerance, U, summing
from softbench.ops.softmax import independent, reference, scaling
from softbench.ops.softmax.scaling import Scale, ScaledBound
from softbench.ops.softmax.spec import SCALE

__all__ = ["OVERRIDDEN", "SoftmaxTolerance", "U", "check"]


@dataclass(frozen=True, slots=True)
class FusedExponent(Bounded):
    """The bound of an output that a fused exponent may compute."""

    exponent: torch.Tensor | None = None
    """h of the fused exponent, (rows, 1); None if this output has no such part. `loose` is without it."""

    def loosest(self, out: torch.Tensor) -> torch.Tensor:
        if self.exponent is None:
            return self.loose
        apart = torch.where(out.double() < self.expected, -torch.expm1(-self.exponent), torch.expm1(self.exponent))
        return self.loose + apart * self.expected

    def largest(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Both bounds for an output on either side of the reference."""
        return self.tight, self.loose if self.exponent is None else self.loose + torch.expm1(self.exponent) * self.expected


class SoftmaxTolerance(Tolerance):
    """The bounds of softmax and its gradient."""

    __slots__ = ()

    def bound_forward(self, x: torch.Tensor, case: Case, scale: Scale = None) -> FusedExponent | ScaledBound:
        out = scaling.result_dtype(case)
        u_out, eta, u_x = U_OUT[out], ETA[out], U_OUT[case.dtype]
        z = scaling.times(x.double(), scale)
        y = reference.forward(z)
        high = z.amax(dim=-1, keepdim=True)
        distance = high - z
        spread = torch.where(y == 0, 0.0, y * distance)  # an exact zero is exactly representable, however far away
        mean = spread.sum(dim=-1, keepdim=True)
        travelled = spread + y * mean  # y * (d + D)
        equal = scaling.ties(y) if case.parameters else (U * high.abs()).clamp_max(1)
        tight = u_out * y + U * (y * summing(y, equal) + (4 if scale is None else 6) * travelled) + eta
        loose = tight + u_out * (4 * y + 2 * travelled) + eta if u_out else tight
        exponent = torch.where(high.abs() * math.log2(math.e) < MAX_EXPONENT, 2 * U * high.abs(), 0.0)
        if scale is None:
            return FusedExponent(y, tight, loose, high, None if u_out else exponent)
        size = torch.where(z.isfinite(), z.abs(), 0.0)
        rounded = (u_x * size + ETA[case.dtype]) if u_x else exponent / 2
        sums = scaling.SUM * u_x + 2 * x.shape[-1] * eta if u_x else math.inf
        floors = eta, 2 * eta if u_out else eta
        return ScaledBound(y, tight, loose, high, z=z, errors=2 * U * size, loose_errors=2 * U * size + rounded, floors=floors, sums=sums)

    def bound_backward(self, dy: torch.Tensor, y: torch.Tensor, case: Case, scale: Scale = None) -> Bounded:
        u_out, eta = U_OUT[case.dtype], ETA[case.dtype]
        dy, y = dy.double(), y.double()
        dx = scaling.times(reference.backward(dy, y), scale)
        products = (y * dy).abs()
        reach = scaling.times(dy.abs() + products.sum(dim=-1, keepdim=True), scale)
        size = y.abs() * reach
        c, again, floor = summing(products) - 8, 0, torch.zeros(())
        if scale is not None:  # a rounding more, of values that may be below the smallest numbers
            c, again, floor = c + 4, 1, torch.as_tensor(scale)
        tight = u_out * dx.abs() + U * size * c + eta + SMALLEST * (reach + floor)
        return Bounded(dx, tight, tight + (u_out * (2 * size + (1 + again) * dx.abs()) + 2 * eta * (1 + floor) if u_out else 0.0))

    def bound_both(self, x: torch.Tensor, dy: torch.Tensor, case: Case, scale: Scale = None) -> tuple[Bounded, Bounded]:
        ahead = self.bound_forward(x, case, scale)
        y, dy = ahead.expected, dy.double()
        back = self.bound_backward(dy, y, case, scale)
        reach = dy.abs() + (y * dy).sum(dim=-1, keepdim=True).abs()

        def carried(error: torch.Tensor) -> torch.Tensor:
            return scaling.times(error * reach + y * (error * dy.abs()).sum(dim=-1, keepdim=True), scale)

        tight, loose = ahead.largest()
        return ahead, Bounded(back.expected, back.tight + carried(tight), back.loose + carried(loose), ahead.high)

    def again_forward(self, x: Array) -> Again:
        return independent.again_forward(x)

    def again_backward(self, dy: Array, y: Array) -> Again:
        return independent.again_backward(dy, y)

    def rounding(self, case: Case, high: float | None, value: float, expected: float) -> str:
        scaled = SCALE.name in case.parameters
        if U_OUT[case.dtype] and scaled:
            return "rounds x * scale, or dx before its product with scale, to 16 bits"
        if U_OUT[scaling.result_dtype(case)] or high is None:
            return "rounds intermediates to 16 bits"
        relative = abs(value - expected) / abs(expected) if expected else math.inf
        return f"rounds max*log2(e) in its exponent: relative error {relative:.2g} in a row whose maximum is {high:.3g}"

    def _rows(self, case: Case, inputs: Tensors, outputs: Tensors, rows: slice) -> Iterator[tuple[str, torch.Tensor, Bounded]]:
        (first, *rest), scale = scaling.split(case, tuple(tensor.detach()[rows] for tensor in inputs))
        got = [tensor[rows] for tensor in outputs]
        if case.direction is Direction.FORWARD:
            yield "y", got[0], self.bound_forward(first, case, scale)
        elif case.direction is Direction.BACKWARD:
            yield "dx", got[0], self.bound_backward(first, rest[0], case, scale)
        else:
            ahead, back = self.bound_both(first, rest[0], case, scale)
            yield "y", got[0], ahead
            yield "dx", got[1], back

    def _again(self, case: Case, inputs: Tensors, name: str, row: int) -> Again:
        given = [wide(tensor[row]) for tensor in inputs]
        scale = given.pop() if scaling.per_row(case) else case.parameters.get(SCALE.name)
        if scale is None:
            return self._again_of(case, name, *given)
        return independent.scaled(self._again_of, case, name, given, float(scale), U_OUT[case.dtype])

    def _again_of(self, case: Case, name: str, *given: Array) -> Again:
        """A row of softmax without scale."""
        if name == "y":
            return self.again_forward(given[0])
        if case.direction is Direction.BACKWARD:
            return self.again_backward(*given)
        return self.again_backward(given[1], self.again_forward(given[0]).expected)


TOLERANCE = SoftmaxTolerance()
check = TOLERANCE.check
