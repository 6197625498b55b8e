"""Chunks of rows, so that a check of large tensors needs little memory."""

from __future__ import annotations

from collections.abc import Iterator

from softbench.core.case import Case

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
