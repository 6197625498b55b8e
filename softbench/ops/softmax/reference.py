"""Softmax and its gradient in float64, of exactly the (quantised) values that a backend got."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from softbench.ops.softmax import independent

_by_numpy = [False]


@contextmanager
def by_numpy() -> Iterator[None]:
    """Within this context the reference is numpy's: torch's operators were replaced."""
    _by_numpy[0] = True
    try:
        yield
    finally:
        _by_numpy[0] = False


def forward(x: torch.Tensor) -> torch.Tensor:
    """softmax(x) over the last axis, float64; any dtype and shape. Rows that hold NaN or +inf, or only -inf, are NaN."""
    if _by_numpy[0]:
        return torch.from_numpy(independent.forward(independent.wide(x))).to(x.device)
    return torch.softmax(x.double(), dim=-1)


def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """y * (dy - sum(y * dy)) over the last axis, float64."""
    if _by_numpy[0]:
        return torch.from_numpy(independent.backward(independent.wide(dy), independent.wide(y))).to(y.device)
    dy, y = dy.double(), y.double()
    return y * (dy - (y * dy).sum(dim=-1, keepdim=True))
