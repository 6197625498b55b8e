"""The accuracy bound of log-softmax: an elementwise bound on the error against float64, derived from the arithmetic.

u, u_o, eta and c are those of `softbench.ops.softmax.tolerance`, with another r in c. With p = exp(y), d_i = max(x) - x_i, L = log sum_j
exp(-d_j), D = sum_j p_j d_j, s = sum_j dy_j and A = sum_j |dy_j|:

    forward   B_i = [16-bit: u_o |y_i|] + u (c + 4 D + 4 |y_i|) + eta
    backward  B_i = [16-bit: u_o |dx_i|] + u (|dx_i| + p_i A (c - 8 + 4 |y_i|)) + eta + 2^-126 A

The first terms are the last rounding. Forward: x_j - max is rounded at d_j. The argument of exp is rounded too, by the product with
log2(e) and by that constant. So a term of the sum is off by at most 4 u d_j of itself, also if a part of the row has a maximum of its
own. With the roundings of the sum, and 16 for exp and log, the sum is off by u (c + 4 D) of itself. The relative error of a sum is the
absolute error of its logarithm. A logarithm computed as log2 times a constant is rounded three times at L. The output is (x_i - max) - L,
rounded at d_i and at |y_i| = d_i + L. These five roundings are at most 4 u |y_i|, as both d_i and L are at most |y_i|, and d_i is in two
of them.

Backward: c - 8 is for A and not for s, because the terms of s may cancel. It covers the roundings of the sum, of exp and of the product.
The argument of exp makes 4 u |y_i|, and the difference makes u |dx_i|. Below 2^-126 exp(y) may be read as 0.

The error of adding a term depends on its remainder by the spacing of the sum. So equal terms round alike, and so do terms whose distances
are below this spacing. Of k distinct values the mean remainder is about 1 / sqrt(k), and of a density over k spacings at most 1 / k. So r
is the share of equal neighbours, plus the square of the share of neighbours closer than 2 u of the sum. Whole numbers are added without
rounding, and terms below u times the sum are in `lost`, so neither counts.

`both` is checked against float64 from x on. An error of y within the forward bound F changes p by a factor of at most exp(F). So dx has
p_i (exp(F_i) - 1) |s| more, and p_i A becomes p_i A exp(F_i).

`low-precision` is a second class. It adds the roundings of three kinds of kernels:

    forward   B_i + 2 u |max| + [16-bit: u_o (1 + L)]

- x - logsumexp(x) rounds max + L, at |max| + L.
- A fused exponent, exp2(x log2 e - max log2 e), scales a term by at most exp(u |max|), so L is off by u |max|. As for softmax, this and
  the one above hold while |max| log2 e < 2^24.
- torch's 16-bit kernel on the CPU stores the sum in 16 bits, and then its logarithm. The first is off by u_o of itself, which is u_o in
  L. The second is off by u_o L.

Rounding each exp to 16 bits is off by u_o of the sum too, so it is in this class. If the argument of exp is also rounded to 16 bits, L is
off by u_o D more. A sum that is accumulated in 16 bits is off by more with every term. Both are wrong.
"""

from __future__ import annotations

import math

import torch

from softbench.core.case import Case
from softbench.ops.log_softmax import independent, reference
from softbench.ops.rowwise.independent import Again, Array
from softbench.ops.rowwise.tolerance import ETA, MAX_EXPONENT, SMALLEST, U_OUT, Bounded, Tolerance, U, alike, summing

__all__ = ["LogSoftmaxTolerance", "check"]


class LogSoftmaxTolerance(Tolerance):
    """The bounds of log-softmax and its gradient."""

    __slots__ = ()

    def bound_forward(self, x: torch.Tensor, case: Case) -> Bounded:
        u_out, wide = U_OUT[case.dtype], x.double()
        y = reference.forward(wide)
        high = wide.amax(dim=-1, keepdim=True)
        p = torch.exp(y)
        mean = torch.where(p == 0, 0.0, p * (high - wide)).sum(dim=-1, keepdim=True)
        of_sum = summing(p, alike(torch.exp(wide - high))) + 4 * mean
        tight = u_out * y.abs() + U * (of_sum + 4 * y.abs()) + ETA[case.dtype]
        at_once = torch.where(high.abs() * math.log2(math.e) < MAX_EXPONENT, 2 * U * high.abs(), 0.0)
        log_sum = -y.amax(dim=-1, keepdim=True)
        return Bounded(y, tight, tight + (1 + u_out) * (at_once + u_out * (1 + log_sum)), high)

    def bound_backward(self, dy: torch.Tensor, y: torch.Tensor, case: Case) -> Bounded:
        dy, y = dy.double(), y.double()
        dx = reference.backward(dy, y)
        tight = _gradient_bound(dy, y, dx, case)
        return Bounded(dx, tight, tight)

    def bound_both(self, x: torch.Tensor, dy: torch.Tensor, case: Case) -> tuple[Bounded, Bounded]:
        ahead, dy = self.bound_forward(x, case), dy.double()
        dx = reference.backward(dy, ahead.expected)
        tight, loose = (_gradient_bound(dy, ahead.expected, dx, case, error) for error in (ahead.tight, ahead.loose))
        return ahead, Bounded(dx, tight, loose, ahead.high)

    def again_forward(self, x: Array) -> Again:
        return independent.again_forward(x)

    def again_backward(self, dy: Array, y: Array) -> Again:
        return independent.again_backward(dy, y)

    def rounding(self, case: Case, high: float | None, value: float, expected: float) -> str:
        if high is None:
            return ""  # the backward has one bound
        stored = "stores the sum or its logarithm in 16 bits, or " if U_OUT[case.dtype] else ""
        return f"{stored}rounds max + log(sum) or max*log2(e): error {abs(value - expected):.2g} in a row whose maximum is {high:.3g}"


def _gradient_bound(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, case: Case, error: torch.Tensor | float = 0.0) -> torch.Tensor:
    """The bound on dx, (rows, N) float64, where y has this error."""
    u_out, p, sizes = U_OUT[case.dtype], torch.exp(y), dy.abs()
    size = sizes.sum(dim=-1, keepdim=True)
    grown = torch.where(p == 0, 0.0, p * torch.exp(torch.as_tensor(error)))  # an exact zero stays one, however far away
    steep = torch.where(p == 0, 0.0, grown * (summing(sizes, alike(sizes)) - 8 + 4 * y.abs()))
    carried = (grown - p) * dy.sum(dim=-1, keepdim=True).abs()
    return u_out * dx.abs() + U * (dx.abs() + size * steep) + (1 + u_out) * carried + ETA[case.dtype] + SMALLEST * size


TOLERANCE = LogSoftmaxTolerance()
check = TOLERANCE.check
