"""The check cases of softmax: those of all operations over rows, and gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from softbench.ops.check_case import CheckCase
from softbench.ops.rowwise.check_cases import COLUMNS, OVER_INT32, RowwiseCases, one_hot

__all__ = ["OVER_INT32", "items"]

CASES = RowwiseCases(torch.softmax)


def items() -> list[CheckCase]:
    """All check cases."""
    return CASES.items(_gradients())


def _gradients() -> Iterable[CheckCase]:
    yield from CASES.gradients_of_dy()
    yield CASES.gradient("y saturated", lambda dy, y: (dy, one_hot(y)))
    yield CASES.gradient("y = 0 where x was -inf", lambda dy, y: (dy, torch.where(y > 1 / COLUMNS, y, torch.zeros_like(y))))
