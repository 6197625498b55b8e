"""The plans of tier staged that may be fast for a problem, the likely fastest first, and what a table's plan of the tier becomes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from .launch_plan import SECTOR_BYTES, VECTOR_BYTES, Plan, Problem, row_distance
from .tier_candidates import Scored, best, relative_distance

ROW = 1024  # bytes of a row, at most
SMALL = 8 << 20  # bytes of all inputs: launches with fewer are small.
SMALL_ROW = 256  # bytes: longer rows are not in this tier in small launches.
# The fewest bytes of all inputs for rows of at most SMALL_ROW: if they start at multiples of 4 bytes, and if they do not.
LEAST, LEAST_HALF_WORDS = 5 << 19, 1 << 18
BLOCKS, SMALL_BLOCKS = 8, 15  # The fewest blocks of an SM, in a launch that is not small and in a small one.
MANY_BLOCKS = 16  # A block grows, for whole sectors or for rows further apart, only while an SM has so many.
BLOCK_BYTES = 8192  # of a block of rows, in all inputs
MAX_BLOCK_BYTES = 24 * 1024
APART_BYTES = 17 * 1024  # in all inputs: up to here a block is larger for the rows of a warp to be further apart.


def staged_plans(problem: Problem) -> Iterator[Plan]:
    """Plans for rows of at most ROW bytes back to back, which no 16-byte vector can move row by row.

    A power of two of lanes shares a row, with about ten elements each: the reduction over lanes then costs less than the elements do. A
    block has about BLOCK_BYTES, or less so that each SM has several: `_most_bytes`.
    """
    row = problem.N * problem.element_size
    if not _can_be_staged(problem) or row > ROW:
        return
    elements = 2 if problem.element_size == 2 and problem.alignment >= 4 else 1
    units = problem.N // elements
    scored: list[Scored] = []
    for lanes in (1, 2, 4, 8, 16, 32):
        each = math.ceil(units / lanes)
        if each * elements * problem.reads > 40 or (each < 3 and lanes > 1):
            continue
        for warps, size in itertools.product((4, 2), (BLOCK_BYTES, 2 * BLOCK_BYTES)):
            plan = Plan("staged", each, lanes, elements * problem.element_size // 4, elements, 0, warps)
            rows = _staged_rows(problem, plan, min(size // problem.reads, _most_bytes(problem)))
            if rows * row * problem.reads > MAX_BLOCK_BYTES:
                continue
            score = each * lanes / units - 1 + relative_distance(each * elements, 10) / 2
            scored.append((score + 0.1 * (warps == 2) + 0.2 * (size > BLOCK_BYTES), replace(plan, rows=rows)))
    yield from best(scored, 8)


def _can_be_staged(problem: Problem) -> bool:
    """Whether the rows lie back to back, no 16-byte vector moves them row by row, and the launch is large."""
    least = LEAST if problem.alignment > 2 else LEAST_HALF_WORDS
    short = problem.N * problem.element_size <= SMALL_ROW
    large = problem.input_bytes >= (least if short else SMALL)
    return problem.contiguous and problem.alignment < VECTOR_BYTES and large


def _most_bytes(problem: Problem) -> int:
    """Bytes of a block in each input, with which each SM has BLOCKS or SMALL_BLOCKS."""
    blocks = SMALL_BLOCKS if problem.input_bytes < SMALL else BLOCKS
    return problem.M * problem.N * problem.element_size // (blocks * problem.sms)


def _staged_rows(problem: Problem, plan: Plan, size: int) -> int:
    """Rows of about `size` bytes in whole passes. More where accesses of 2 bytes then share banks less: `row_distance`.

    A block is whole sectors (docs/kernels/triton.md, Short rows). It is only whole vectors if blocks of whole sectors
    would be too large or too few.
    """
    row = problem.N * problem.element_size
    grown = problem.M * row // (MANY_BLOCKS * problem.sms)  # bytes in each input that a block may grow to
    rows_of_pass = 32 * plan.warps // plan.threads
    unit = math.lcm(rows_of_pass, SECTOR_BYTES // math.gcd(SECTOR_BYTES, row))
    if unit * row > min(grown, MAX_BLOCK_BYTES // problem.reads):
        unit = math.lcm(rows_of_pass, VECTOR_BYTES // math.gcd(VECTOR_BYTES, row))
    rows = max(1, size // row // unit) * unit
    if plan.vector_elements * problem.element_size > 2:
        return rows
    most = min(APART_BYTES // problem.reads, grown) // row
    return min(range(rows, max(rows, most) + 1, unit), key=lambda more: row_distance(row, 2, plan.threads, more)[0])


def fit_staged(problem: Problem, plan: Plan) -> Plan | None:
    """A table's staged plan with the numbers of this problem, or None if it does not fit.

    Its blocks have BLOCK_BYTES or twice as many in all inputs, whichever is nearer to the table's plan. In launches of few bytes they have
    less: `_most_bytes`.
    """
    if not _can_be_staged(problem) or (plan.vector_elements == 2 and problem.alignment < 4):
        return None
    row = problem.N * problem.element_size
    each = math.ceil(problem.N / plan.vector_elements / plan.threads)
    measured = plan.rows * plan.tiles * plan.threads * plan.vector_elements / problem.N  # rows of this length in the table's block
    sizes = {min(size // problem.reads, _most_bytes(problem)) for size in (BLOCK_BYTES, 2 * BLOCK_BYTES)}
    rows = min((_staged_rows(problem, plan, size) for size in sizes), key=lambda rows: abs(math.log(rows / measured)))
    fits = rows * row * problem.reads <= MAX_BLOCK_BYTES and each <= 1.5 * plan.tiles + 1
    return replace(plan, tiles=each, rows=rows) if fits else None
