"""The error of log(sum(exp(z))) of a row in float32, which losses over rows share.

u and c are those of `softbench.ops.rowwise.tolerance`. With d_j = max(z) - z_j, p_j = exp(z_j) / sum, L = log(sum_j exp(-d_j)) and
D = sum_j p_j d_j:

    error of L      u (c + 4 D + 4 L)
    error of lse    u (c + 4 D + 4 L + 7 |max(z)|)

The first is that of log-softmax: d_j is rounded, its product with log2(e) too, so a term is off by at most 4 u d_j of itself. c has the
roundings of the sum, of exp and of the logarithm. A logarithm computed as log2 times a constant is rounded at L, up to four times.
The second adds the maximum, which has no error of its own. lse = (max log2(e) + log2(sum)) log(2) is rounded five times at the maximum:
both constants, both products and the sum. A fused exponent, exp2(z log2(e) - max log2(e)), is off by u |max|, twice if parts of the row
have maxima of their own. lse is a float32 of the size of the maximum, so no kernel stores it much better.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from softbench.ops.rowwise.tolerance import U, alike, summing

AT_MAXIMUM = 7.0
"""Roundings at the size of the maximum, at most."""


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
    of_sum = summing(p, alike(torch.exp(-below)))[:, 0]
    return LogSum(lse, p, mean_below, U * (of_sum + 4 * mean_below + 4 * (lse - high)), AT_MAXIMUM * U * high.abs())


def weighted(p: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """sum_j p_j values_j of each row; a p of zero counts nothing, also beside infinities."""
    return torch.where(p == 0, 0.0, p * values).sum(dim=-1)
