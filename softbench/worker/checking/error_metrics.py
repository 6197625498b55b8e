"""Error metrics of other tools: units in the last place, row sums, the relative Frobenius norm.

They do not affect a verdict, as each has a blind spot: the constant 1/N has perfect row sums, and a norm hides a dropped column.
"""

from __future__ import annotations

import math

import torch

from softbench.core.outcome import ErrorMetrics

MANTISSA = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7, torch.float64: 52}
MIN_EXPONENT = {torch.float32: -126, torch.float16: -14, torch.bfloat16: -126, torch.float64: -1022}


class MetricsAccumulator:
    """Accumulates the ErrorMetrics of rows that `softbench.ops.check` passes to it."""

    def __init__(self) -> None:
        self.rows = 0
        self.ulp = self.row_sum = self.error = self.size = 0.0

    def __call__(self, out: torch.Tensor, expected: torch.Tensor) -> None:
        self.rows += len(out)
        finite = expected.isfinite()
        exponent = torch.frexp(expected.abs())[1] - 1
        ulp = torch.exp2(exponent.clamp_min(MIN_EXPONENT[out.dtype]).double() - MANTISSA[out.dtype])
        off = torch.where(finite, (out.double() - expected).abs(), 0.0)
        self.ulp = _larger(self.ulp, (off / ulp).max())
        wide, want = torch.where(finite, out.double(), 0.0), torch.where(finite, expected, 0.0)
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
