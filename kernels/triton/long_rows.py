"""The plans of long rows that fill the device: rules that go before the tables, because they hold for all numbers of rows."""

from __future__ import annotations

import math
from dataclasses import replace

from .launch_plan import VECTOR_BYTES, Plan, Problem, chunk_vectors, resident_programs, vectors_in_row
from .tier_candidates import MAX_SPLIT_CTAS, SHORT_ROW, vector_layouts

# More tiles in registers are a little faster, but ptxas spills 8 to 16 bytes of aligned float32 rows, and of all rows for sm_100.
MOST_TILES = Plan("split", 12, 128, warps=4, registers=128, smem_tiles=10)
NO_SPILLS = Plan("split", 8, 128, warps=4, registers=128, smem_tiles=11)
CLUSTER_GRADIENT = 16 * 256 * 10  # vectors of a row of one input: up to here, a cluster with its 256 threads holds it without spills


def long_row_plan(problem: Problem) -> Plan | None:
    """The plan of long rows that fill the device, where one kind of plan was the fastest for all that were measured; else None.

    Gradients: four programs an SM, with 304 to 352 KiB of it in registers and shared memory. Fewer programs of a row exchange faster, so
    a row has the fewest that hold it. If all rows run at once, it has its share of the device. 16-bit forwards: three programs of a
    cluster an SM, where two of 512 threads hold less. Figures: docs/kernels/notes-triton.md, Gradients of long rows in shared memory.
    """
    if not problem.clusters or not problem.congruent or problem.element_size == 8 or problem.wide:
        return None
    if problem.N * problem.element_size <= SHORT_ROW:
        return None
    layout = vector_layouts(problem)[0]
    vectors = vectors_in_row(problem, *layout[1:])
    if problem.backward:
        spills = not problem.hopper or (problem.element_size == 4 and problem.alignment == VECTOR_BYTES)
        program = NO_SPILLS if spills else MOST_TILES
        resident = problem.sms * resident_programs(program.threads, program.registers, 2 * program.smem_tiles)
        capacity = program.threads * (program.tiles + program.smem_tiles)
        fewest = math.ceil(vectors / capacity)
        if vectors <= CLUSTER_GRADIENT or fewest > min(MAX_SPLIT_CTAS, resident) or 2 * problem.M * fewest < resident:
            return None
        ctas = min(max(fewest, resident // problem.M), MAX_SPLIT_CTAS)
        ctas += chunk_vectors(vectors, ctas) > capacity  # chunks are whole lines
        smem_tiles = math.ceil(chunk_vectors(vectors, ctas) / program.threads) - program.tiles
        if not 1 <= smem_tiles <= program.smem_tiles or ctas > min(MAX_SPLIT_CTAS, resident):
            return None
        return replace(program, vector_elements=layout[1], base_alignment=layout[2], split_ctas=ctas, smem_tiles=smem_tiles)
    tiles = math.ceil(chunk_vectors(vectors, 16) / 256)
    if problem.element_size == 2 and tiles in (12, 13) and problem.M >= problem.sms // 2:
        return Plan("cluster", tiles, 256, *layout, 8, 80, cluster_ctas=16)
    return None
