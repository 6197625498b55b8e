"""Chooses the launch plan of a problem: by heuristics, or by a table measured on the same device.

The heuristics are arithmetic on the row's length, the number of rows, their alignment and the device's SMs. They compile and time nothing.
`python -m softbench.kernels.triton.tune` times the heuristics' choice against the other `candidates` over a grid of shapes. It writes the
fastest plan of each as `tables/<device>.json`, which then decides for similar shapes. $SOFTBENCH_TRITON_TABLE names another table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from .candidates import (
    CLUSTER_CTAS,
    IN_FLIGHT,
    MANY_ROWS,
    PROGRAM_BYTES,
    SHORT_ROW,
    SMEM_BYTES,
    cluster_plans,
    fit_staged,
    generic_plan,
    rows_plans,
    short_row_plans,
    split_plans,
    staged_plans,
)
from .launch_plan import VECTOR_BYTES, WARP, Plan, Problem, chunk_vectors, measured_plans, resident_programs, vectors_in_row
from .long_rows import FULL, long_forward_plan, long_row_plan, waves

MAX_WARPS = 8  # of an enlarged program.
ROW_VECTORS = {2: 4096, 4: 8192}  # by element size: the most of a row that a program's registers hold at full speed.
LONG_ROW = 36 * 1024  # bytes of all inputs: above it, clusters are faster.
MAX_CLUSTER_ROW = 1 << 20  # bytes.
IDLE_ROW = 400 * 1024  # bytes of all inputs: above it, a few rows want more SMs than the 16 of a cluster.
MAX_TILE_PADDING = 1.3  # columns of a tile to columns of a row.
STAGED_COLUMNS = 256  # Up to here the tier staged has priority.
# The fewest bytes that an enlarged program reads and writes: if a row is one vector of a thread, and if several rows share a warp.
# Otherwise PROGRAM_BYTES are the fewest.
VECTOR_ROWS_BYTES, SHARED_WARP_BYTES = 4 * 1024, 2600
MAX_WORDS = 48  # of inputs a thread
PROGRAMS = 16  # an SM, at least
INVARIANT_ROWS = 4096  # for which invariant plans are made.
INVARIANT_TIERS = ("tile", "rows", "cluster", "loop")  # Not split: a program that waits too long adds a row in another order.
MAX_DISTANCE = 6  # in a table: three quarters of an octave of row length, or half an octave and twice the rows.
MAX_SHORT_DISTANCE = 4  # the same for short rows, whose best number of threads changes more often.


def choose(problem: Problem, device: str = "") -> Plan:
    """The plan for a problem on a device of this name."""
    if (plan := long_row_plan(problem)) is not None:  # measured later than the tables, and for all numbers of rows
        return plan
    if problem.element_size != 8 and problem.congruent:
        kind, length, rows = bucket(problem)
        most = MAX_SHORT_DISTANCE if problem.N * problem.element_size <= SHORT_ROW else MAX_DISTANCE
        lines = measured_plans(device).get(kind, ())
        near = ((abs(length - at) + 2 * abs(rows - number), 1 << number, plan) for at, number, plan in lines)
        for distance, M, plan in sorted(near, key=lambda one: one[0]):
            own = not distance and problem.M == M  # as it was measured
            if distance > most:
                break
            if (fitted := fit(problem, plan)) is not None:
                if own:
                    return fitted
                if waves(problem, fitted) <= FULL or waves(replace(problem, M=M), fitted) > 1:
                    # Programs of one float32 row had 1.01 of a copy (short-longer.csv, 205131 x 321), so they stay as they are.
                    many = problem.element_size == 2 and not problem.loss and problem.M >= max(2 * M, MANY_ROWS * problem.sms)
                    if distance or many:
                        fitted = enlarged(problem, fitted)
                    return long_forward_plan(problem, fitted) or fitted
    return by_heuristics(problem)


def by_heuristics(problem: Problem) -> Plan:
    """The plan if no table has one."""
    return next(candidates(problem))


def candidates(problem: Problem) -> Iterator[Plan]:
    """Plans worth timing, at least one. The first is the heuristics' choice."""
    if problem.element_size == 8 or not problem.congruent:
        yield generic_plan(problem)
        return
    seen = set()
    first = long_row_plan(problem)
    for small in (*([first] if first else []), *_by_tier(problem)):
        for plan in (enlarged(problem, small), small):
            if plan not in seen:
                seen.add(plan)
                yield plan


def invariant_plan(problem: Problem) -> Plan:
    """A plan that follows from the length of a row and the dtypes, and adds a row's elements in an order of their columns."""
    if problem.N * problem.element_size % VECTOR_BYTES:
        return generic_plan(problem)
    plans = candidates(replace(problem, M=INVARIANT_ROWS, alignment=VECTOR_BYTES))
    return next(plan for plan in plans if plan.tier in INVARIANT_TIERS and not plan.base_alignment)


def enlarged(problem: Problem, plan: Plan) -> Plan:
    """The plan with more rows a program, if there are many programs that each move few bytes.

    An SM starts a program in 160 to 190 cycles. In that time memory moves 2.6 to 3.1 KB for it.
    If a thread has whole rows, the program gets more warps, and each thread as much work as before. If threads share a row, each thread
    gets more rows: more warps would add barriers to unaligned rows. A plan that was measured for such a problem stays as it is (`choose`).
    """
    moved = problem.N * problem.element_size * (problem.reads + 1)
    while plan.tier == "rows" and plan.threads <= WARP and problem.M >= 2 * plan.rows * PROGRAMS * problem.sms:
        shared = SHARED_WARP_BYTES if plan.threads < WARP else PROGRAM_BYTES
        if plan.rows * moved >= (VECTOR_ROWS_BYTES if plan.threads == plan.tiles == 1 else shared):
            break
        if plan.threads == 1 and 2 * plan.warps <= MAX_WARPS:
            plan = replace(plan, rows=2 * plan.rows, warps=2 * plan.warps)
        elif plan.threads > 1 and 2 * _words(problem, plan) <= MAX_WORDS:
            plan = replace(plan, rows=2 * plan.rows)
        else:
            break
    return plan


