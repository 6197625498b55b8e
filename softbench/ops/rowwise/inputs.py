"""The tensors of a case. The same seed gives the same values in every worker on the same device."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import torch

from softbench.core.case import Case, Direction
from softbench.ops.dtypes import DTYPES
from softbench.ops.rows import row_chunks


def generator_of(case: Case, seed: int, device: torch.device) -> torch.Generator:
    """The generator of a case's values."""
    return torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {case.key}".encode()))  # the CPU's takes 32 bits and drops the rest


def make(
    case: Case, generator: torch.Generator, forward: Callable[[torch.Tensor, slice], torch.Tensor], result: str = ""
) -> tuple[torch.Tensor, ...]:
    """What the case's callable takes: `(x,)`, `(dy, y)` or `(x, dy)`, each (M, N) and contiguous.

    x is standard normal in the case's dtype, dy in that of `result`, which is the case's without it. y is `forward` of some rows of such
    an x, computed in float32 or better and rounded. `forward` also gets the rows.
    """
    dtype, of_result = DTYPES[case.dtype], DTYPES[result or case.dtype]

    def normal(dtype: torch.dtype) -> torch.Tensor:
        return torch.randn((case.M, case.N), generator=generator, dtype=dtype, device=generator.device)

    if case.direction is Direction.FORWARD:
        return (normal(dtype),)
    if case.direction is Direction.BOTH:
        return normal(dtype).requires_grad_(), normal(of_result)
    y = normal(of_result)
    for rows in row_chunks(case):
        y[rows] = forward(y[rows].float(), rows).to(of_result)
    return normal(of_result), y


def refill(given: tuple[torch.Tensor, ...], fresh: tuple[torch.Tensor, ...]) -> None:
    """Other values into the same memory: an output that a backend kept from before, and knows by its address, is then wrong."""
    with torch.no_grad():
        for tensor, values in zip(given, fresh, strict=True):
            tensor.copy_(values)
