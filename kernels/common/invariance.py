"""Rows whose results have the same bits in every call: what their place in memory owes to the launch plans that add them in one order.

Such a plan follows from the length of a row and the dtypes alone. Kernels that move vectors count them from a boundary, so each row has to
begin at one: at 128 bytes if its length is a multiple of that, else at 16 bytes. Rows of other lengths follow each other without gaps.
"""

from __future__ import annotations

import torch
from torch import Tensor

LINE_BYTES, VECTOR_BYTES = 128, 16


def placed(x: Tensor) -> Tensor:
    """x (M, N) whose last stride is 1, or a copy of it, so that its rows begin where these plans need them."""
    M, N = x.shape
    row = N * x.element_size()
    unit = next((unit for unit in (LINE_BYTES, VECTOR_BYTES) if row % unit == 0), 0)
    if M == 1:
        x = x[0][None]  # its stride is N
    step = x.stride(0)
    fits = step * x.element_size() % unit == 0 if unit else step == N
    return x if fits and x.data_ptr() % (unit or VECTOR_BYTES) == 0 else torch.empty_like(x, memory_format=torch.contiguous_format).copy_(x)
