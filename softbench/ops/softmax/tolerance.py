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

Common tolerances are vacuous here: with rtol = atol = 1e-2 a bf16 output of zeros passes on normal rows of N = 16384.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from softbench.core.case import Case
from softbench.ops.rowwise.independent import Again, Array
from softbench.ops.rowwise.tolerance import ETA, MAX_EXPONENT, OVERRIDDEN, SMALLEST, U_OUT, Bounded, Tolerance, U, summing
from softbench.ops.softmax import independent, reference

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


class SoftmaxTolerance(Tolerance):
    """The bounds of softmax and its gradient."""

    __slots__ = ()

    def bound_forward(self, x: torch.Tensor, case: Case) -> FusedExponent:
        u_out, eta = U_OUT[case.dtype], ETA[case.dtype]
        wide = x.double()
        y = reference.forward(wide)
        high = wide.amax(dim=-1, keepdim=True)
        distance = high - wide
        spread = torch.where(y == 0, 0.0, y * distance)  # an exact zero is exactly representable, however far away
        mean = spread.sum(dim=-1, keepdim=True)
        travelled = spread + y * mean  # y * (d + D)
        tight = u_out * y + U * (y * summing(y, (U * high.abs()).clamp_max(1)) + 4 * travelled) + eta
        if not u_out:
            exponent = torch.where(high.abs() * math.log2(math.e) < MAX_EXPONENT, 2 * U * high.abs(), 0.0)
            return FusedExponent(y, tight, tight, high, exponent)
        return FusedExponent(y, tight, tight + u_out * (4 * y + 2 * travelled) + eta, high)

    def bound_backward(self, dy: torch.Tensor, y: torch.Tensor, case: Case) -> Bounded:
        u_out, eta = U_OUT[case.dtype], ETA[case.dtype]
        dy, y = dy.double(), y.double()
        dx = reference.backward(dy, y)
        products = (y * dy).abs()
        reach = dy.abs() + products.sum(dim=-1, keepdim=True)
        scale = y.abs() * reach
        tight = u_out * dx.abs() + U * scale * (summing(products) - 8) + eta + SMALLEST * reach
        return Bounded(dx, tight, tight + (u_out * (2 * scale + dx.abs()) + 2 * eta if u_out else 0.0))

    def bound_both(self, x: torch.Tensor, dy: torch.Tensor, case: Case) -> tuple[Bounded, Bounded]:
        ahead = self.bound_forward(x, case)
        y, dy = ahead.expected, dy.double()
        back = self.bound_backward(dy, y, case)
        reach = dy.abs() + (y * dy).sum(dim=-1, keepdim=True).abs()

        def carried(error: torch.Tensor) -> torch.Tensor:
            return error * reach + y * (error * dy.abs()).sum(dim=-1, keepdim=True)

        loose = ahead.loose if ahead.exponent is None else ahead.loose + torch.expm1(ahead.exponent) * y
        return ahead, Bounded(back.expected, back.tight + carried(ahead.tight), back.loose + carried(loose), ahead.high)

    def again_forward(self, x: Array) -> Again:
        return independent.again_forward(x)

    def again_backward(self, dy: Array, y: Array) -> Again:
        return independent.again_backward(dy, y)

    def rounding(self, case: Case, high: float | None, value: float, expected: float) -> str:
        if U_OUT[case.dtype] or high is None:
            return "rounds intermediates to 16 bits"
        relative = abs(value - expected) / abs(expected) if expected else math.inf
        return f"rounds max*log2(e) in its exponent: relative error {relative:.2g} in a row whose maximum is {high:.3g}"


TOLERANCE = SoftmaxTolerance()
check = TOLERANCE.check
