"""Which plan a launch has: a table says which family of plans is the fastest (docs/kernels/plans.md), and a family makes a plan or none.

What the numbers of a family mean depends on the tier:

- tile      how many times as many rows as usual a program has
- staged    elements a lane at most, warps, bytes of a block of rows in all inputs at most
- rows      vectors a thread at most, warps, rows of a thread, bytes of a vector
- cluster   threads of a CTA, CTAs, programs that an SM holds (0: as many as registers for the vectors allow)
- split     threads of a program, vectors a thread in registers at most, programs that an SM holds, fill

fill: the share of all programs that the device holds at once, in percent. 0: the fewest programs that hold a row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ..plans.table import Family, families, kind_of, table
from .generic import TILE_COLUMNS
from .launch_plan import (
    PROGRAM_SHARED,
    SECTOR_BYTES,
    SM_REGISTERS,
    SM_SHARED,
    VECTOR_BYTES,
    WARP,
    Plan,
    Problem,
    chunk_vectors,
    free_distance,
    resident_programs,
    row_distance,
    vectors_in_row,
)

LINE_BYTES = 128
SHORT_ROW = 4096
"""Bytes: up to here several rows may share a program, and vectors are counted from a boundary of 16 bytes."""
SMEM_BYTES = 44 * 1024
"""Of a program, in all inputs, for `smem_tiles.py`: static shared memory ends at 48 KiB."""
MAX_SPLIT_CTAS = 512
MOST_SPLIT_TILES, MOST_SMEM_TILES = 16, 11
"""Vectors of an input that a thread of tier split has in registers, and in shared memory: more take ptxas many seconds."""
MOST_WIDE_TILES = 16
"""Of a cluster whose results have more bytes: PlanCTA of Triton 3.6 gives up at 19, of which each has two vectors of results."""
MAX_THREADS, MAX_WORDS = 1024, 64
"""Of a program's threads, and of 4-byte words of inputs that a thread of tier rows has."""
MOST_ROW_THREADS, LEAST_FULL = 512, 0.65
"""Of tier rows: threads on cards with clusters, and the share of its lanes' vectors that a row has. Plans beyond were hardly ever the
fastest of those that `softbench tune` measured."""
STAGED_ROW, MAX_BLOCK_BYTES, MAX_STAGED = 1024, 24 * 1024, 40
"""Of tier staged: bytes of a row, bytes of a block in all inputs, and elements a lane in all inputs."""
MAX_TILE_PADDING = 1.3
LEAST_CHUNK = 128
"""Vectors of a CTA or a program that shares a row."""
REGISTER_LIMITS = (32, 40, 48, 56, 64, 72, 80, 96, 128)
INVARIANT = families("triton", "tile 1, rows 2 1 1 16, rows 4 1 1 16, rows 8 1 1 16, cluster 256 8 0, cluster 256 16 0")
"""Of plans that follow from the length of a row and the dtypes. Not split: a program that waits too long adds a row in another order."""
INVARIANT_ROWS = 4096
"""For which invariant plans are made."""
LAST = families("triton", "rows 16 1 1 16, split 256 8 4 0, split 256 8 2 0")
"""Of rows for which no cell's family makes a plan."""


def choose(problem: Problem, card: tuple[str, int]) -> Plan:
    """The plan of a launch: that of the cell of these rows, or of the nearest one whose family makes a plan.

    `card`: its name and its compute capability, as `devices.device_traits` has them.
    """
    if problem.element_size == 8 or not problem.congruent:
        return generic_plan(problem)
    found = itertools.chain(ranked(problem, card), LAST)
    return next(made(problem, found), None) or _longest(problem) or generic_plan(problem)


def ranked(problem: Problem, card: tuple[str, int], which: str = "forward", tiers: tuple[str, ...] = ()) -> Iterator[Family]:
    """The table's families, that of the cell of these rows first, then those of the nearest ones. `which`: of a forward."""
    row, which = problem.row_bytes, "gradient" if problem.backward else "widened" if problem.wide else which
    kind = kind_of(which, problem.element_size, row, problem.alignment)
    return table("triton", *card, tiers).ranked(kind, row, problem.input_bytes / 1024 / problem.sms)


def _longest(problem: Problem) -> Plan | None:
    return _split(problem, 256, 8, 3 if problem.backward else 4, 0, twice=True)


def made(problem: Problem, ranked: Iterable[Family]) -> Iterator[Plan]:
    """The plans of the families that make one, each family once."""
    asked = set()
    for family in ranked:
        if family not in asked:
            asked.add(family)
            if plan := make_plan(problem, family):
                yield plan


