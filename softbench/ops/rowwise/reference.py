"""A float64 reference by torch's operators, or by numpy where a plugin replaced those."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from softbench.ops.rowwise.independent import Array, wide

_by_numpy = [False]


@contextmanager
def by_numpy() -> Iterator[None]:
    """Within this context the reference is numpy's: torch's operators were replaced."""
    _by_numpy[0] = True
    try:
        yield
    finally:
        _by_numpy[0] = False


def reference(by_torch: Callable[..., torch.Tensor], in_numpy: Callable[..., Array], *tensors: torch.Tensor) -> torch.Tensor:
    """A function of tensors of any dtype, in float64; the two functions are the same."""
    if _by_numpy[0]:
        return torch.from_numpy(in_numpy(*map(wide, tensors))).to(tensors[0].device)
    return by_torch(*(tensor.double() for tensor in tensors))
