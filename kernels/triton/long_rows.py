"""Plans of long rows: rules that `heuristics.choose` tries before the tables, and one that replaces a table's plan."""

from __future__ import annotations

import math
from dataclasses import replace

from .candidates import (
    LONG_PROGRAMS,
    LONG_SMEM_TILES,
    LONG_THREADS,
    MAX_SPLIT_CTAS,
    SHORT_ROW,
    Layout,
    fewest_programs_plan,
    programs_plan,
    register_tiles,
    vector_layouts,
)
from .launch_plan import VECTOR_BYTES, Plan, Problem, chunk_vectors, resident_programs, vectors_in_row

# With LARGEST_GRADIENT ptxas spills 8 to 16 bytes of aligned float32 rows, and of all rows for sm_100. With FLOAT32_GRADIENT, ptxas of
# Triton 3.9 spills 8 bytes of unaligned rows; that of 3.6 does not for sm_90.
GRADIENT, FLOAT32_GRADIENT, LARGEST_GRADIENT = (
    Plan("split", tiles, 128, warps=4, registers=128, smem_tiles=smem_tiles) for tiles, smem_tiles in ((8, 11), (10, 11), (12, 10))
)
"""Programs of a split gradient: the tiles of each input that they hold at most. An SM holds four."""
CTAS = 16
CLUSTER_GRADIENT = CTAS * 256 * 10
"""Vectors of a row of one input. Up to here `_split_gradient` leaves a row to other plans."""
LONG_FORWARD = {2: CTAS * 512 * 9, 4: CTAS * 512 * 10}
"""Vectors of a row of a forward, by element size. Beyond, a row has programs anywhere on the device, unless `_on_a_cluster` has a plan."""
NEARLY_FIVE_TILES = 1150
"""Vectors of a program of 256 threads. With 1200 to 1408, 16-bit gradients were faster so. With 1048 another plan is fast."""
FULL = 1.25
"""Waves of programs that share rows. A launch of more takes the time of two."""
MANY_WAVES = {2: FULL, 4: 1.5}
"""By element size: beyond, a row has the fewest programs that hold it. They exchange faster, and each has more of the row."""
FEW_SMEM_TILES = 5
"""With more tiles of a program in shared memory, a launch of one wave was slower than one of FULL waves."""


def long_row_plan(problem: Problem) -> Plan | None:
    """The plan of long rows that fill the device, where one kind of plan was the fastest for most that were measured; else None."""
    row = _long_row(problem)
    if row is None:
        return None
    if problem.backward:
        return _on_a_cluster(problem, *row) or _split_gradient(problem, *row)
    return _on_a_cluster(problem, *row)


def _long_row(problem: Problem) -> tuple[Layout, int] | None:
    """The layout of a row of more than SHORT_ROW bytes and the most vectors that it touches, if clusters can share it; else None."""
    if not problem.clusters or not problem.congruent or problem.element_size == 8 or problem.wide:
        return None
    if problem.N * problem.element_size <= SHORT_ROW:
        return None
    layout = vector_layouts(problem)[0]
    return layout, vectors_in_row(problem, *layout[1:])