def invariant_plan(problem: Problem) -> Plan:
    """A plan that follows from the length of a row and the dtypes, and adds a row's elements in an order of their columns."""
    whole = problem.row_bytes % VECTOR_BYTES == 0 and problem.congruent and problem.element_size != 8
    found = made(replace(problem, M=INVARIANT_ROWS, alignment=VECTOR_BYTES), INVARIANT) if whole else iter(())
    return next(found, None) or generic_plan(problem)


def generic_plan(problem: Problem) -> Plan:
    """The plan of `generic.py`, which takes every problem."""
    return Plan("loop" if TILE_COLUMNS // problem.reads < problem.N else "tile")


def make_plan(problem: Problem, family: Family) -> Plan | None:
    """The plan that a family makes; None if it makes none."""
    tier, *numbers = family
    return MAKE[tier](problem, *numbers)


def _layout(problem: Problem) -> tuple[int, int, int]:
    base = 0 if problem.alignment == VECTOR_BYTES else VECTOR_BYTES if problem.row_bytes <= SHORT_ROW else LINE_BYTES
    return 4, VECTOR_BYTES // problem.element_size, base


def _tile(problem: Problem, rows: int) -> Plan | None:
    # Triton moves aligned rows in whole vectors only if it sees that 16 divides N. A tile's columns are a power of two.
    vectors = problem.alignment == VECTOR_BYTES and problem.N % 16 == 0 and not problem.wide
    padding = (1 << (problem.N - 1).bit_length()) / problem.N
    if not vectors or problem.row_bytes > SHORT_ROW or padding > MAX_TILE_PADDING:
        return None
    return Plan("tile", vector_elements=VECTOR_BYTES // problem.element_size, rows=rows)


def _staged(problem: Problem, most: int, warps: int, size: int) -> Plan | None:
    row, size_of = problem.row_bytes, problem.element_size
    if not problem.contiguous or problem.alignment == VECTOR_BYTES or row > STAGED_ROW:
        return None
    elements = 2 if size_of == 2 and problem.alignment >= 4 else 1
    units = problem.N // elements
    lanes = 1 << (math.ceil(problem.N / most) - 1).bit_length()
    each = math.ceil(units / lanes)
    if lanes > WARP or each * elements * problem.reads > MAX_STAGED:
        return None
    # Each SM has several blocks.
    rows = _staged_rows(row, elements * size_of, lanes, warps, min(size // problem.reads, problem.M * row // (8 * problem.sms)))
    if rows * problem.sms > problem.M or rows * row * problem.reads > MAX_BLOCK_BYTES:
        return None
    return Plan("staged", each, lanes, elements * size_of // 4, elements, 0, warps, rows=rows)


def _staged_rows(row: int, unit: int, lanes: int, warps: int, size: int) -> int:
    """Rows of about `size` bytes in whole passes. More where accesses of 2 bytes then share banks less: `row_distance`.

    A block is whole sectors, since two SMs would write a shared one. It is only whole vectors if blocks of whole sectors
    would be too large.
    """
    step = WARP * warps // lanes
    least = math.lcm(step, SECTOR_BYTES // math.gcd(SECTOR_BYTES, row))
    if least * row > max(size, 1) * 2:
        least = math.lcm(step, VECTOR_BYTES // math.gcd(VECTOR_BYTES, row))
    rows = max(1, size // row // least) * least
    counts = range(rows, max(rows, 2 * size // row) + 1, least)
    if unit > 2 or len(counts) == 1:
        return rows
    free = next((more for more in counts if free_distance(row, unit, lanes, more)), None)
    return free or min(counts, key=lambda more: row_distance(row, unit, lanes, more & -more)[0])


def _rows(problem: Problem, most: int, warps: int, times: int, vector: int) -> Plan | None:
    row, size = problem.row_bytes, problem.element_size
    words, elements, base = _layout(problem)
    if vector < VECTOR_BYTES:
        if problem.alignment == VECTOR_BYTES or row > SHORT_ROW or vector < size or (problem.alignment < vector and size == 4):
            return None
        words, elements, base = vector // 4, vector // size, 0 if problem.alignment >= vector else vector
    elif row < VECTOR_BYTES and problem.alignment >= 4:
        return None
    vectors = vectors_in_row(problem, elements, base)
    threads = 1 << (math.ceil(vectors / most) - 1).bit_length()
    tiles = math.ceil(vectors / threads)
    each = tiles * words * problem.reads
    if threads > (MOST_ROW_THREADS if problem.clusters else MAX_THREADS) or each > (MAX_WORDS if threads >= WARP else MAX_WORDS // 2):
        return None
    if threads <= WARP and vectors < LEAST_FULL * threads * tiles:
        return None
    if threads > WARP:
        warps, rows = threads // WARP, 1
    else:
        rows = WARP * warps // threads * max(1, min(times, 1 << (MAX_WORDS // each).bit_length() - 1))
    registers = None if row <= SHORT_ROW else _registers(problem, tiles, threads)
    return Plan("rows", tiles, threads, words, elements, base, warps, registers, rows)


def _cluster(problem: Problem, threads: int, ctas: int, programs: int) -> Plan | None:
    if not problem.clusters:
        return None
    layout = _layout(problem)
    chunk = chunk_vectors(vectors_in_row(problem, *layout[1:]), ctas)
    tiles = math.ceil(chunk / threads)
    if chunk < LEAST_CHUNK or (problem.wide and tiles > MOST_WIDE_TILES):
        return None
    if programs:
        registers = _limit(threads, programs)
        if registers < _needed(problem, tiles):
            return None
    else:
        all_tiles = tiles * problem.reads
        if all_tiles > (24 if threads == 256 else 16):
            return None
        more = (12 if problem.element_size == 2 and all_tiles >= 12 else 0) + (8 if problem.backward and all_tiles > 20 else 0)
        enough = _registers(problem, tiles, threads, more)
        if enough is None:
            return None
        registers = enough
    return Plan("cluster", tiles, threads, *layout, threads // WARP, registers, cluster_ctas=ctas)


def _split(problem: Problem, threads: int, most: int, programs: int, fill: int, twice: bool = False) -> Plan | None:
    """`twice`: what the programs that run at once do not hold of a row, they read a second time."""
    layout = _layout(problem)
    vectors = vectors_in_row(problem, *layout[1:])
    registers = _limit(threads, programs)
    most = min(MOST_SPLIT_TILES, most // problem.reads)
    if not most or registers < _needed(problem, most):
        return None
    room = min(SMEM_BYTES, SM_SHARED // programs - PROGRAM_SHARED) // (threads * VECTOR_BYTES * problem.reads)
    room = min(room, MOST_SMEM_TILES) if problem.clusters else 0
    once = programs * problem.sms
    ctas = once * fill // (100 * problem.M) if fill else math.ceil(vectors / (threads * (most + room)))
    if twice:
        ctas = max(2, min(ctas, once, MAX_SPLIT_CTAS))
    if not (2 if problem.backward else 1) <= ctas <= min(once, MAX_SPLIT_CTAS) or vectors < LEAST_CHUNK * ctas:
        return None
    needed = math.ceil(chunk_vectors(vectors, ctas) / threads)
    if needed > most + room and not twice:
        return None
    tiles = min(most, needed)
    return Plan("split", tiles, threads, *layout, threads // WARP, registers, split_ctas=ctas, smem_tiles=min(room, needed - tiles))


MAKE: dict[str | int, Callable[..., Plan | None]] = {"tile": _tile, "staged": _staged, "rows": _rows, "cluster": _cluster, "split": _split}


def _needed(problem: Problem, tiles: int) -> int:
    """Registers of a thread without which ptxas spills."""
    return 4 * tiles * problem.reads + 14 + (12 if problem.backward and problem.element_size == 2 else 0)


def _registers(problem: Problem, tiles: int, threads: int, more: int = 0) -> int | None:
    """The limit of registers a thread: enough for the tiles and `more`, and as many as an SM has for as many programs."""
    cached = tiles <= 2 and problem.element_size == 2 and not problem.backward  # exponentials are cached
    for_tiles = 4 * tiles * problem.reads * (2 if cached else 1)
    least = for_tiles + more + (20 if 16 < for_tiles < 64 else 16)
    least += 4 if problem.alignment < VECTOR_BYTES else 0
    least += 8 if problem.backward and problem.element_size == 2 else 0
    limit = next((one for one in REGISTER_LIMITS if one >= least and one * threads <= SM_REGISTERS), None)
    return limit and _limit(threads, resident_programs(threads, limit))


def _limit(threads: int, programs: int) -> int:
    """The most registers of a thread, in whole eights, with which an SM holds so many programs."""
    return min(REGISTER_LIMITS[-1], SM_REGISTERS // (programs * threads) // 8 * 8)
