"""The check cases of log-softmax: those of all operations over rows, and gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from softbench.ops.check_case import CheckCase
from softbench.ops.rowwise.check_cases import COLUMNS, RowwiseCases, one_hot

CASES = RowwiseCases(torch.log_softmax, extreme=0.5)
"""Half of the range: the distance of two elements is an output, and must not overflow the dtype."""


def items() -> list[CheckCase]:
    """All check cases."""
    return CASES.items(_gradients())


def _gradients() -> Iterable[CheckCase]:
    yield from CASES.gradients_of_dy()
    yield CASES.gradient("y saturated", lambda dy, y: (dy, one_hot(y).log()))
    yield CASES.gradient("y = -inf where x was", lambda dy, y: (dy, torch.where(y > -math.log(COLUMNS), y, -math.inf)))
