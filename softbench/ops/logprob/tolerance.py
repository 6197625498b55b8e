"""The bounds of log-probability and entropy: elementwise bounds on the error against float64, derived from the arithmetic.

The symbols are those of `softbench.ops.logprob.reference` and `softbench.ops.rowwise.logsumexp`; u, u_o, eta and c are those of
`softbench.ops.rowwise.tolerance`. F(L) is the error of L there, H the entropy, Q = sum_j p_j y_j^2, and d_j = max(x) - x_j:

    logprob   F(L) + 4 u |y_t| + eta
    entropy   F(L) (1 + H) + u ((c' + 8) H + 4 Q) + eta
    dx        u_o |dx_i| + ((8 + 4 |y_i|) u p_i + 2^-126) (|a| + |b| (|y_i| + |H|)) + 4 u T_i + 2 u |dx_i| + eta

logprob: (x_t - max) - L is rounded as the output of log-softmax is.

entropy: H is L + sum_j p_j d_j, or the sum of p_j |y_j|. No term of either is negative, so nothing cancels. p_j is off by F(L) + 4 u |y_j|
of itself, and so is y_j in absolute terms. This gives F(L) H + 4 u Q and F(L) + 4 u H. The sum has N terms, with a c' of its own.

dx: a is dlogprob and b is dentropy. T_i = |a| ([i = t] + p_i) + |b| p_i (|y_i| + |H|) is the size of the terms, which cancel. p_i has the
relative error (8 + 4 |y_i|) u. A p below 2^-126 may be 0: the exponential of a GPU has no smaller numbers. Then all of dx is lost, and
that is more than 2^-126, because |y_i| is at least 87.

`low-precision` is a second class, of four kinds of kernels:

    logprob   A + [16-bit: u_o (1 + L + 2 |y_t|)], with A = 7 u |max|
    entropy   A + (F(L) + u (c'' + 8)) sum_j p_j |x_j| + [16-bit: u_o ((1 + L) (1 + H) + 4 H + Q)]
    dx        (exp(2 u |lse|) - 1) W_i + 8 u |b| p_i |lse| + [16-bit: u_o ((2 |y_i| + 3) W_i + 2 T_i)]

W_i is |a| p_i + |b| p_i (|y_i| + |H|).

- x_t - lse with an lse that was rounded at the maximum: A.
- H = lse - sum_j p_j x_j. Both are of the size of the maximum, so they cancel in rows that are shifted. c'' is that of the sum.
- The gradient as p (E - x) with E = lse - H, or with one fused multiply-add in the exponent.
- Log-probabilities in 16 bits, and results that are stored in 16 bits, as torch has them without `.float()`.
"""

from __future__ import annotations

import torch

from softbench.core.case import Case, Direction
from softbench.ops.logprob import reference
from softbench.ops.rowwise.logsumexp import LogSum, log_sum, weighted
from softbench.ops.rowwise.tolerance import ETA, SMALLEST, U_OUT, U, alike, summing

Tensors = tuple[torch.Tensor, ...]


def bounds(case: Case, inputs: Tensors, *, loose: bool) -> Tensors:
    """The bounds of the outputs of a pass; the floating inputs are float64."""
    x, target, *rest = inputs
    if case.direction is Direction.BACKWARD:
        lse, entropy, dlogprob, dentropy = rest
        return (_of_gradient(case, x, target, lse, entropy, dlogprob, dentropy, loose=loose),)
    return _of_results(case, x, target, log_sum(x), loose=loose)


def _of_results(case: Case, x: torch.Tensor, target: torch.Tensor, of_x: LogSum, *, loose: bool) -> Tensors:
    """The bounds on logprob and entropy, (rows,)."""
    below = of_x.lse[:, None] - x
    sizes = torch.where(of_x.p == 0, 0.0, of_x.p * below)
    entropy, square = sizes.sum(dim=-1), weighted(of_x.p, below.square())
    apart = reference.of_target(below, target)
    of_logprob = of_x.log_error + 4 * U * apart
    of_sum = summing(sizes, alike(sizes))[:, 0]
    of_entropy = of_x.log_error * (1 + entropy) + U * ((of_sum + 8) * entropy + 4 * square)
    if loose:
        u_out, log = U_OUT[case.dtype], of_x.lse - x.amax(dim=-1)
        terms = torch.where(of_x.p == 0, 0.0, of_x.p * x.abs())
        size = terms.sum(dim=-1)
        of_logprob = of_logprob + of_x.at_maximum + u_out * (1 + log + 2 * apart)
        cancelled = (of_x.log_error + U * (summing(terms, alike(terms))[:, 0] + 8)) * size
        rounded = u_out * ((1 + log) * (1 + entropy) + 4 * entropy + square)
        of_entropy = of_entropy + of_x.at_maximum + cancelled + rounded
    return of_logprob + ETA["fp32"], of_entropy + ETA["fp32"]


def _of_gradient(
    case: Case,
    x: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    entropy: torch.Tensor,
    dlogprob: torch.Tensor,
    dentropy: torch.Tensor,
    *,
    loose: bool,
) -> torch.Tensor:
    """The bound on dx, (rows, N)."""
    u_out, a, b = U_OUT[case.dtype], dlogprob.abs()[:, None], dentropy.abs()[:, None]
    y = x - lse[:, None]
    p = torch.exp(y)
    far = torch.where(p == 0, 0.0, y.abs())
    factor = a + b * (far + entropy.abs()[:, None])
    weight = p * factor
    terms = weight.scatter_add(1, target[:, None], a)
    bound = U * (8 + 4 * far) * weight + 4 * U * terms + SMALLEST * factor
    if loose:
        bound = bound + torch.expm1(2 * U * lse.abs())[:, None] * weight + 8 * U * b * p * lse.abs()[:, None]
        bound = bound + u_out * ((2 * far + 3) * weight + 2 * terms) + ETA[case.dtype]
    exact = reference.backward(x, target, lse, entropy, dlogprob, dentropy).abs()
    return bound + (u_out + 2 * U) * exact + ETA[case.dtype]


def rounding(case: Case, output: str) -> str:
    """What an output of low precision rounds, in words."""
    stored = ", or rounds terms to 16 bits" if U_OUT[case.dtype] else ""
    return f"computes {output} from sums of the size of the row's maximum, which cancel{stored}"
