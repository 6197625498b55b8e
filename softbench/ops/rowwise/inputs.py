"""The tensors of a case. The same seed gives the same values in every worker on the same device."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import torch

from softbench.core.case import Case, Direction
from softbench.ops.dtypes import DTYPES
from softbench.ops.rows import row_chunks


def make(case: Case, seed: int, device: torch.device, forward: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What the case's callable takes: `(x,)`, `(dy, y)` or `(x, dy)`, each (M, N) and contiguous.

    x and dy are standard normal in the case's dtype. y is `forward` of such an x, computed in float32 or better and rounded.
    """
    generator = torch.Generator(device)
    generator.manual_seed(zlib.crc32(f"{seed} {case.key}".encode()))  # the CPU's generator takes 32 bits and drops the rest
    dtype = DTYPES[case.dtype]

    def normal() -> torch.Tensor:
        return torch.randn((case.M, case.N), generator=generator, dtype=dtype, device=device)

    if case.direction is Direction.FORWARD:
        return (normal(),)
    if case.direction is Direction.BOTH:
        return normal().requires_grad_(), normal()
    y = normal()
    for rows in row_chunks(case):
        y[rows] = forward(y[rows].float()).to(dtype)
    return normal(), y


def refill(given: tuple[torch.Tensor, ...], fresh: tuple[torch.Tensor, ...]) -> None:
    """Other values into the same memory: an output that a backend kept from before, and knows by its address, is then wrong."""
    with torch.no_grad():
        for tensor, values in zip(given, fresh, strict=True):
            tensor.copy_(values)
