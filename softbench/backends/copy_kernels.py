"""A Triton kernel that reads and writes the bytes of a step of a pass in one launch, for the yardstick.

Each program moves its part of every tensor. There is a program for each part, without a loop and without cache hints, which were slower
(`docs/kernels/cuda.md`). A program stores the sum of its sources to each result. It combines the other reads to a few words. A word is
stored only if it is NEVER. The kernel gets NEVER as an argument. No word of 8 or 16 bits has this value: a compiler that knew it would
drop their loads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl

from softbench.core.case import Case
from softbench.kernels.triton.packed_io import rounded
from softbench.ops.operation import Operation
from softbench.ops.yardstick import Step, read_bytes

BYTES = 8192
"""Bytes of a program's part of the largest tensor."""
WARPS = 4
PROGRAMS = 1024
"""Programs that a step has at least; the parts of small tensors are shorter."""
LEAST_BYTES = 1024
"""Bytes of the shortest part of the largest tensor."""
WORDS = 4
"""Words to which a thread combines the reads without a result: a vector of 16 bytes."""
TYPES = {4: tl.int32, 2: tl.int16, 1: tl.int8}
"""The words of these reads, by their bytes."""
NEVER = 0x5EED1E55
MASKED = tl.constexpr(256)
"""Parts of fewer elements are masked in each program."""


