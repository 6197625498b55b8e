"""The tensors of a case. The same seed gives the same values in every worker on the same device."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial

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


MAX_SHIFT = {"fp32": 1e7, "fp16": 1.5e3, "bf16": 1e3}
"""The largest shift of a row, by dtype, at which its elements still differ."""


def make_adversarial(given: tuple[torch.Tensor, ...], case: Case, seed: int) -> list[str]:
    """Structured rows in place of normal ones, in the same memory: what is right on normal rows alone is then wrong.

    forward: wide, shifted, constant, one-hot, rising, falling, with their mass at the end, all negative. backward: dy of ones, one-hot,
    with a mean, and y saturated. Rows of a kind are one in so many; a case of few rows has few kinds, which the seed chooses.
    `both` keeps its normal rows. Returns the names of the kinds: that of a row is at its number modulo their number.
    """
    if case.direction is Direction.BOTH:
        return []
    kinds = _hard_rows if case.direction is Direction.FORWARD else _hard_gradients
    made = kinds(given, case, seed)
    first = [""] * len(made)
    for kind, (name, change) in enumerate(made.items()):
        place = (kind + seed) % len(made)
        change(slice(place, None, len(made)))
        first[place] = name
    return first


def _hard_rows(given: tuple[torch.Tensor, ...], case: Case, seed: int) -> dict[str, Callable[[slice], object]]:
    (x,) = given
    ramp = torch.linspace(0, 60, case.N, device=x.device).to(x.dtype)  # in float16 itself, its 65520th step is inf

    def one_hot(rows: slice) -> None:
        x[rows] = -50
        x[rows, seed % case.N] = 50

    return {
        "30 times as wide": lambda rows: x[rows].mul_(30),
        f"shifted by {MAX_SHIFT[case.dtype]:g}": lambda rows: x[rows].add_(MAX_SHIFT[case.dtype]),
        "constant": lambda rows: x[rows].fill_(3.25),
        "one-hot": one_hot,
        "rising to 60": lambda rows: x[rows].copy_(ramp),
        "falling from 60": lambda rows: x[rows].copy_(ramp.flip(0)),
        "with their mass at the end": lambda rows: x[rows, -1:].fill_(30),
        "all below -100": lambda rows: x[rows].abs_().neg_().sub_(100),
    }


def _hard_gradients(given: tuple[torch.Tensor, ...], case: Case, seed: int) -> dict[str, Callable[[slice], object]]:
    dy, y = given

    def one_hot(tensor: torch.Tensor, rows: slice) -> None:
        tensor[rows] = 0
        tensor[rows, seed % case.N] = 1

    return {
        "with a dy of ones": lambda rows: dy[rows].fill_(1),
        "with a one-hot dy": partial(one_hot, dy),
        "with a dy of mean 5": lambda rows: dy[rows].add_(5),
        "with a one-hot y": partial(one_hot, y),
    }
