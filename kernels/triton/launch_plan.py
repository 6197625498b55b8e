"""What the choice of a launch depends on (`Problem`), what is chosen (`Plan`)."""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass, replace

VECTOR_BYTES = 16
SECTOR_BYTES = 32  # that memory reads or writes at once
LINE_VECTORS = 8  # vectors of a 128-byte line.
KEEP_IN_L2_BYTES = 32 << 20  # of all inputs: half of an H200's L2
NO_POLICY, KEEP, LEAVE_FIRST = range(3)
"""Policies of loads for L2: none, evict_last, evict_first."""
ONE_WAVE_BYTES = {False: 13 << 20, True: 30 << 20}
"""Of all inputs of a forward and of a gradient: from here on, rows of the split tier that the device holds at once are staggered.

From here on, some plans have the policy LEAVE_FIRST too.
"""
LEAVE_FIRST_BYTES = {False: 48 << 20, True: 60 << 20}
"""Of all inputs of a forward and of a gradient, on MEASURED_SMS. Larger launches were slower with LEAVE_FIRST.

Larger forwards were measured with other delays only.
"""
LEAVE_FIRST_THREADS = 256  # of a forward's program. Forwards with 128 threads were not faster with LEAVE_FIRST.
LEAVE_FIRST_WAVES = 1.2  # of a forward's programs. Launches of 1.21 and 1.25 waves were not faster with LEAVE_FIRST.
MEASURED_SMS = 132  # of an H200 and an H100.
FEWEST_ROWS = 5  # of one wave: fewer were not timed with LEAVE_FIRST or with these delays. One row may be read twice.


@dataclass(frozen=True)
class Problem:
    """What the choice of a plan depends on: the operands' shape and layout, and the device."""

    backward: bool
    M: int  # rows.
    N: int  # columns.
    element_size: int  # bytes.
    alignment: int  # bytes: the largest power of two, up to 16, that divides all operands' addresses, row strides and row lengths.
    congruent: bool  # all operands have one dtype, and each row has the same offset from a 16-byte boundary in all of them.
    sms: int  # of the device.
    clusters: bool  # the device has clusters of 16 CTAs (Hopper or later), and the kernels are not interpreted.
    bytes_per_cycle: float = 0.0  # peak of memory, per cycle of an SM; 0 if unknown.
    hopper: bool = False  # compute capability 9.0.
    contiguous: bool = False  # all operands have one dtype, and their rows lie back to back from a 16-byte boundary on.
    wide: bool = False  # a forward whose results are float32 and whose inputs have 16 bits. `element_size` is that of the inputs.

    @property
    def reads(self) -> int:
        """How many tensors the kernel reads."""
        return 2 if self.backward else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of one input."""
        return self.N * self.element_size

    @property
    def input_bytes(self) -> int:
        """Bytes of all tensors that the kernel reads."""
        return self.M * self.N * self.element_size * self.reads

    @property
    def keep_in_l2(self) -> bool:
        """Whether the lines that the kernel reads shall stay in L2 longer than the lines that it writes.

        Written lines then leave L2 soon after the write, presumably in that order, which memory takes faster.
        This has been measured on Hopper only. Small launches go without: their inputs would survive a
        flush such as do_bench's, and the kernel would only seem fast. Some plans of the split tier have another policy: `policy`.
        """
        return self.hopper and self.input_bytes >= KEEP_IN_L2_BYTES

    def policy(self, plan: Plan) -> int:
        """The policy for L2 of the loads of a plan's kernel.

        In split plans of gradients between two sizes, and of forwards of at most LEAVE_FIRST_WAVES, lines that are read leave L2 first.
        What earlier kernels wrote then stays in L2, which does not write it to memory meanwhile.
        """
        if plan.tier == "split" and self._may_leave_first and (self.backward or self._nearly_one_wave(plan)):
            return LEAVE_FIRST
        return KEEP if self.keep_in_l2 else NO_POLICY

    @property
    def _may_leave_first(self) -> bool:
        most = LEAVE_FIRST_BYTES[self.backward] * min(1, self.sms / MEASURED_SMS)
        return self.hopper and self.M >= FEWEST_ROWS and ONE_WAVE_BYTES[self.backward] <= self.input_bytes < most

    def _nearly_one_wave(self, plan: Plan) -> bool:
        """Whether a forward's plan has at most LEAVE_FIRST_WAVES of programs with LEAVE_FIRST_THREADS, which read no part of a row twice.

        Forwards with results of another size were not measured.
        """
        resident = self.sms * resident_programs(plan.threads, plan.registers, plan.smem_tiles)
        holds = chunk_of(self, plan) <= plan.threads * (plan.tiles + plan.smem_tiles)
        return plan.threads == LEAVE_FIRST_THREADS and not self.wide and holds and self.M * plan.split_ctas <= LEAVE_FIRST_WAVES * resident


@dataclass(frozen=True)
class Plan:
    """How a launch is done. A tile is one vector of each thread (`packed_io.py`). The tiers tile and loop use only `vector_elements`."""

    tier: str  # tile or loop (`generic.py`), staged (`staged.py`), rows, cluster or split (`forward.py`), stream (`loss_stream.py`).
    tiles: int = 1  # of each input in registers. In tier staged, units a lane.
    threads: int = 32  # of a row (rows, staged), or of a program (cluster, split).
    vector_words: int = 4  # 4-byte words of a vector.
    vector_elements: int = 1  # elements of a vector, or of a staged unit. In tier tile, 1 or a thread's elements of a short aligned row.
    base_alignment: int = 0  # bytes of the boundary from which a row's vectors are counted. 0: rows start at a vector.
    warps: int = 1  # of a program.
    registers: int | None = None  # limit for a thread; fewer registers let an SM hold more programs. None: no limit.
    rows: int = 1  # of a program. In tier tile, how many times as many rows as usual a program has.
    cluster_ctas: int = 1  # CTAs of a cluster; they share a row.
    split_ctas: int = 1  # programs anywhere in the grid that share a row.
    smem_tiles: int = 0  # tiles of each input that wait in shared memory.


def for_wide_results(plan: Plan) -> Plan:
    """The same plan with vectors of 8 bytes of inputs, whose float32 results are 16 bytes: a warp then writes whole lines."""
    return replace(plan, tiles=2 * plan.tiles, vector_words=2, vector_elements=4) if plan.vector_words == 4 else plan


SM_REGISTERS, SM_THREADS, SM_SHARED = 65536, 2048, 227 * 1024
PROGRAM_SHARED = 2048  # bytes that Triton's reductions and the driver take of each program's shared memory.
WARP = 32
BANKS = 32  # of an SM's shared memory, of 4 bytes each.
GPC_SMS = 18  # at most, of Hopper. The CTAs of a cluster share a GPC.
UNLIMITED_REGISTERS = 168  # estimate for a thread of a plan without a limit.


def resident_programs(threads: int, registers: int | None, smem_tiles: int = 0) -> int:
    """Programs that an SM holds at once, each with `smem_tiles` tiles of 16-byte vectors in shared memory; 0 if none fits."""
    by_registers = SM_REGISTERS // ((registers or UNLIMITED_REGISTERS) * threads)
    return min(by_registers, SM_THREADS // threads, SM_SHARED // (smem_tiles * threads * 16 + PROGRAM_SHARED))


def staged_bytes(problem: Problem, plan: Plan) -> int:
    """Bytes of one tensor's rows in a program of a staged plan."""
    return plan.rows * problem.N * problem.element_size


