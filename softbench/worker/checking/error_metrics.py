"""Error metrics of other tools: units in the last place, row sums, the relative Frobenius norm.

They do not affect a verdict, as each has a blind spot: the constant 1/N has perfect row sums, and a norm hides a dropped column.
"""

from __future__ import annotations

import math

import torch

from softbench.core.outcome import ErrorMetrics

MANTISSA = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7, torch.float64: 52}
MIN_EXPONENT = {torch.float32: -126, torch.float16: -14, torch.bfloat16: -126, torch.float64: -1022}
EXPONENT = 0x7FF << 52
"""The bits of a float64's exponent: without the others it is a power of two."""


class MetricsAccumulator:
    """Accumulates the ErrorMetrics of rows that `softbench.ops.check` passes to it."""

    def __init__(self) -> None:
        self.rows = 0
        self.ulp = self.row_sum = self.error = self.size = 0.0

    def __call__(self, out: torch.Tensor, expected: torch.Tensor) -> None:
        self.rows += len(out)
        wide, want = out.double(), expected.double()
        off = (wide - want).abs()
        if not off.max() < math.inf:
            finite = want.isfinite()
            off, wide, want = (torch.where(finite, values, 0.0) for values in (off, wide, want))
        powers = want.abs().clamp_min(2.0 ** MIN_EXPONENT[out.dtype]).view(torch.int64).bitwise_and(EXPONENT).view(torch.float64)
        powers.masked_fill_(want == 0, 0.5)  # 0 has no last place but that of the smallest number
        self.ulp = _larger(self.ulp, (off / powers).max() * 2.0 ** MANTISSA[out.dtype])
        self.row_sum = _larger(self.row_sum, (wide.sum(-1) - want.sum(-1)).abs().max())
        self.error += off.square().sum().item()
        self.size += want.square().sum().item()

    def found(self) -> ErrorMetrics:
        """The metrics of all rows so far, to six digits."""
        frobenius = math.sqrt(self.error / self.size) if self.size else 0.0 if self.error == 0 else math.inf
        return ErrorMetrics(*(float(f"{value:.6g}") for value in (self.ulp, self.row_sum, frobenius)))


def _larger(so_far: float, now: torch.Tensor) -> float:
    value = now.item()
    return value if math.isnan(value) or value > so_far else so_far
