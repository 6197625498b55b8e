"""The plans of each tier that may be fast for a problem, the likely fastest first.

Each function scores plans by arithmetic, lower is better, and yields the best. The weights bring the plans that `tune` found fastest on an
H200 near the front. They have no other justification.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from .launch_plan import (
    GPC_SMS,
    SECTOR_BYTES,
    SM_REGISTERS,
    VECTOR_BYTES,
    Plan,
    Problem,
    chunk_vectors,
    resident_programs,
    row_distance,
    vectors_in_row,
)

LINE_BYTES = 128
SHORT_ROW = 4096  # bytes: up to here several rows share a program, or a row has fewer than 4 warps
BLOCK_THREADS = (64, 128, 256, 512, 1024)
SMEM_BYTES = 44 * 1024  # of a program, in all inputs, for `smem_tiles.py`: static shared memory ends at 48 KiB
CLUSTER_CTAS = (2, 4, 8, 16)
PROGRAM_BYTES = 3 * 1024  # that a program of short rows reads and writes at least, if there are many programs: `heuristics.enlarged`.
MANY_ROWS = 256  # an SM: with so many rows, the start of programs counts more than in the launches of the tables.
NARROW_ROW = 512  # bytes of a 16-bit row: longer ones that start at words have vectors of 16 bytes in forwards of many rows.
LARGE_TILES = 8 << 20  # bytes: from here on, tiles of rows of at most 64 bytes have more than a vector a thread.
IN_FLIGHT = 104 * 1024  # bytes of rows that an SM wants to have in flight while clusters exchange
MAX_SPLIT_CTAS = 512
STAGED_ROW = 1024  # bytes of a row, at most
SMALL_STAGED = 8 << 20  # bytes of all inputs: launches with fewer are small.
SMALL_ROW = 256  # bytes: longer rows are not in this tier in small launches.
# The fewest bytes of all inputs for rows of at most SMALL_ROW: if they start at multiples of 4 bytes, and if they do not.
LEAST_STAGED, LEAST_STAGED_HALF_WORDS = 5 << 19, 1 << 18
BLOCKS, SMALL_BLOCKS = 8, 15  # The fewest blocks of an SM, in a launch that is not small and in a small one.
MANY_BLOCKS = 16  # A block grows, for whole sectors or for rows further apart, only while an SM has so many.
BLOCK_BYTES = 8192  # of a block of rows, in all inputs
MAX_BLOCK_BYTES = 24 * 1024
APART_BYTES = 17 * 1024  # in all inputs: up to here a block is larger for the rows of a warp to be further apart.
LONG_PROGRAMS = 4
"""Programs that an SM holds."""
LONG_TILES, LONG_SMEM_TILES, LONG_THREADS = 8, 11, 256
"""The most tiles of a program in registers and in shared memory, and its threads."""
Layout = tuple[int, int, int]
"""Words of a vector, its elements, and the bytes of the boundary from which a row's vectors are counted."""
Scored = tuple[float, Plan]