def _by_tier(problem: Problem) -> Iterator[Plan]:
    """All tiers' plans, the likely fastest tier first."""
    row = problem.N * problem.element_size
    max_rows_row = ROW_VECTORS[min(4, problem.element_size)] * VECTOR_BYTES // problem.reads
    small = problem.M * problem.reads * row < problem.sms * 64 * 1024  # less than a quarter of the device's registers
    yield from _staged(problem)
    if row <= SHORT_ROW:
        yield from short_row_plans(problem)
        yield from staged_plans(problem)
    elif row <= max_rows_row and (row * problem.reads <= LONG_ROW or not (problem.clusters or small)):
        yield from rows_plans(problem)
        yield from cluster_plans(problem)
        yield from split_plans(problem)
    elif _cluster_row(problem, row):
        yield from cluster_plans(problem)
        yield from split_plans(problem)
        yield from rows_plans(problem)
    else:
        yield from split_plans(problem)
        yield from cluster_plans(problem)
    yield generic_plan(problem)


def _staged(problem: Problem) -> Iterator[Plan]:
    """The plans of the tier staged, where it has priority."""
    return staged_plans(problem) if problem.N <= STAGED_COLUMNS else iter(())


def _cluster_row(problem: Problem, row: int) -> bool:
    """Whether clusters are likely faster than split rows, for rows of so many bytes."""
    many_rows = problem.M * CLUSTER_CTAS[-1] >= problem.sms
    return problem.clusters and row <= MAX_CLUSTER_ROW and (row * problem.reads <= IDLE_ROW or many_rows)


def bucket(problem: Problem) -> tuple[str, int, int]:
    """The line of a table that the problem belongs to: (kind, length, rows).

    kind: direction, element size and alignment. length: the row's words in eighths of an octave. rows: powers of two up to 4096.
    """
    short = problem.N * problem.element_size <= SHORT_ROW
    alignment = problem.alignment if short else VECTOR_BYTES if problem.alignment == VECTOR_BYTES else 0
    words = max(1, problem.N * problem.element_size // 4)
    kind = f"{'backward' if problem.backward else 'forward'} {problem.element_size} {alignment}"
    return kind, round(8 * math.log2(words)), min(12, round(math.log2(problem.M)))


def fit(problem: Problem, plan: Plan) -> Plan | None:
    """A table's plan with the numbers of this problem, or None if it does not fit.

    Problems of one bucket differ by a few percent in length. Where the tier staged has priority no other tier fits: a table may be older
    than that rule.
    """
    if plan.tier == "staged":
        return fit_staged(problem, plan)
    if next(_staged(problem), None) is not None:
        return None
    if plan.tier == "loop":
        return plan
    if plan.tier == "tile":
        # Triton moves aligned rows in whole vectors only if it sees that 16 divides N. A tile's columns are a power of two.
        moves_vectors = problem.alignment < VECTOR_BYTES or problem.N % 16 == 0
        fast = moves_vectors and not problem.wide  # results of another dtype pass through shared memory
        return plan if fast and 1 << (problem.N - 1).bit_length() <= MAX_TILE_PADDING * problem.N else None
    vectors = vectors_in_row(problem, plan.vector_elements, plan.base_alignment)
    if plan.tier == "split":
        needed = math.ceil(chunk_vectors(vectors, plan.split_ctas) / plan.threads)
        most = SMEM_BYTES // (plan.threads * VECTOR_BYTES * problem.reads)
        smem_tiles = min(max(0, needed - plan.tiles), most) if plan.smem_tiles else 0
        fits = needed <= 1.1 * (plan.tiles + plan.smem_tiles)
        return replace(plan, tiles=min(plan.tiles, needed), smem_tiles=smem_tiles) if fits else None
    chunk = chunk_vectors(vectors, plan.cluster_ctas) if plan.tier == "cluster" else vectors
    tiles = math.ceil(chunk / plan.threads)
    more = 12 if tiles > plan.tiles and problem.backward and problem.element_size == 2 else 0  # without them, ptxas spills
    fits = tiles <= plan.tiles + 1 and (plan.registers or 255) >= 4 * tiles * problem.reads + 14 + more
    if plan.tier == "cluster" and tiles > plan.tiles and problem.M * plan.cluster_ctas > 2 * problem.sms:
        # The line may have filled its SM with fewer tiles. A tile more wastes lanes, and one program an SM waits for its cluster.
        programs = resident_programs(plan.threads, plan.registers)
        fits = fits and (programs > 1 or chunk * VECTOR_BYTES * problem.reads >= IN_FLIGHT)
    fitted = replace(plan, tiles=tiles)
    longer = plan.tier == "rows" and tiles > plan.tiles
    while longer and _words(problem, fitted) > MAX_WORDS and fitted.rows * plan.threads > WARP * plan.warps:
        fitted = replace(fitted, rows=fitted.rows // 2)
    return fitted if fits else None


def _words(problem: Problem, plan: Plan) -> int:
    """4-byte words of inputs a thread has in a plan of tier rows."""
    return plan.tiles * plan.vector_words * problem.reads * plan.rows * plan.threads // (WARP * plan.warps)