def long_forward_plan(problem: Problem, plan: Plan) -> Plan | None:
    """The plan of a long forward in place of a table's `plan`, which was measured with another number of rows; None to keep it.

    An SM holds four programs. If all rows need many waves, a row has the fewest programs that hold it. If a split plan needs more than one
    wave, a row has fewer programs, so that all run at once. If a program would then have too many tiles, FULL waves are the limit.
    """
    layout = vector_layouts(problem)[0]
    vectors = vectors_in_row(problem, *layout[1:])
    if problem.backward or not problem.clusters or layout[0] != 4 or vectors <= LONG_FORWARD[problem.element_size]:
        return None
    resident = LONG_PROGRAMS * problem.sms
    fewest = fewest_programs_plan(problem, layout, vectors)
    if problem.M * fewest.split_ctas > MANY_WAVES[problem.element_size] * resident:
        return fewest if fewest.split_ctas <= min(MAX_SPLIT_CTAS, resident) else None
    filled, in_registers = waves(problem, plan), register_tiles(problem)
    for most_waves, most_tiles in ((1, in_registers + FEW_SMEM_TILES), (FULL, in_registers + LONG_SMEM_TILES)):
        if filled <= most_waves:
            break
        ctas = min(int(most_waves * resident) // problem.M, MAX_SPLIT_CTAS, resident)
        if ctas >= 2 and math.ceil(chunk_vectors(vectors, ctas) / LONG_THREADS) <= most_tiles:
            return programs_plan(problem, layout, vectors, ctas)
    return None


def waves(problem: Problem, plan: Plan) -> float:
    """How many times all programs of a split plan fill the device; 0 of other plans."""
    resident = problem.sms * max(1, resident_programs(plan.threads, plan.registers, plan.smem_tiles * problem.reads))
    return problem.M * plan.split_ctas / resident if plan.tier == "split" else 0.0


def _on_a_cluster(problem: Problem, layout: Layout, vectors: int) -> Plan | None:
    """The plan of a row that the registers of 16 programs hold. `few`: more rows were not measured with most of these rules.

    16-bit forwards: 4.8 and 7.75 programs an SM are those of 40 and 64 rows on 132 SMs, which were measured.
    """
    chunk, half = chunk_vectors(vectors, CTAS), problem.element_size == 2
    few = problem.M <= (2.25 if half else 2) * problem.sms
    tiles, wide_tiles = math.ceil(chunk / 256), math.ceil(chunk / 512)
    programs = problem.M * CTAS / problem.sms  # of an SM
    if problem.backward and half:
        if problem.hopper and not problem.loss and NEARLY_FIVE_TILES < 2 * chunk <= 5 * 256 and problem.M >= problem.sms:
            return Plan("cluster", 5, 128, *layout, 4, 96, cluster_ctas=CTAS)  # ten tiles on four programs spill
        fits = NEARLY_FIVE_TILES < chunk <= 6 * 256 and 48 <= problem.M and (few or problem.hopper)
        three = problem.alignment == VECTOR_BYTES or (problem.hopper and tiles == 5)  # programs an SM; else ptxas needs more registers
        return Plan("cluster", tiles, 256, *layout, 8, 80 if three else 128, cluster_ctas=CTAS) if fits else None
    if problem.backward:  # where ptxas spills nothing with 128 registers
        fits = tiles in (10, 11, 12) and few and problem.M >= CTAS
        return Plan("cluster", tiles, 256, *layout, 8, 128, cluster_ctas=CTAS) if fits else None
    if half and tiles in (12, 13) and problem.M >= problem.sms // 2:  # three programs an SM; two of 512 threads hold less
        return Plan("cluster", tiles, 256, *layout, 8, 80, cluster_ctas=CTAS)
    most = 11 if not half or (problem.alignment == VECTOR_BYTES and problem.hopper) else 10  # else ptxas of Triton 3.9 spills 8 bytes
    if half and tiles == most == 11 and few and programs > 2.5:  # four programs an SM
        return Plan("cluster", tiles, 256, *layout, 8, 64, cluster_ctas=CTAS)
    if 9 <= wide_tiles <= (most if half else 9) and few and programs >= (4.8 if half else 4):  # two programs an SM
        return Plan("cluster", wide_tiles, 512, *layout, 16, 64, cluster_ctas=CTAS)
    if half and 2 * most < tiles <= 26 and few and programs >= 7.75:  # two programs an SM; ptxas spills programs of 512 threads
        return Plan("cluster", tiles, 256, *layout, 8, 128, cluster_ctas=CTAS)
    return None


def _gradient_plan(program: Plan, layout: Layout, vectors: int, ctas: int) -> Plan | None:
    """`ctas` such programs a row; None if they cannot hold it, or need none of their shared memory."""
    smem_tiles = math.ceil(chunk_vectors(vectors, ctas) / program.threads) - program.tiles
    if not 1 <= smem_tiles <= program.smem_tiles:
        return None
    return replace(program, vector_elements=layout[1], base_alignment=layout[2], split_ctas=ctas, smem_tiles=smem_tiles)


def _split_gradient(problem: Problem, layout: Layout, vectors: int) -> Plan | None:
    """Programs of which an SM holds four. If all rows run at once, each has an equal part of all programs.

    Otherwise a row has the fewest programs that hold it, which exchange faster. Unaligned rows that do not run at once have programs of
    GRADIENT or FLOAT32_GRADIENT, which were faster. So have all rows for which ptxas spills registers of LARGEST_GRADIENT.
    """
    aligned = problem.alignment == VECTOR_BYTES
    smaller = FLOAT32_GRADIENT if problem.element_size == 4 else GRADIENT
    program = smaller if not problem.hopper or (problem.element_size == 4 and aligned) else LARGEST_GRADIENT  # else ptxas spills
    resident = problem.sms * resident_programs(program.threads, program.registers, 2 * program.smem_tiles)
    most = min(MAX_SPLIT_CTAS, resident)
    if not aligned and resident < problem.M * _fewest_programs(program, vectors) and _fewest_programs(smaller, vectors) <= most:
        program = smaller
    fewest = _fewest_programs(program, vectors)
    if vectors <= CLUSTER_GRADIENT or fewest > most or 2 * problem.M * fewest < resident:
        return None
    ctas = max(fewest, resident // problem.M)
    return _gradient_plan(program, layout, vectors, min(ctas, MAX_SPLIT_CTAS))


def _fewest_programs(program: Plan, vectors: int) -> int:
    """How many such programs hold a row of so many vectors. What one holds is whole lines, so chunks in whole lines fit too."""
    return math.ceil(vectors / (program.threads * (program.tiles + program.smem_tiles)))
