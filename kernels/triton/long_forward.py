"""Programs of a long forward that several programs share: four of them fill an SM, with registers and shared memory."""

from __future__ import annotations

import math

from .launch_plan import VECTOR_BYTES, Plan, Problem, chunk_vectors

Layout = tuple[int, int, int]
"""Words of a vector, its elements, and the bytes of the boundary from which a row's vectors are counted."""
PROGRAMS = 4
"""Programs that an SM holds."""
TILES, SMEM_TILES, THREADS = 8, 11, 256
"""Tiles in registers and in shared memory, the most of a program, and its threads."""


def registers_hold(problem: Problem) -> int:
    """Tiles in registers. With one more, ptxas spills 8 bytes of aligned float32 rows for sm_100."""
    return TILES - (not problem.hopper and problem.element_size == 4 and problem.alignment == VECTOR_BYTES)


def fewest_programs(problem: Problem, layout: Layout, vectors: int) -> Plan:
    """The plan with the fewest programs that hold a row of so many vectors."""
    capacity = THREADS * (registers_hold(problem) + SMEM_TILES)
    ctas = math.ceil(vectors / capacity)
    ctas += chunk_vectors(vectors, ctas) > capacity  # chunks are whole lines
    return programs_of_row(problem, layout, vectors, ctas)


def programs_of_row(problem: Problem, layout: Layout, vectors: int, ctas: int) -> Plan:
    """The plan with `ctas` programs for a row. What they cannot hold, they read twice."""
    tiles, most = math.ceil(chunk_vectors(vectors, ctas) / THREADS), registers_hold(problem)
    in_smem = min(SMEM_TILES, max(0, tiles - most))
    return Plan("split", min(most, tiles), THREADS, *layout, THREADS // 32, 64, split_ctas=ctas, smem_tiles=in_smem)
