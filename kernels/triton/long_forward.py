"""Plans of long forwards. Several programs share a row, and an SM holds four. Each has tiles in registers and in shared memory."""

from __future__ import annotations

import math

from .launch_plan import Plan, Problem, chunk_vectors

Layout = tuple[int, int, int]
"""Words of a vector, its elements, and the bytes of the boundary from which a row's vectors are counted."""
PROGRAMS = 4
"""Programs that an SM holds."""
TILES, SMEM_TILES, THREADS = 8, 11, 256
"""The most tiles of a program in registers and in shared memory, and its threads."""


def register_tiles(problem: Problem) -> int:
    """The most tiles of a program in registers. With 8, ptxas spills 8 bytes of float32 rows for sm_100."""
    return TILES - (not problem.hopper and problem.element_size == 4)


def fewest_programs_plan(problem: Problem, layout: Layout, vectors: int) -> Plan:
    """The plan with the fewest programs that hold a row of so many vectors."""
    capacity = THREADS * (register_tiles(problem) + SMEM_TILES)
    return programs_plan(problem, layout, vectors, math.ceil(vectors / capacity))


def programs_plan(problem: Problem, layout: Layout, vectors: int, ctas: int) -> Plan:
    """The plan with `ctas` programs for a row. What they cannot hold, they read twice."""
    tiles, most = math.ceil(chunk_vectors(vectors, ctas) / THREADS), register_tiles(problem)
    in_smem = min(SMEM_TILES, max(0, tiles - most))
    return Plan("split", min(most, tiles), THREADS, *layout, THREADS // 32, 64, split_ctas=ctas, smem_tiles=in_smem)
