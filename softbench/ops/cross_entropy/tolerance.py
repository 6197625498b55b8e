"""The bounds of cross entropy: elementwise bounds on the error against float64, derived from the arithmetic.

The symbols are those of `softbench.ops.cross_entropy.reference` and `softbench.ops.rowwise.logsumexp`; u, u_o, eta and c are those of
`softbench.ops.rowwise.tolerance`. F(lse) and F(L) are the errors of lse and of L there. With y_i = z_i - lse and B = lse - mean(z):

    lse       F(lse) + E + eta
    loss      (1 - e) (F(L) + 4 u |y_t|) + e (F(L) + u (c' + 4) B) + z_loss (2 |lse| F(lse) + 4 u lse^2) + 4 u S + C + eta
    dx        u_o |dx_i| + |g| s_i (K p_i R_i + 2 z_loss p_i F(lse) + 4 u T_i + K p_i (e_i + E)) + |g T_i| q + 2 u |dx_i| + eta

loss: (max - z_t) + L is rounded at d_t and at y_t, as the output of log-softmax is. B is summed over terms d_j + L, so it has a c' of its
own. S is the sum of the sizes of all parts, each of which is rounded by its product and by its sum.

dx: g is dloss, K = |1 + 2 z_loss lse|, s_i the slope of the softcap, and T_i = K p_i + (1 - e) [i = t] + e / N the size of the terms, which
cancel. R_i is the relative error of p_i, u (8 + 4 |y_i| + e N / 16) where lse is given. e N / 16 is for autograd. It sums the gradient of
all log-probabilities, N equal terms e / N, in 16 lanes on a CPU. In `fused` the backend computes lse: R_i has F(L) more. Where lse is
given, the middle term has 3 u |lse| for F(lse). A p below 2^-126 may be 0.

softcap: e_i = 6 u |z_i| is the error of z_i. Two roundings are of x / softcap, which tanh does not grow, and four of tanh and of the
product. E = sum_j p_j e_j is what it does to lse, and C = (1 - e) (E + e_t) + e (E + mean(e_j)) to the loss. The slope 1 - tanh^2 is
rounded at 1 and has twice the error of tanh: q is 9 u. Without softcap e_i and q are 0.

`low-precision` is a second class, of six kinds of kernels:

    lse       nothing more: lse is a float32. With softcap e_i is larger
    loss      (1 - e) A + e (A + u c'' mean|z|) + [16-bit: u_o (1 + L + 2 S)], with A = 7 u |max|
    dx        |g| s_i K p_i (exp(A') - 1) + [16-bit: u_o |g| (K p_i (2 |y_i| + 3) + 2 T_i)] + eta

- lse - z_t rounds lse at the maximum: A. Such kernels are exact for logits around zero, and are off where a row is shifted.
- exp(z - lse) with a rounded lse, or one fused multiply-add of z log2(e) - lse log2(e): A' = 7 u |max| in `fused`, 2 u |lse| in `backward`.
- The mean of z, rounded at the size of z instead of at that of max - z. c'' is that of the sum of |z|.
- A loss that is stored in 16 bits, as Liger's is, and log-probabilities y in 16 bits, as torch's are without `.float()`. On the CPU torch
  also stores the sum and its logarithm in 16 bits, which is u_o (1 + L), and L is at most |y_i|.
- Terms of dx that are rounded to 16 bits before they are added.
- softcap as 1 - 2 / (exp(2 x) + 1), which is rounded at 1 and not at tanh, or by the approximate instruction in 16 bits:
  e_i = 6 u |z_i| + 6 u softcap + [16-bit: u_o |z_i|]. The slope then has q = 24 u, and u_o in 16 bits.

An lse that is rounded to 16 bits is wrong in each class.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from softbench.core.case import Case, Direction
from softbench.ops.cross_entropy import reference
from softbench.ops.cross_entropy.reference import Settings
from softbench.ops.rowwise.logsumexp import LogSum, log_sum, weighted
from softbench.ops.rowwise.tolerance import ETA, SMALLEST, U_OUT, U, alike, summing

LANES = 16
"""In how many parts a CPU sums a row, at least."""
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Rounding:
    """Rows of a case, what is derived from them, and one of the two classes."""

    case: Case
    given: Settings
    loose: bool
    z: torch.Tensor
    target: torch.Tensor
    of_z: LogSum
    z_error: torch.Tensor | None
    """e_i, (rows, N); None without softcap."""

    @property
    def u_out(self) -> float:
        """u_o of the case's dtype."""
        return U_OUT[self.case.dtype]

    @property
    def carried(self) -> torch.Tensor:
        """E, (rows,)."""
        return torch.zeros_like(self.of_z.lse) if self.z_error is None else weighted(self.of_z.p, self.z_error)

    def at_target(self, rows: torch.Tensor) -> torch.Tensor:
        """Its element at the target, (rows,)."""
        return reference.of_target(rows, self.target, self.given)

    def counted(self, bound: torch.Tensor) -> torch.Tensor:
        """The bound, or only eta in ignored rows, whose results are exact zeros."""
        ignored = (self.target == self.given.ignore_index).view(-1, *[1] * (bound.dim() - 1))
        return torch.where(ignored, 0.0, bound) + ETA["fp32" if bound.dim() == 1 else self.case.dtype]


