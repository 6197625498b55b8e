"""Plans of long rows: rules that `heuristics.choose` tries before the tables, and rules that replace a table's plan.

Rules that replace a table's plan (`unlisted_plan`) give way to a table's line for the same rows only.
"""

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
from .launch_plan import LEAVE_FIRST, VECTOR_BYTES, WARP, Plan, Problem, chunk_vectors, resident_programs, vectors_in_row

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
HALF_WAVES = (1.5, 1.65, 3_900_000), (2.25, 2.5, 3_100_000)
"""Waves of the fewest programs, more than the first number and at most the second, and the most bytes of a row in both inputs.

On Hopper, such gradients fill whole waves.
"""
AT_ONCE = {2: 53_000, 4: 75_000}
"""Vectors of a row of a forward, by element size. Shorter rows were not measured with the plan of `_forward_at_once`."""
MANY_ROWS = 10.7
"""Rows an SM. With more, forwards on clusters had other fastest plans than with fewer."""
FEW_SMEM_TILES = 5
"""With more tiles of a program in shared memory, a launch of one wave was slower than one of FULL waves."""


def long_row_plan(problem: Problem) -> Plan | None:
    """The plan of long rows that fill the device, where one kind of plan was the fastest for most that were measured; else None."""
    row = _long_row(problem)
    if row is None:
        return None
    if problem.backward:
        return _on_a_cluster(problem, *row) or _split_gradient(problem, *row)
    return _on_a_cluster(problem, *row) or _on_a_pair(problem, *row)


def unlisted_plan(problem: Problem) -> Plan | None:
    """The plan of long rows on Hopper where tables and heuristics had slower ones; None elsewhere.

    A line of a table comes first if it was measured with as many rows of this length, and has no more than one wave, unless
    `long_row_plan` has a plan too. The measurements are of softmax and not of
    losses, whose threads need more registers.
    """
    row = _long_row(problem)
    if row is None or not problem.hopper or problem.loss:
        return None
    if problem.backward:
        return _split_in_place_of_clusters(problem, *row) or _gradient_on_a_cluster(problem, *row)
    return _forward_at_once(problem, *row) or _measured_forward(problem, *row)


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


def _on_a_pair(problem: Problem, layout: Layout, vectors: int) -> Plan | None:
    """Two programs a row of 41 to 56 KB, of aligned 16-bit forwards with 5 to MANY_ROWS rows an SM. Four programs were slower there.

    The limits of the rows an SM are those of what was timed.
    """
    tiles = math.ceil(chunk_vectors(vectors, 2) / 128)
    aligned = problem.hopper and problem.element_size == 2 and problem.alignment == VECTOR_BYTES
    if not aligned or not 11 <= tiles <= 14 or not 5 <= problem.M / problem.sms <= MANY_ROWS:
        return None
    return Plan("cluster", tiles, 128, *layout, 4, 72 if tiles == 11 else 96, cluster_ctas=2)


def _forward_at_once(problem: Problem, layout: Layout, vectors: int) -> Plan | None:
    """The plan that fills the device once, of forwards for which this plan has the policy LEAVE_FIRST."""
    ctas = LONG_PROGRAMS * problem.sms // problem.M
    if ctas < 2 or vectors < AT_ONCE[problem.element_size]:
        return None
    plan = programs_plan(problem, layout, vectors, ctas)
    return plan if problem.policy(plan) == LEAVE_FIRST else None