def generic_plan(problem: Problem) -> Plan:
    """The plan of `generic.py`, which takes every problem."""
    return Plan("loop" if 16384 // problem.reads < problem.N else "tile")


def short_row_plans(problem: Problem) -> Iterator[Plan]:
    """Plans for rows of at most SHORT_ROW bytes.

    A power of two of lanes shares a row, so that a warp has one or several rows. A thread wants about 8 words of each input.
    """
    scored: list[Scored] = []
    for order, (vector_words, vector_elements, base_alignment) in enumerate(vector_layouts(problem)):
        vectors = vectors_in_row(problem, vector_elements, base_alignment)
        for threads in (1, 2, 4, 8, 16, 32, 64, 128):
            tiles = math.ceil(vectors / threads)
            words = tiles * vector_words
            if words * problem.reads > 64 or (tiles == 1 and threads > 1 and vectors <= threads // 2):
                continue
            padding = tiles * threads / max(1, vectors)
            for warps, rows in _program_sizes(threads):
                words_per_thread = words * rows * threads / (32 * warps)
                if words_per_thread * problem.reads > 64:
                    continue
                score = order + 2 * (padding - 1) + relative_distance(words_per_thread * problem.reads, 8)
                score += 0.25 * (32 * warps < rows * threads)
                if threads > 32:  # a program has one row
                    score += 0.5 + 1.5 * max(0.0, PROGRAM_BYTES / (problem.N * problem.element_size * (problem.reads + 1)) - 1)
                # Of several warps, Triton 3.6 lets the threads of a row lie in different ones: each reduction then has barriers.
                score += 0.5 * (warps > 1 and 1 < threads < 32)
                scored.append((score, Plan("rows", tiles, threads, vector_words, vector_elements, base_alignment, warps, None, rows)))
    yield from power_of_two_plans(problem)
    yield from best(scored, 9)


def power_of_two_plans(problem: Problem) -> Iterator[Plan]:
    """Plans of the tier tile in which Triton moves vectors.

    It does so only if it sees that 16 divides N; else it moves element by element.
    """
    if problem.alignment == VECTOR_BYTES and problem.N & (problem.N - 1) == 0 and problem.N % 16 == 0 and not problem.wide:
        plan = Plan("tile", vector_elements=VECTOR_BYTES // problem.element_size)
        short = problem.N * problem.element_size <= 64 and problem.M * problem.N * problem.element_size >= LARGE_TILES
        # A program of one vector a thread moves 2 KiB; a launch of many is then as slow as the start of programs.
        yield from (replace(plan, rows=2), replace(plan, rows=4), plan) if short else (plan,)


def rows_plans(problem: Problem) -> Iterator[Plan]:
    """Plans with a row a program. Short rows have few vectors a thread, so that many programs share an SM; longer rows have more."""
    vector_words, vector_elements, base_alignment = vector_layouts(problem)[0]
    vectors = vectors_in_row(problem, vector_elements, base_alignment)
    most = (8 if problem.element_size == 4 else 16) // problem.reads
    ideal = (5 if problem.element_size == 4 else 6 if vectors <= 1280 else 12) / problem.reads
    scored: list[Scored] = []
    for threads in BLOCK_THREADS:
        tiles = math.ceil(vectors / threads)
        if most >= tiles:
            for registers in _register_limits(problem, tiles, threads):
                plan = Plan("rows", tiles, threads, vector_words, vector_elements, base_alignment, threads // 32, registers)
                scored.append((relative_distance(tiles, ideal), plan))
    yield from best(scored, 6)


def cluster_plans(problem: Problem) -> Iterator[Plan]:
    """Plans with a row a cluster.

    Many rows want enough bytes in flight on an SM, in few and small CTAs, because each CTA waits for the slowest of its cluster. Few rows
    want no idle SMs.
    """
    vector_words, vector_elements, base_alignment = vector_layouts(problem)[0]
    if not problem.clusters or vector_words != 4:
        return
    vectors = vectors_in_row(problem, vector_elements, base_alignment)
    scored: list[Scored] = []
    for ctas in CLUSTER_CTAS:
        chunk = chunk_vectors(vectors, ctas)
        for threads in (128, 256, 512):
            tiles = math.ceil(chunk / threads)
            all_tiles = tiles * problem.reads
            if all_tiles > (24 if threads == 256 else 16) or chunk * VECTOR_BYTES < 2048:
                continue
            more = 12 if problem.element_size == 2 and all_tiles >= 12 else 0
            more += 8 if problem.backward and all_tiles > 20 else 0
            for number, limit in enumerate(_register_limits(problem, tiles, threads, more)):
                most = _idle_registers(problem, threads, limit, ctas)
                plan = Plan("cluster", tiles, threads, 4, vector_elements, base_alignment, threads // 32, most, cluster_ctas=ctas)
                score = tiles * threads / chunk - 1 + 0.1 * number + 0.01 * max(0, all_tiles - 8) + 0.5 * (limit is None)
                scored.append((_cluster_score(problem, plan, vectors, score), plan))
    yield from best(scored, 16)


def _cluster_score(problem: Problem, plan: Plan, vectors: int, score: float) -> float:
    """`score`, and the part of a cluster plan's score that depends on how it fills the device."""
    ctas, threads, all_tiles = plan.cluster_ctas, plan.threads, plan.tiles * problem.reads
    busy = min(1.0, problem.M * ctas / problem.sms)  # SMs without work cost the most
    if busy < 1.0:
        return score + (ctas / 64 + 4 * (1 - busy) + relative_distance(all_tiles, 2) / 4)
    row = vectors * VECTOR_BYTES * problem.reads
    enough = min(IN_FLIGHT, problem.M * row / problem.sms)
    clusters_of_gpc = resident_programs(threads, plan.registers) * GPC_SMS // ctas
    missing = 4 * max(0.0, 1 - clusters_of_gpc * row / GPC_SMS / enough)
    if problem.M > problem.sms:
        return score + (ctas / 64 + threads / 2048 + missing)
    score += ctas / 256 + threads / 4096 + missing
    return score + (relative_distance(all_tiles, 2) / 10 if problem.element_size == 2 else 0)  # 16-bit rows compute the most


def split_plans(problem: Problem) -> Iterator[Plan]:
    """Plans with several programs a row.

    Many rows want as many bytes of a row in a program as an SM can hold of three or four programs. Few rows want to fill the device once,
    by short programs, because even a program's instructions come from memory. If the programs of a row would not all run at once, fewer
    programs read part of the row twice.
    """
    vector_words, vector_elements, base_alignment = vector_layouts(problem)[0]
    if vector_words != 4:
        return
    vectors = vectors_in_row(problem, vector_elements, base_alignment)
    if problem.clusters and not problem.backward:
        yield _likely_split_plan(problem, vectors, vector_elements, base_alignment)
    scored: list[Scored] = []
    for threads, tiles, smem_tiles, registers in _split_programs(problem):
        programs = max(1, resident_programs(threads, registers, smem_tiles * problem.reads))
        most = min(MAX_SPLIT_CTAS, problem.sms * programs)
        once = problem.sms * programs // problem.M
        capacity = threads * (tiles + smem_tiles)
        fewest = math.ceil(vectors / capacity)
        sms_per_row = problem.sms // problem.M
        for ctas in {min(fewest, most), min(fewest + 1, most), once, once // 2, sms_per_row, problem.sms // (2 * problem.M)}:
            if most < ctas or (2 if problem.backward else 1) > ctas or vectors // ctas < 64:
                continue
            chunk = chunk_vectors(vectors, ctas)
            needed = math.ceil(chunk / threads)
            read_twice = max(0, needed - tiles - smem_tiles) / needed
            if read_twice and most > ctas and once > ctas:
                continue
            busy = min(1.0, problem.M * ctas / problem.sms)
            score = 4 * (1 - busy) + 4 * read_twice + 0.2 * (ctas / 16) - programs * min(chunk, capacity) * VECTOR_BYTES / (1 << 20)
            score += (tiles + smem_tiles) / 8 if problem.M * ctas <= problem.sms * programs else 0
            used, smem_used = min(tiles, needed), min(smem_tiles, needed - min(tiles, needed))
            layout = 4, vector_elements, base_alignment
            limit = _idle_registers(problem, threads, registers, ctas)
            plan = Plan("split", used, threads, *layout, threads // 32, limit, split_ctas=ctas, smem_tiles=smem_used)
            scored.append((score, plan))
    yield from best(scored, 24)


def _likely_split_plan(problem: Problem, vectors: int, vector_elements: int, base_alignment: int) -> Plan:
    """The plan that `tune` found fastest on an H200, or nearly so: one to five programs an SM, in registers or half in shared memory."""
    layout = 4, vector_elements, base_alignment
    bytes_per_sm = problem.M * vectors * VECTOR_BYTES / problem.sms
    if 128 * 1024 < bytes_per_sm <= 168 * 1024 and problem.element_size == 2 and problem.M >= 8:  # five programs an SM, in registers
        ctas = min(max(math.ceil(vectors / (128 * 16)), 5 * problem.sms // problem.M), MAX_SPLIT_CTAS)
        return Plan("split", math.ceil(chunk_vectors(vectors, ctas) / 128), 128, *layout, 4, 96, split_ctas=ctas)
    if bytes_per_sm > 128 * 1024:
        fewest, most = fewest_programs_plan(problem, layout, vectors), min(MAX_SPLIT_CTAS, LONG_PROGRAMS * problem.sms)
        return fewest if fewest.split_ctas <= most else programs_plan(problem, layout, vectors, most)
    one, two = (32, 128) if problem.M == 1 else (16, 64) if problem.M < 8 else (16, 32)  # KiB an SM
    programs = 1 if bytes_per_sm <= one * 1024 else 2 if bytes_per_sm <= two * 1024 else 4
    ctas = max(2, min(programs * problem.sms // problem.M, vectors * VECTOR_BYTES // 8192, MAX_SPLIT_CTAS))
    threads = 512 if programs <= 2 and vectors // ctas >= 1000 else 256
    tiles = math.ceil(chunk_vectors(vectors, ctas) / threads)
    registers = _idle_registers(problem, threads, _register_limits(problem, tiles, threads, 8)[0], ctas)
    return Plan("split", tiles, threads, *layout, threads // 32, registers, split_ctas=ctas)


def register_tiles(problem: Problem) -> int:
    """The most tiles of a program in registers. With 8, ptxas spills 8 bytes of float32 rows for sm_100."""
    return LONG_TILES - (not problem.hopper and problem.element_size == 4)


def fewest_programs_plan(problem: Problem, layout: Layout, vectors: int) -> Plan:
    """The plan with the fewest programs that hold a row of so many vectors."""
    capacity = LONG_THREADS * (register_tiles(problem) + LONG_SMEM_TILES)
    return programs_plan(problem, layout, vectors, math.ceil(vectors / capacity))


def programs_plan(problem: Problem, layout: Layout, vectors: int, ctas: int) -> Plan:
    """The plan with `ctas` programs for a row. What they cannot hold, they read twice."""
    tiles, most = math.ceil(chunk_vectors(vectors, ctas) / LONG_THREADS), register_tiles(problem)
    in_smem = min(LONG_SMEM_TILES, max(0, tiles - most))
    return Plan("split", min(most, tiles), LONG_THREADS, *layout, LONG_THREADS // 32, 64, split_ctas=ctas, smem_tiles=in_smem)


def _idle_registers(problem: Problem, threads: int, registers: int | None, ctas: int) -> int | None:
    """`registers`, or a higher limit up to 64 with which an SM holds at least twice as many programs as it gets, at `ctas` a row."""
    needed = 2 * math.ceil(problem.M * ctas / problem.sms)
    most = max((limit for limit in (40, 48, 56, 64) if resident_programs(threads, limit) >= needed), default=0)
    return registers and max(_free_registers(threads, registers), most)


def _free_registers(threads: int, registers: int) -> int:
    """The highest limit, a multiple of 8, with which an SM holds as many programs as with `registers`."""
    return SM_REGISTERS // (max(1, resident_programs(threads, registers)) * threads) // 8 * 8


def _split_programs(problem: Problem) -> list[tuple[int, int, int, int]]:
    """(threads, tiles, smem_tiles, registers) of programs worth trying; tiles are those of each input."""
    if not problem.clusters:  # with more tiles or fewer registers, ptxas spills on sm_80 to sm_89 and sm_120
        return [(256, 4, 0, 80), (256, 2, 0, 48)] if problem.backward else [(512, 8, 0, 64), (256, 8, 0, 64)]
    if problem.backward:
        return [(256, 8, 0, 128), (512, 4, 0, 64), (256, 4, 0, 64), (512, 2, 0, 40), (512, 1, 0, 32), (128, 8, 10, 96), (128, 6, 8, 80)]
    return [
        (512, 24, 5, 128), (256, 24, 11, 128), (128, 16, 14, 96), (256, 8, 11, 64), (256, 8, 8, 64), (256, 16, 11, 80), (256, 12, 10, 80),
        (512, 8, 5, 64), (256, 16, 0, 80), (256, 8, 0, 56), (512, 4, 0, 40), (512, 2, 0, 32), (1024, 4, 0, 32), (1024, 2, 0, 32),
        (256, 4, 0, 40), (512, 8, 0, 64), (256, 2, 0, 40), (128, 16, 0, 96), (128, 12, 10, 80),
    ]  # fmt: skip


def staged_plans(problem: Problem) -> Iterator[Plan]:
    """Plans for rows of at most STAGED_ROW bytes back to back, which no 16-byte vector can move row by row.

    A power of two of lanes shares a row, with about ten elements each: the reduction over lanes then costs less than the elements do. A
    block has about BLOCK_BYTES, or less so that each SM has several: `_most_bytes`.
    """
    row = problem.N * problem.element_size
    if not _can_be_staged(problem) or row > STAGED_ROW:
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
    least = LEAST_STAGED if problem.alignment > 2 else LEAST_STAGED_HALF_WORDS
    short = problem.N * problem.element_size <= SMALL_ROW
    large = problem.input_bytes >= (least if short else SMALL_STAGED)
    return problem.contiguous and problem.alignment < VECTOR_BYTES and large


def _most_bytes(problem: Problem) -> int:
    """Bytes of a block in each input, with which each SM has BLOCKS or SMALL_BLOCKS."""
    blocks = SMALL_BLOCKS if problem.input_bytes < SMALL_STAGED else BLOCKS
    return problem.M * problem.N * problem.element_size // (blocks * problem.sms)


def _staged_rows(problem: Problem, plan: Plan, size: int) -> int:
    """Rows of about `size` bytes in whole passes. More where accesses of 2 bytes then share banks less: `row_distance`.

    A block is whole sectors, since two SMs would write a shared one. It is only whole vectors if blocks of whole sectors
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


def vector_layouts(problem: Problem) -> list[tuple[int, int, int]]:
    """(vector_words, vector_elements, base_alignment) that can move rows of this alignment, the likely fastest first."""
    elements = VECTOR_BYTES // problem.element_size
    if problem.alignment == VECTOR_BYTES:
        return [(4, elements, 0)]
    row = problem.N * problem.element_size
    if row == 4 and problem.alignment >= 4:
        return [(1, problem.N, 0)]
    with_edges = (4, elements, VECTOR_BYTES if row <= SHORT_ROW else LINE_BYTES)
    if row > SHORT_ROW:
        return [with_edges]
    if problem.alignment >= 4:
        words = problem.alignment // 4
        whole = (words, words * 4 // problem.element_size, 0)
        forward = problem.element_size == 2 and not (problem.backward or problem.wide or problem.loss)
        narrow = forward and words == 1 and row > NARROW_ROW and problem.M >= MANY_ROWS * problem.sms
        return [with_edges, whole] if narrow or row > 1024 else [whole, with_edges]
    return [(2, 4, 8), with_edges, (1, 2, 4)] if problem.N <= 256 else [with_edges, (2, 4, 8), (1, 2, 4)]


def _register_limits(problem: Problem, tiles: int, threads: int, more: int = 0) -> list[int | None]:
    """Register limits a thread: enough for the tiles and `more`, and the next larger one.

    With more registers than that, an SM would hold fewer programs. [None] if no limit is large enough.
    """
    cached = tiles <= 2 and problem.element_size == 2 and not problem.backward  # exponentials are cached
    for_tiles = 4 * tiles * problem.reads * (2 if cached else 1)
    least = for_tiles + more + (20 if 16 < for_tiles < 64 else 16)
    least += 4 if problem.alignment < VECTOR_BYTES else 0
    least += 8 if problem.backward and problem.element_size == 2 else 0
    limits = [limit for limit in (32, 40, 48, 56, 64, 72, 80, 96, 128) if limit >= least and limit * threads <= SM_REGISTERS]
    return [*list(dict.fromkeys(_free_registers(threads, limit) for limit in limits))[:2]] or [None]


def _program_sizes(threads: int) -> Iterator[tuple[int, int]]:
    """(warps, rows) of a program whose rows have so many threads each: one row, or rows that fill its warps once or several times."""
    if threads >= 32:
        yield threads // 32, 1
        if threads == 32:
            yield from ((2, 2), (4, 4), (1, 2))
        return
    for warps in (1, 2, 4):
        for times in (1, 2, 4):
            yield warps, 32 * warps // threads * times
    if threads == 1:
        yield 8, 256


def relative_distance(value: float, ideal: float) -> float:
    return abs(value / ideal - 1) if value > ideal else abs(ideal / value - 1)


def best(scored: list[Scored], count: int) -> list[Plan]:
    return [plan for _, plan in sorted(scored, key=lambda pair: pair[0])[:count]]