def bounds(case: Case, inputs: Tensors, *, loose: bool) -> Tensors:
    """The bounds of the outputs of a pass; the floating inputs are float64."""
    x, target, *rest = inputs
    given = reference.settings(case)
    z = reference.capped(x, given.cap)
    one = Rounding(case, given, loose, z, target, log_sum(z), _of_cap(z, case, given, loose=loose))
    if case.direction is Direction.FORWARD:
        return _of_loss(one), one.of_z.error + one.carried + ETA["fp32"]
    if case.direction is Direction.FUSED:
        extra = torch.expm1(one.of_z.at_maximum) if loose else 0.0
        ones = torch.ones_like(one.of_z.lse)
        return _of_loss(one), _of_gradient(one, one.of_z.lse, ones, one.of_z.log_error + extra, one.of_z.error, one.carried)
    lse, dloss = rest
    extra = torch.expm1(2 * U * lse.abs()) if loose else torch.zeros_like(lse)
    return (_of_gradient(one, lse, dloss, extra, 3 * U * lse.abs(), torch.zeros_like(lse)),)


def _of_cap(z: torch.Tensor, case: Case, given: Settings, *, loose: bool) -> torch.Tensor | None:
    """e_i."""
    if not given.cap:
        return None
    return (6 * U + U_OUT[case.dtype]) * z.abs() + 6 * U * given.cap if loose else 6 * U * z.abs()


def _of_loss(one: Rounding) -> torch.Tensor:
    """The bound on the loss, (rows,)."""
    given, of_z, z, e = one.given, one.of_z, one.z, one.given.smoothing
    lse, apart = of_z.lse, of_z.lse - one.at_target(z)
    bound, size = of_z.log_error + 4 * U * apart, (1 - e) * apart
    bound = (1 - e) * bound
    if e:
        below = lse[:, None] - z
        mean = below.mean(dim=-1)
        size = size + e * mean
        bound = bound + e * (of_z.log_error + U * (summing(below, alike(below))[:, 0] + 4) * mean)
        if one.loose:
            bound = bound + e * U * summing(z.abs(), alike(z.abs()))[:, 0] * z.abs().mean(dim=-1)
    if given.z_loss:
        size = size + given.z_loss * lse.square()
        bound = bound + given.z_loss * (2 * lse.abs() * (of_z.error + one.carried) + 4 * U * lse.square())
    bound = bound + 4 * U * size
    if one.z_error is not None:
        at_target, others = one.at_target(one.z_error), one.z_error.mean(dim=-1)
        bound = bound + one.carried + (1 - e) * at_target + e * others
    if one.loose:
        bound = bound + of_z.at_maximum + one.u_out * (1 + (lse - z.amax(dim=-1)) + 2 * size)
    return one.counted(bound)


def _of_gradient(
    one: Rounding, lse: torch.Tensor, dloss: torch.Tensor, of_p: torch.Tensor, of_lse: torch.Tensor, carried: torch.Tensor
) -> torch.Tensor:
    """The bound on dx, (rows, N). The others are (rows,): `of_p` is in R, `of_lse` the error of lse in the z-loss, `carried` is E."""
    given, z, N, u_out = one.given, one.z, one.z.shape[1], one.u_out
    y = z - lse[:, None]
    p = torch.exp(y)
    factor = (1 + 2 * given.z_loss * lse).abs()[:, None]
    steep = torch.where(p == 0, 0.0, p * (of_p[:, None] + U * (8 + 4 * y.abs() + given.smoothing * N / LANES)))
    terms = factor * p + given.smoothing / N
    terms.scatter_add_(
        1, torch.where(one.target == given.ignore_index, 0, one.target)[:, None], torch.full_like(lse, 1 - given.smoothing)[:, None]
    )
    bound = factor * steep + 2 * given.z_loss * p * of_lse[:, None] + 4 * U * terms + SMALLEST * factor
    if one.z_error is not None:
        bound = bound + factor * p * (one.z_error + carried[:, None])
    if one.loose and u_out:
        bound = bound + u_out * (torch.where(p == 0, 0.0, factor * p * (2 * y.abs() + 3)) + 2 * terms)
    if given.cap:
        slope = 1 - (z / given.cap).square()
        bound = bound * slope + terms * (24 * U + u_out if one.loose else 9 * U)
    exact = reference.gradient(z, one.target, lse, dloss, given).abs()
    bound = bound * dloss.abs()[:, None] + (u_out + 2 * U) * exact + (ETA[one.case.dtype] if one.loose else 0.0)
    return one.counted(bound)


def rounding(case: Case, output: str) -> str:
    """What an output of low precision rounds, in words."""
    stored = ", or rounds terms to 16 bits" if U_OUT[case.dtype] else ""
    return f"computes {output} from an lse that is rounded at the maximum of the row{stored}"