def bank_turns(row: int, unit: int, lanes: int, distance: int) -> float:
    """Turns that shared memory takes for an access of a warp: the most words that one of its banks has, on average of two first rows.

    Each lane accesses `unit` bytes. `lanes` of them share a row of `row` bytes, and the rows of a warp are `distance` rows apart.
    """
    turns = 0
    for first in (0, row):
        words = {(first + i * distance * row + lane * unit) // 4 for i in range(WARP // lanes) for lane in range(lanes)}
        turns += max(Counter(word % BANKS for word in words).values())
    return turns / 2


def _distances(lanes: int, rows: int) -> list[int]:
    times = rows * lanes // WARP
    return [1 << i for i in range(min(10, (times & -times).bit_length()))]


def free_distance(row: int, unit: int, lanes: int, rows: int) -> int:
    """The least distance of which `bank_turns` is 1, as no two rows of a warp share a bank; 0 if there is none."""
    # Rows that start at half of a word take a part of one more word. Rows of 2 bytes share words instead.
    least, line = min(row, lanes * unit + row % 4), 4 * BANKS
    rows_apart = range(row, row * WARP // lanes, row)
    apart = (d for d in _distances(lanes, rows) if all(least <= d * start % line <= line - least for start in rows_apart))
    return next(apart, 0)


@functools.cache
def row_distance(row: int, unit: int, lanes: int, rows: int) -> tuple[float, int]:
    """The fewest `bank_turns`, and with how many rows between the rows of a warp. It is a power of two; a staged plan has `rows`.

    If the starts of these rows differ by about a multiple of all banks, their lanes wait for each other.
    """
    free = free_distance(row, unit, lanes, rows)
    return (1, free) if free else min((bank_turns(row, unit, lanes, distance), distance) for distance in _distances(lanes, rows))


def staged_layout(problem: Problem, plan: Plan) -> tuple[int, ...]:
    """What the kernels of tier staged take after M and N: the distance of a warp's rows; then the constants, without LOG."""
    rows = WARP * plan.warps // plan.threads  # at once
    block = math.ceil(staged_bytes(problem, plan) / (VECTOR_BYTES * WARP * plan.warps)) * VECTOR_BYTES * WARP * plan.warps
    size = problem.element_size
    _, distance = row_distance(problem.N * size, plan.vector_elements * size, plan.threads, plan.rows)
    return distance, rows, plan.rows // rows, plan.tiles, plan.threads, plan.vector_elements == 2, block


def vectors_in_row(problem: Problem, vector_elements: int, base_alignment: int) -> int:
    """The most vectors that a row touches, counted from its base."""
    if base_alignment == 0:
        return problem.N // vector_elements
    return (problem.N + base_alignment // problem.element_size - 1) // vector_elements + 1


def chunk_vectors(vectors: int, chunks: int) -> int:
    """Vectors of each of `chunks` chunks of a row, in whole lines."""
    return math.ceil(vectors / chunks / LINE_VECTORS) * LINE_VECTORS


def chunk_of(problem: Problem, plan: Plan) -> int:
    """Vectors of each program's chunk of a row."""
    vectors = vectors_in_row(problem, plan.vector_elements, plan.base_alignment)
    return chunk_vectors(vectors, max(plan.cluster_ctas, plan.split_ctas))