@triton.jit
def _load(pointer, program, count, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """A program's part of a tensor; zeros where the tensor has ended."""
    places = program * BLOCK + tl.arange(0, BLOCK)
    if WHOLE and BLOCK >= MASKED:
        return tl.load(pointer + places)
    else:
        return tl.load(pointer + places, places < count, 0)


@triton.jit
def _store(pointer, values, program, count, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """Writes a program's part of a tensor."""
    places = program * BLOCK + tl.arange(0, BLOCK)
    if WHOLE and BLOCK >= MASKED:
        tl.store(pointer + places, values)
    else:
        tl.store(pointer + places, values, places < count)


@triton.jit
def _combine(others, scratch, never, program, counts, TYPES: tl.constexpr, BLOCKS: tl.constexpr, PIECE: tl.constexpr, WHOLE: tl.constexpr):
    """Reads the parts of the tensors that no result depends on. `counts` are numbers of words of TYPES."""
    words = tl.zeros([PIECE], tl.int32)
    for i in tl.static_range(len(TYPES)):
        pointer = others[i].to(tl.pointer_type(TYPES[i]), bitcast=True)
        if BLOCKS[i] < PIECE:
            few = _load(pointer, program, counts[i], BLOCKS[i], WHOLE).to(tl.int32)
            tl.store(scratch + tl.arange(0, BLOCKS[i] + 0), few, few == never)
        else:
            for piece in tl.static_range(BLOCKS[i] // PIECE):
                words ^= _load(pointer, program * (BLOCKS[i] // PIECE) + piece, counts[i], PIECE, WHOLE).to(tl.int32)
    tl.store(scratch + tl.arange(0, PIECE), words, words == never)


@triton.jit
def _add(sources, results, program, counts, SOURCES: tl.constexpr, RESULTS: tl.constexpr, BLOCKS: tl.constexpr, WHOLE: tl.constexpr):
    """Stores the sums. Those of number i have the sources SOURCES[i] to SOURCES[i + 1], and the results RESULTS[i] to RESULTS[i + 1]."""
    for i in tl.static_range(len(BLOCKS)):  # + 0 makes constants of the tuples' numbers, which Triton 3.6 requires
        if SOURCES[i] == SOURCES[i + 1]:
            total = tl.zeros([BLOCKS[i] + 0], tl.int32)
        else:
            total = _load(sources[SOURCES[i]], program, counts[i], BLOCKS[i], WHOLE)
            for j in tl.static_range(SOURCES[i] + 1, SOURCES[i + 1] + 0):
                value = _load(sources[j], program, counts[i], BLOCKS[i], WHOLE)
                if total.dtype.is_floating():
                    total = total.to(tl.float32) + value.to(tl.float32)
                else:
                    total = total ^ value
        for j in tl.static_range(RESULTS[i] + 0, RESULTS[i + 1] + 0):
            if total.dtype == tl.float32:
                _store(results[j], rounded(total, results[j].dtype.element_ty), program, counts[i], BLOCKS[i], WHOLE)
            else:
                _store(results[j], total, program, counts[i], BLOCKS[i], WHOLE)


@triton.jit
def _move(
    sources, results, others, scratch, never, sum_counts, other_counts, whole,
    SOURCES: tl.constexpr, RESULTS: tl.constexpr, SUM_BLOCKS: tl.constexpr,
    TYPES: tl.constexpr, OTHER_BLOCKS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """Programs below `whole` have whole parts of the tensors whose parts are not MASKED."""
    program = tl.program_id(0).to(tl.int64)
    if program < whole:
        if len(TYPES):
            _combine(others, scratch, never, program, other_counts, TYPES, OTHER_BLOCKS, PIECE, True)
        _add(sources, results, program, sum_counts, SOURCES, RESULTS, SUM_BLOCKS, True)
    else:
        if len(TYPES):
            _combine(others, scratch, never, program, other_counts, TYPES, OTHER_BLOCKS, PIECE, False)
        _add(sources, results, program, sum_counts, SOURCES, RESULTS, SUM_BLOCKS, False)


class Launch:
    """The launch of a step. A call reads and writes the tensors of a pass."""

    def __init__(self, op: Operation, case: Case, step: Step, names: Sequence[str], *, most: int = BYTES, warps: int = WARPS) -> None:
        """`names` are those of the tensors of a call, in order; `most` is the length of a part, in bytes."""
        groups = [one.sources for one in step.sums], [one.results for one in step.sums]
        self.sources, self.results = ([names.index(name) for group in side for name in group] for side in groups)
        self.others = [names.index(name) for name in step.others]
        sizes = {name: op.tensor(name, case).bytes(case) for group in (*groups[0], *groups[1]) for name in group}
        sizes |= {name: read_bytes(op, case, name) for name in step.others}
        widths = [math.gcd(4, sizes[name]) for name in step.others]
        sum_counts = tuple(math.prod(op.tensor(one.results[0], case).shape(case)) for one in step.sums)
        other_counts = tuple(sizes[name] // width for name, width in zip(step.others, widths, strict=True))
        largest = max(sizes.values())
        part = max(LEAST_BYTES, min(most, triton.next_power_of_2(largest // PROGRAMS)))
        sum_blocks, other_blocks = (
            tuple(triton.next_power_of_2(-(-count // -(-largest // part))) for count in counts) for counts in (sum_counts, other_counts)
        )
        blocks = [*zip(sum_counts, sum_blocks, strict=True), *zip(other_counts, other_blocks, strict=True)]
        self.grid = (max(-(-count // block) for count, block in blocks),)
        self.counts = sum_counts, other_counts, min((count // block for count, block in blocks if block >= MASKED.value), default=0)
        self.options: dict[str, Any] = {
            "SOURCES": _starts(groups[0]),
            "RESULTS": _starts(groups[1]),
            "SUM_BLOCKS": sum_blocks,
            "TYPES": tuple(TYPES[width] for width in widths),
            "OTHER_BLOCKS": other_blocks,
            "PIECE": WORDS * 32 * warps,
            "num_warps": warps,
        }
        self.scratch: torch.Tensor | None = None

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        if self.scratch is None:
            self.scratch = torch.zeros(self.options["PIECE"], dtype=torch.int32, device=tensors[0].device)
        sources, results, others = (
            tuple(tensors[place].contiguous() for place in side) for side in (self.sources, self.results, self.others)
        )
        _move[self.grid](sources, results, others, self.scratch, NEVER, *self.counts, **self.options)


def _starts(groups: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Where each group begins in all of them together, and where the last one ends."""
    return (0, *accumulate(map(len, groups)))
