"""Plans of the kernels that compilers trace: those of `heuristics.py` that a compiler can launch, and those of packages."""

from __future__ import annotations

import math
from dataclasses import replace

from .heuristics import LONG_ROW, choose
from .launch_plan import LINE_VECTORS, VECTOR_BYTES, WARP, Plan, Problem, chunk_vectors, vectors_in_row
from .staggered_start import stagger

MAX_WORDS = 32  # of a thread, of all inputs: ptxas then takes at most 64 registers without a limit.
ROW_A_LANE_BYTES = 2048  # that a program of short unaligned rows reads and writes at least; else it has more warps, not fewer rows
BLOCK_THREADS = (64, 128, 256, 512, 1024)
SHARED_THREADS = 128  # of a program that has a part of a row
# Tiles of each tensor that a thread of a split row holds: usual, of unaligned rows, of long rows. False is the forward, True the gradient.
SPLIT_TILES = {False: (16, 22, 24), True: (8, 10, 10)}
LONG_SPLIT = 32  # programs of an aligned row: if the usual tiles need more, the row has the tiles of long rows.
USUAL_BYTES, USUAL_SPLIT = 64 << 20, 128  # A forward's input of up to so many bytes has the usual tiles up to so many programs a row.
FEW_WAVES_BYTES = 34 << 20  # of an aligned forward's input: up to here, half the usual tiles, if at most LONG_SPLIT programs share a row.
SPLIT_PROGRAMS = 3  # that an SM surely holds: with these tiles a thread has at most 168 registers, as on sm_100; on sm_90 it has 128.
MOST_SPLIT = 256  # programs of a row. Each polls the results of all others, and that delays their loads and stores.
PASS_BYTES = 12 << 20  # of all inputs: up to here, a second pass that finds them in L2 takes less time than the exchange.
PASS_TILES = 8  # of all inputs, the most of a thread in a pass
PASS_PROGRAMS = 4  # for each SM: beyond, threads have more tiles.
MOST_COLUMNS = 2**31 - 2**14  # kernels of shared rows count columns in 32 bits.
PROGRAM_ROW = {2: 64 << 10, 4: 128 << 10}  # bytes of all inputs, by element size: above it, several programs share a row.
# Of a thread of a split row: beside its tiles, and in all.
OTHER_REGISTERS, REGISTERS, MOST_REGISTERS = 32, (64, 80, 96, 128), 168
STAGGERED_ROWS = {False: 3, True: 4}  # that the device holds at once, of a forward and of a gradient: with fewer, rows start together.


def plan_for(problem: Problem, device: str) -> Plan:
    """The plan for a problem, among those that compilers can launch."""
    plan = _one_row_a_lane(problem, choose(problem, device))
    if plan.tier == "staged":
        return plan
    if plan.tier in ("tile", "loop") or (plan.tier == "rows" and plan.tiles * plan.vector_words * problem.reads <= MAX_WORDS):
        return replace(plan, registers=None)
    elements, base, vectors = row_layout(problem)
    for threads in BLOCK_THREADS:
        tiles = math.ceil(vectors / threads)
        if tiles * 4 * problem.reads <= MAX_WORDS:
            return Plan("rows", tiles, threads, 4, elements, base, threads // 32)
    return Plan("loop")


def _one_row_a_lane(problem: Problem, plan: Plan) -> Plan:
    """A plan of short unaligned rows, without lanes that have parts of two rows, which were slow.

    It has fewer rows, or more warps if fewer rows would have less than ROW_A_LANE_BYTES.
    """
    lanes = WARP * plan.warps
    if plan.tier != "rows" or problem.alignment == VECTOR_BYTES or not 1 < plan.threads <= WARP or plan.rows * plan.threads <= lanes:
        return plan
    rows = lanes // plan.threads
    if rows * problem.N * problem.element_size * (problem.reads + 1) >= ROW_A_LANE_BYTES:
        return replace(plan, rows=rows)
    return replace(plan, warps=plan.rows * plan.threads // WARP)


def shared_plan(problem: Problem) -> Plan | None:
    """The plan for rows of a static N that several programs share, of a package of AOTInductor; None for other rows.

    All programs of a split row must run at once. Those of two passes need not.
    """
    row = problem.N * problem.element_size * problem.reads
    if not problem.congruent or row <= LONG_ROW or (row <= PROGRAM_ROW[problem.element_size] and problem.M > problem.sms):
        return None
    if problem.N > MOST_COLUMNS:
        return None
    elements, base, vectors = row_layout(problem)
    threads = SHARED_THREADS
    ctas, tier = _split_programs(problem, vectors), "split"
    if problem.M * row <= PASS_BYTES or ctas > min(SPLIT_PROGRAMS * problem.sms, MOST_SPLIT):
        tier, tiles = "passes", 1
        while 2 * tiles * problem.reads <= PASS_TILES and problem.M * vectors > tiles * threads * PASS_PROGRAMS * problem.sms:
            tiles *= 2
        ctas = math.ceil(vectors / (tiles * threads))
    tiles = math.ceil(chunk_vectors(vectors, ctas) / threads)
    return Plan(tier, tiles, threads, 4, elements, base, threads // 32, split_ctas=ctas)


def _split_programs(problem: Problem, vectors: int) -> int:
    """How many programs share a split row of `vectors` vectors."""
    usual, unaligned, long = SPLIT_TILES[problem.backward]

    def programs(tiles: int) -> int:
        return max(2, math.ceil(vectors / (SHARED_THREADS * tiles)))

    if problem.alignment != VECTOR_BYTES:
        return programs(unaligned)
    at_once = SPLIT_PROGRAMS * problem.sms
    size = math.inf if problem.backward else problem.M * problem.N * problem.element_size  # only forwards have rules by size
    if size <= FEW_WAVES_BYTES and programs(usual // 2) <= min(LONG_SPLIT, at_once):
        return programs(usual // 2)
    keeps = min(USUAL_SPLIT if size <= USUAL_BYTES else LONG_SPLIT, at_once)
    return programs(usual if programs(usual) <= keeps else long)


def row_layout(problem: Problem) -> tuple[int, int, int]:
    """(elements of a vector, base alignment, the most vectors that a row touches) of rows that no table decides on."""
    elements = VECTOR_BYTES // problem.element_size
    base = 0 if problem.alignment == VECTOR_BYTES else VECTOR_BYTES * LINE_VECTORS
    return elements, base, vectors_in_row(problem, elements, base)


def split_stagger(problem: Problem, plan: Plan) -> tuple[int, int]:
    """(rows, cycles) of a split plan, as `stagger` returns. The registers that ptxas takes decide how many programs an SM holds.

    A forward with half the usual tiles waits the time in which memory reads a row, in launches of one wave too.
    """
    half = not problem.backward and not plan.base_alignment and plan.tiles <= SPLIT_TILES[False][0] // 2
    rows, cycles = stagger(problem, replace(plan, registers=split_registers(problem, plan)), 1 if half else None)
    return (rows, cycles) if rows >= STAGGERED_ROWS[problem.backward] else (0, 0)


def split_registers(problem: Problem, plan: Plan) -> int:
    """The most that ptxas takes for a thread of such a split row: as many programs of an SM as with what it takes."""
    if plan.base_alignment and problem.element_size == 2 and not problem.backward and plan.tiles in (15, 16):
        return MOST_REGISTERS
    needed = 4 * plan.tiles * problem.reads + OTHER_REGISTERS
    return next((most for most in REGISTERS if needed <= most), MOST_REGISTERS)
