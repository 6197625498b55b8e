"""Softmax and its gradient in float64, of exactly the (quantised) values that a backend got."""

from __future__ import annotations

import torch


def forward(x: torch.Tensor) -> torch.Tensor:
    """softmax(x) over the last axis, float64; any dtype and shape. Rows that hold NaN or +inf, or only -inf, are NaN."""
    return torch.softmax(x.double(), dim=-1)


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """y * (dy - sum(y * dy)) over the last axis, float64."""
    dy, y = dy.double(), y.double()
    return y * (dy - (y * dy).sum(dim=-1, keepdim=True))
