"""Parts of rows that several programs share in a pass of losses that only reads x (`loss_stream.reduce_row`), and a row's results."""

from __future__ import annotations

import triton
import triton.language as tl

from .loss_ops import capped, rebased, row_logprob, row_loss, store_first
from .softmax_ops import MINUS_INFINITY, barrier_zero, finite_or_zero

FIELDS = tl.constexpr(4)  # of a partial result


@triton.jit
def place(parts, chunk, before, last_chunk, FACTOR: tl.constexpr, MAX_PARTS: tl.constexpr):
    """(row, rank, parts, chunk, slot) of this program. The last three are of its row: `slot` is the place of its first partial result.

    With parts of 1, slots are counted from `before`. Programs of whole rows have a negative one. The parameters are those of `reduce_row`.
    """
    program = tl.program_id(0)
    if FACTOR == 1:
        if MAX_PARTS == 1:  # a division by `parts` would take longer
            return program.to(tl.int64), program * 0, parts, chunk, program
        else:
            row = (program // parts).to(tl.int64)
            return row, program % parts, parts, chunk, row * parts
    else:
        beyond = program - before
        last = beyond >= 0
        whole = tl.where(last, before + beyond // FACTOR, program)  # the program that would read this part with a FACTOR of 1
        if MAX_PARTS == FACTOR:
            rank = tl.where(last, beyond % FACTOR, 0)
            return whole.to(tl.int64), rank, tl.where(last, FACTOR, 1), tl.where(last, last_chunk, chunk), beyond - rank
        else:
            rank = tl.where(last, whole % parts * FACTOR + beyond % FACTOR, whole % parts)
            shared = tl.where(last, parts * FACTOR, parts)
            return (whole // parts).to(tl.int64), rank, shared, tl.where(last, last_chunk, chunk), program - rank


@triton.jit
def merge_parts(
    first_ptr, second_ptr, third_ptr, partials, counter, row, slot, rank, parts, program_m, program_s, program_d, program_count,
    x_target, N, target, ignore_index, hot, share, z_loss, softcap, inverse,
    MAX_PARTS: tl.constexpr, LOGPROB: tl.constexpr, THIRD: tl.constexpr,
):  # fmt: skip
    """Stores a program's partial result. The last of the row's `parts` programs stores the results of the row, and clears its counter."""
    slot = slot.to(tl.int64)
    at = (partials + (slot + rank + tl.arange(0, 1)) * FIELDS)[:, None]
    always = (row + tl.arange(0, 1) >= 0)[:, None]
    store_first(at, program_m, always)
    store_first(at + 1, program_s, always)
    if THIRD != "":
        store_first(at + 2, program_d, always)
        store_first(at + 3, program_count, always)
    finished = tl.atomic_add(counter + barrier_zero(N), 1)
    if finished == parts - 1:
        peer = tl.arange(0, MAX_PARTS)
        there = peer < parts
        slots = partials + (slot + peer) * FIELDS
        part_m = tl.load(slots, mask=there, other=MINUS_INFINITY, volatile=True)
        part_s = tl.load(slots + 1, mask=there, other=0.0, volatile=True)
        row_m = tl.max(part_m, 0)
        part_d = part_s * 0
        part_count = part_d
        if THIRD != "":
            part_d = tl.load(slots + 2, mask=there, other=0.0, volatile=True)
            part_count = tl.load(slots + 3, mask=there, other=0.0, volatile=True)
        part_s, part_d = rebased(part_m, part_s, part_d, part_count, finite_or_zero(row_m), THIRD)
        row_s = tl.sum(part_s, 0)
        row_d = tl.sum(part_d, 0)
        store_results(
            first_ptr, second_ptr, third_ptr, row, row_m, row_s, row_d, x_target, N, target,
            ignore_index, hot, share, z_loss, softcap, inverse, LOGPROB,
        )  # fmt: skip
        tl.store(counter, 0)


@triton.jit
def store_value(pointer, value):
    """Stores a number, or that of the first of a row's threads."""
    if len(value.shape) == 2:
        store_first(pointer, value, pointer.to(tl.int64) != 0)
    else:
        tl.store(pointer, value)


@triton.jit
def store_results(
    first_ptr, second_ptr, third_ptr, row, m, s, d, x_target, N, target, ignore_index, hot, share, z_loss, softcap, inverse,
    LOGPROB: tl.constexpr,
):  # fmt: skip
    """Stores the results of a row. Its sums are numbers, or all threads have them, (1, THREADS); `row` is a number, or (1)."""
    at = row
    if len(m.shape) == 2:
        at = row[:, None]
    if LOGPROB:
        logprob, entropy, lse = row_logprob(m, s, d, x_target, N, target)
        store_value(first_ptr + at, logprob)
        store_value(second_ptr + at, entropy)
        store_value(third_ptr + at, lse)
    else:
        z_target = capped(x_target, softcap, inverse)
        loss, lse = row_loss(m, s, d, z_target, N, target, ignore_index, hot, share, z_loss)
        store_value(first_ptr + at, loss)
        if third_ptr is None:
            store_value(second_ptr + at, lse)
        else:
            store_value(second_ptr + at, m)
            store_value(third_ptr + at, s)
