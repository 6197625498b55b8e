"""The tensors of a case. The same seed gives the same values in every worker on the same device."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import torch

from softbench.core.case import Case, Direction
from softbench.ops.dtypes import DTYPES

CHUNK_BYTES = {"cuda": 512 * 2**20, "cpu": 32 * 2**20}
"""Bytes of all float64 temporaries of one chunk of rows. On the CPU each stays below malloc's mmap threshold, because larger ones fault in
their pages each time and made the check of a 4096 x 4096 case many times slower."""
FLOAT64_TEMPORARIES = 12
"""How many (rows, N) float64 tensors the check holds at once, at most."""


def row_chunks(case: Case) -> Iterator[slice]:
    """Slices of the case's rows, small enough that their float64 temporaries stay within CHUNK_BYTES (a single row may exceed it)."""
    rows = max(1, CHUNK_BYTES[case.device] // (FLOAT64_TEMPORARIES * 8 * case.N))
    for start in range(0, case.M, rows):
        yield slice(start, min(start + rows, case.M))


def make(case: Case, seed: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """What the case's callable takes: `(x,)`, `(dy, y)` or `(x, dy)`, each (M, N) and contiguous.

    x and dy are standard normal in the case's dtype. y is the softmax of such an x, computed in float32 or better and rounded.
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
        y[rows] = torch.softmax(y[rows].float(), dim=-1).to(dtype)
    return normal(), y


def refill(given: tuple[torch.Tensor, ...], case: Case, seed: int) -> None:
    """Other values into the same memory: an output that a backend kept from before, and knows by its address, is then wrong."""
    fresh = make(case, seed, given[0].device)
    with torch.no_grad():
        for tensor, values in zip(given, fresh, strict=True):
            tensor.copy_(values)
