"""Log-softmax and its gradient in float64, of exactly the (quantised) values that a backend got."""

from __future__ import annotations

import torch

from softbench.ops.log_softmax import independent
from softbench.ops.rowwise.reference import reference

OPERATORS = ("log_softmax",)
"""What the tamper guard protects of torch for this reference."""


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    """log_softmax(x) over the last axis, in x's dtype."""
    return torch.log_softmax(x, dim=-1)


def gradient(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """dy - exp(y) * sum(dy) over the last axis, in their dtype."""
    return dy - torch.exp(y) * dy.sum(dim=-1, keepdim=True)


def forward(x: torch.Tensor) -> torch.Tensor:
    """log_softmax(x) in float64. An element of -inf gives -inf. Rows that hold NaN or +inf, or only -inf, are NaN, as torch's are."""
    return reference(log_softmax, independent.forward, x)


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """dy - exp(y) * sum(dy) over the last axis, float64."""
    return reference(gradient, independent.backward, dy, y)