def _measured_forward(problem: Problem, layout: Layout, vectors: int) -> Plan | None:
    """The plan of a 16-bit forward of 33 KB to 1.1 MB a row.

    The limits are those of what was measured. A plan without an upper limit of rows is used for more rows than were measured, too.
    """
    if problem.element_size != 2:
        return None
    aligned, rows_per_sm = problem.alignment == VECTOR_BYTES, problem.M / problem.sms

    def tiles(ctas: int, threads: int = 128) -> int:
        return math.ceil(chunk_vectors(vectors, ctas) / threads)

    def cluster(ctas: int, threads: int, registers: int) -> Plan:
        return Plan("cluster", tiles(ctas, threads), threads, *layout, threads // WARP, registers, cluster_ctas=ctas)

    if aligned and 9 <= tiles(2) <= 14 and rows_per_sm > MANY_ROWS:
        return cluster(2, 128, 64) if tiles(2) <= 10 else cluster(2, 256, 48 if tiles(2) <= 12 else 56)
    if not aligned and 11 <= tiles(4) <= 13 and rows_per_sm > MANY_ROWS:
        return cluster(4, 128, 72 if tiles(4) == 11 else 80)
    if 8 <= tiles(8) <= 11 and 0.85 <= rows_per_sm <= 1.45:
        return cluster(8, 128, 72 if tiles(8) == 11 else 64)
    if rows_per_sm >= 0.5 and not aligned and tiles(CTAS) in (15, 16):
        return cluster(CTAS, 128, 96)
    if rows_per_sm >= 0.5 and (tiles(CTAS) == 18 or (tiles(CTAS) == 17 and not aligned)):
        return cluster(CTAS, 256, 64)
    wide_tiles = tiles(CTAS, 256)
    if wide_tiles == 10 and aligned and 0.5 <= rows_per_sm <= 1.4:
        return cluster(CTAS, 256, 64)
    if wide_tiles == 14 and rows_per_sm >= 0.45:  # 12 and 13 tiles have this plan in losses too: `_on_a_cluster`
        return cluster(CTAS, 256, 80)
    if rows_per_sm > 0.75 and (wide_tiles == 15 or (wide_tiles == 16 and not aligned)):
        return fewest_programs_plan(problem, layout, vectors)
    if 14 <= wide_tiles <= 17 and 19 <= problem.M <= 0.75 * problem.sms:
        # 38 x 448884 was fastest with FULL waves, and 62 x 526550 and 71 x 542391 with one program a row more than the fewest.
        fewest = fewest_programs_plan(problem, layout, vectors).split_ctas
        return programs_plan(problem, layout, vectors, max(fewest + 1, int(FULL * LONG_PROGRAMS * problem.sms) // problem.M))
    return None


def _split_in_place_of_clusters(problem: Problem, layout: Layout, vectors: int) -> Plan | None:
    """The fewest programs of GRADIENT, where clusters were slower: of rows with five to eight or ten tiles on 16 programs of 256 threads.

    Ten tiles spill in 16 bits. Such rows have more programs if all then run at once.
    """
    chunk, aligned = chunk_vectors(vectors, CTAS), problem.alignment == VECTOR_BYTES
    tiles, rows_per_sm = math.ceil(chunk / 256), problem.M / problem.sms
    if problem.element_size == 4:
        fits = tiles in (7, 8) and 0.5 < rows_per_sm <= 4.5 and not aligned
    elif tiles in (5, 6):
        fits = not aligned and chunk > NEARLY_FIVE_TILES and (problem.M >= 48 if tiles == 6 else rows_per_sm > 1.5)
    else:
        fits = (tiles in (7, 8) and rows_per_sm > 0.5) or (tiles == 10 and problem.M >= 16)
    fewest, resident = _fewest_programs(GRADIENT, vectors), LONG_PROGRAMS * problem.sms
    if not fits or fewest > min(MAX_SPLIT_CTAS, resident):
        return None
    return _gradient_plan(GRADIENT, layout, vectors, max(fewest, resident // problem.M) if tiles == 10 else fewest)


def _gradient_on_a_cluster(problem: Problem, layout: Layout, vectors: int) -> Plan | None:
    """A 16-bit gradient on a cluster that was faster than clusters of more tiles, or of 512 threads.

    Where four programs of 256 threads would have nine or ten tiles, 16 programs have five tiles of 128 threads. Ten tiles spill. Longer
    rows have eight programs with nine tiles.
    """
    chunk, rows_per_sm = chunk_vectors(vectors, CTAS), problem.M / problem.sms
    if problem.element_size == 4:
        return None
    if NEARLY_FIVE_TILES < 2 * chunk <= 5 * 256 and rows_per_sm >= 1:
        return Plan("cluster", 5, 128, *layout, 4, 96, cluster_ctas=CTAS)
    if 8 * 256 < chunk_vectors(vectors, 8) and chunk <= NEARLY_FIVE_TILES and rows_per_sm >= 4:
        return Plan("cluster", 9, 256, *layout, 8, 128, cluster_ctas=8)
    return None


def _gradient_plan(program: Plan, layout: Layout, vectors: int, ctas: int) -> Plan | None:
    """`ctas` such programs a row; None if they cannot hold it, or need none of their shared memory."""
    smem_tiles = math.ceil(chunk_vectors(vectors, ctas) / program.threads) - program.tiles
    if not 1 <= smem_tiles <= program.smem_tiles:
        return None
    return replace(program, vector_elements=layout[1], base_alignment=layout[2], split_ctas=ctas, smem_tiles=smem_tiles)


def _split_gradient(problem: Problem, layout: Layout, vectors: int) -> Plan | None:
    """Programs of which an SM holds four. If all rows run at once, each has an equal part of all programs.

    Otherwise a row has the fewest programs that hold it, which exchange faster. In HALF_WAVES it has more, so that the last wave is full.
    Unaligned rows that do not run at once have programs of GRADIENT or FLOAT32_GRADIENT, which were faster. So have all rows for which
    ptxas spills registers of LARGEST_GRADIENT.
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
    ctas, filled = max(fewest, resident // problem.M), problem.M * fewest / resident
    row = problem.input_bytes // problem.M
    if problem.hopper and any(low < filled <= high and row <= most_bytes for low, high, most_bytes in HALF_WAVES):
        ctas = math.ceil(filled) * resident // problem.M
    return _gradient_plan(program, layout, vectors, min(ctas, MAX_SPLIT_CTAS))


def _fewest_programs(program: Plan, vectors: int) -> int:
    """How many such programs hold a row of so many vectors. What one holds is whole lines, so chunks in whole lines fit too."""
    return math.ceil(vectors / (program.threads * (program.tiles + program.smem_tiles)))
