"""Softmax and its gradient in float64, of exactly the (quantised) values that a backend got."""

from __future__ import annotations

import torch

from softbench.ops.rowwise.reference import reference
from softbench.ops.softmax import independent

OPERATORS = ("softmax",)
"""What the tamper guard protects of torch for this reference."""


def softmax(x: torch.Tensor) -> torch.Tensor:
    """softmax(x) over the last axis, in x's dtype."""
    return torch.softmax(x, dim=-1)


def gradient(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """y * (dy - sum(y * dy)) over the last axis, in their dtype."""
    return y * (dy - (y * dy).sum(dim=-1, keepdim=True))


def forward(x: torch.Tensor) -> torch.Tensor:
    """softmax(x) over the last axis, float64; any dtype and shape. Rows that hold NaN or +inf, or only -inf, are NaN."""
    return reference(softmax, independent.forward, x)


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """y * (dy - sum(y * dy)) over the last axis, float64."""
    return reference(gradient, independent.backward, dy, y)
