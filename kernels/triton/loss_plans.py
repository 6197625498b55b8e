"""The launch plans of losses over rows with a target, by arithmetic on the row's length, the number of rows and the device's SMs.

A table has the families of the fused pass (docs/kernels/plans.md). The other passes read a row once and exchange nothing while
they read. Their plans have the tier `stream`: `split_ctas` programs share a row. No table has them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from ..plans.table import families
from .devices import Card
from .launch_plan import VECTOR_BYTES, WARP, Plan, Problem, chunk_vectors, vectors_in_row
from .planner import LINE_BYTES, SHORT_ROW, made, ranked

SHORT_SCALAR_ROW = 512  # bytes
STREAM_TILES = 4  # vectors of a thread in flight; 32 to 40 registers then let an SM hold enough threads
GRADIENT_PROGRAMS = ((256, STREAM_TILES), (256, 2), (256, 1), (128, 1))  # threads and tiles
LEAST_THREADS = 64
REDUCTION_THREADS = (64, 128, 256)  # Of a program that reduces part of a row.
WAVES = 12  # Programs for each SM that a reduction of many rows has at least, so that the last ones end together.
LEAST_PART, LEAST_PART_OF_FEW = 16384, 4096  # Bytes of a program's part of a row, of many and of few rows.
FEW_BYTES = 64 * 1024  # For each SM: below it, all bytes are in flight at once.
MAX_PARTS = 128
LEAST_PROGRAMS = 4  # Of each SM that share rows: 64 KiB in flight.
MUCH_LESS = 0.75  # Of the work of the busiest SM, for fewer parts a row.
FEWER_READS = 0.95  # Of the reads of a row, for one more tile a turn.
MOST_SHARED_ROWS = 8192  # Rows that several programs reduce: each needs a counter.
TIERS = ("rows", "cluster")
"""The second is only of cards with clusters."""
MOST_ROW = {False: 1 << 18, True: 1 << 21}
"""Bytes that a program of 1024 threads holds in 64 registers of each, and 16 of 512 threads that are a cluster."""
LAST = families("triton", "rows 4 1 1 16, rows 2 1 1 16, rows 1 1 1 16, rows 8 1 1 16, rows 16 1 1 16, cluster 256 16 0, cluster 512 16 2")
"""If no family of the table makes a plan that holds a row."""
# Tiles of a cluster's plan, by element size and number of additions: PlanCTA of Triton 3.6 gives up at a number of operations.
MOST_TILES_OF_CLUSTER = {2: (32, 12, 8), 4: (32, 16, 12)}


def is_short(problem: Problem) -> bool:
    """Whether a row is short enough for `loss_tiles.py`."""
    scalar = problem.element_size == 2 and problem.alignment < VECTOR_BYTES  # such elements move one by one there
    return problem.N * problem.element_size <= (SHORT_SCALAR_ROW if scalar else SHORT_ROW)


def fused_plan(problem: Problem, card: Card, additions: int = 0) -> Plan | None:
    """A plan of the tier rows or cluster; None if neither can hold a row.

    `additions`: how many of label smoothing and softcap add operations to each element.
    """
    if problem.row_bytes > MOST_ROW[problem.clusters]:
        return None
    found = itertools.chain(ranked(problem, card, "fused", TIERS[: 1 + problem.clusters]), LAST)
    return next((fused for plan in made(problem, found) if (fused := as_fused(problem, plan, additions))), None)


def as_fused(problem: Problem, plan: Plan, additions: int = 0) -> Plan | None:
    """A plan of softmax for the fused pass; None if the pass has none like it."""
    if plan.vector_words * 4 != VECTOR_BYTES:
        return None
    if plan.tier == "cluster":
        return plan if plan.tiles <= MOST_TILES_OF_CLUSTER[min(4, problem.element_size)][additions] else None
    if plan.tier != "rows" or plan.threads <= WARP or plan.rows > 1:
        return None
    # The limit of registers is that of softmax, which needs fewer. It gives an SM more programs, and here each has an SM.
    return replace(plan, registers=None) if problem.M <= problem.sms else plan


def _stream(problem: Problem, tiles: int, threads: int, parts: int) -> Plan:
    elements = VECTOR_BYTES // problem.element_size
    base_alignment = 0 if problem.alignment == VECTOR_BYTES else LINE_BYTES
    return Plan("stream", tiles, threads, 4, elements, base_alignment, threads // WARP, split_ctas=parts)


def vectors_of(problem: Problem) -> int:
    """The most vectors that a row of a stream plan touches."""
    plan = _stream(problem, 1, WARP, 1)
    return vectors_in_row(problem, plan.vector_elements, plan.base_alignment)


def reduction_plan(problem: Problem) -> Plan:
    """The plan of a pass that only reads x."""
    vectors = vectors_of(problem)
    row = vectors * VECTOR_BYTES
    few = problem.M * row < problem.sms * FEW_BYTES
    wanted = 1 if problem.M > MOST_SHARED_ROWS else math.ceil(problem.sms * (2 if few else WAVES) / problem.M)
    parts = max(1, min(wanted, row // (LEAST_PART_OF_FEW if few else LEAST_PART), MAX_PARTS))
    if not few:
        parts = _least_work(problem, vectors, parts)
    chunk = chunk_vectors(vectors, parts)
    threads = next((count for count in REDUCTION_THREADS if count * STREAM_TILES >= chunk), REDUCTION_THREADS[-1])
    tiles = _tiles_without_waste(chunk, threads) if chunk > STREAM_TILES * threads else math.ceil(chunk / threads)
    return _stream(problem, tiles, threads, math.ceil(vectors / chunk))


def _tiles_without_waste(chunk: int, threads: int) -> int:
    """Tiles of a turn: STREAM_TILES, or one more if a row then takes at least 5 % fewer reads. All threads wait for the last turn."""

    def reads(tiles: int) -> int:
        return math.ceil(chunk / (tiles * threads)) * tiles

    return STREAM_TILES + 1 if reads(STREAM_TILES + 1) <= FEWER_READS * reads(STREAM_TILES) else STREAM_TILES


def _least_work(problem: Problem, vectors: int, most: int) -> int:
    """The parts of a row: `most`, or fewer if the busiest SM then reads much fewer tiles. A part's last tiles may be nearly empty."""

    def work(parts: int) -> int:
        return -(-problem.M * parts // problem.sms) * -(-vectors // (parts * REDUCTION_THREADS[-1] * STREAM_TILES))

    least = max(1, LEAST_PROGRAMS * problem.sms // problem.M)
    best = min(range(min(most, least), most + 1), key=work)
    return best if work(best) <= MUCH_LESS * work(most) else most


def gradient_plan(problem: Problem) -> Plan:
    """The plan of a backward: as many programs a row as its vectors need. Few rows have shorter programs, so that every SM has one."""
    vectors = vectors_of(problem)
    for threads, most in GRADIENT_PROGRAMS:
        parts = math.ceil(vectors / (threads * most))
        if problem.M * parts >= 2 * problem.sms:
            break
    while threads > LEAST_THREADS and threads // 2 * most >= vectors:
        threads //= 2
    tiles = math.ceil(vectors / parts / threads)
    return _stream(problem, tiles, threads, math.ceil(vectors / (tiles * threads)))
