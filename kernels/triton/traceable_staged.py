"""Kernels of the tier staged that compilers trace: `forward_staged` and `backward_staged` without assembly that has side effects.

Each assembly counts as pure here, and tokens keep the order: zeros that no compiler knows. A copy to shared memory returns one, and what
must come later has it in its address. A result depends on all that its lane has read, so writes come later too. So the order of loads,
barriers and stores in PTX is that of `staged.py`; a test compares both.

The kernels store by Triton's own stores, so a compiler sees that they write the result only. It sees no reads, since assembly reads the
inputs; torch takes dependencies from a kernel's inputs. All threads of a program take the same branches. Where tensors do not start at a
16-byte boundary, a program moves its block unit by unit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .softmax_ops import gradient
from .staged import (
    BARRIER,
    COPY,
    COPY_HALF,
    COPY_WORD,
    READ_LAST_HALF,
    READ_LAST_WORD,
    allocate,
    read_units,
    row_dot,
    row_statistics,
    rows_of_pass,
    unit_results,
    write_unit,
)
from .traceable_rows import VECTOR_MASK

COPIED = tl.constexpr("cp.async.commit_group; cp.async.wait_all; bar.sync 0; mov.b32 $0, $1;")
READ_VECTOR = tl.constexpr("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];")


@triton.jit
def begin_copies(smem, block, size, token, BYTES: tl.constexpr, THREADS: tl.constexpr):
    """Begins to copy `size` bytes, at most BYTES, from pointer `block`. Returns `token` plus those of the copies, (THREADS,)."""
    WIDTH: tl.constexpr = block.dtype.element_ty.primitive_bitwidth // 8
    COPY_UNIT: tl.constexpr = COPY_WORD if WIDTH == 4 else COPY_HALF
    t = tl.arange(0, THREADS)
    if block.to(tl.int64) & VECTOR_MASK == 0:
        from_block = block.to(tl.int64) + t * 16
        for begin in tl.static_range(0, BYTES, THREADS * 16):
            inputs = [smem + t * 16 + begin, from_block + begin, (size - t * 16 >= begin + 16).to(tl.int32)]
            token += tl.inline_asm_elementwise(COPY, "=r,r,l,r", inputs, dtype=tl.int32, is_pure=True, pack=1)
        rest = (size & -16) + t * WIDTH
        inputs = [smem + rest, block.to(tl.int64) + rest, (rest < size).to(tl.int32)]
        token += tl.inline_asm_elementwise(COPY_UNIT, "=r,r,l,r", inputs, dtype=tl.int32, is_pure=True, pack=1)
    else:
        for begin in range(0, BYTES, THREADS * WIDTH):
            at = begin + t * WIDTH
            inputs = [smem + at, block.to(tl.int64) + at, (at < size).to(tl.int32)]
            token += tl.inline_asm_elementwise(COPY_UNIT, "=r,r,l,r", inputs, dtype=tl.int32, is_pure=True, pack=1)
    return token


@triton.jit
def end_copies(token, ROWS: tl.constexpr, LANES: tl.constexpr):
    """The token of what reads the copies of all threads, (ROWS, LANES)."""
    token = tl.inline_asm_elementwise(COPIED, "=r,r", [token], dtype=tl.int32, is_pure=True, pack=1)
    return tl.reshape(token, (ROWS, LANES))


@triton.jit
def unit_at(smem, token, at, size, WIDTH: tl.constexpr, DTYPE: tl.constexpr):
    """The elements at bytes `at` of shared memory, of those before `size`."""
    READ: tl.constexpr = READ_LAST_HALF if WIDTH == 2 else READ_LAST_WORD
    inputs = [smem + token + at, (at < size).to(tl.int32)]
    unit = tl.inline_asm_elementwise(READ, "=&r,r,r", inputs, dtype=tl.int32, is_pure=True, pack=1)
    return unit.to(DTYPE, bitcast=True) if WIDTH == 4 else unit.to(tl.int16).to(DTYPE, bitcast=True)


@triton.jit
def store_block(smem, out_ptr, offset, size, done, BYTES: tl.constexpr, THREADS: tl.constexpr):
    """Stores `size` bytes, at most BYTES, at byte `offset` of `out_ptr`, a multiple of 16. `done`: the tokens of all writes, (THREADS,)."""
    DTYPE: tl.constexpr = out_ptr.dtype.element_ty
    WIDTH: tl.constexpr = DTYPE.primitive_bitwidth // 8
    token = tl.inline_asm_elementwise(BARRIER, "=r,r", [done], dtype=tl.int32, is_pure=True, pack=1)
    t = tl.arange(0, THREADS)
    if out_ptr.to(tl.int64) & VECTOR_MASK == 0:
        words = tl.multiple_of(out_ptr.to(tl.pointer_type(tl.int32), bitcast=True), 16) + (offset // 16) * 4  # else stores are narrower
        for begin in tl.static_range(0, BYTES, THREADS * 16):
            a, b, c, d = tl.inline_asm_elementwise(
                READ_VECTOR, "=r,=r,=r,=r,r", [smem + token + t * 16 + begin],
                dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
            )  # fmt: skip
            vector = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (THREADS, 4))
            place = words + (t * 4 + begin // 4)[:, None] + tl.arange(0, 4)[None, :]
            tl.store(place, vector, mask=(size - t * 16 >= begin + 16)[:, None])
        rest = (size & -16) + t * WIDTH
        tl.store(out_ptr + offset // WIDTH + rest // WIDTH, unit_at(smem, token, rest, size, WIDTH, DTYPE), mask=rest < size)
    else:
        for begin in range(0, BYTES, THREADS * WIDTH):
            at = begin + t * WIDTH
            tl.store(out_ptr + offset // WIDTH + at // WIDTH, unit_at(smem, token, at, size, WIDTH, DTYPE), mask=at < size)


@triton.jit
def forward_staged_traceable(
    x_ptr, y_ptr, M, N, distance,
    ROWS: tl.constexpr, PASSES: tl.constexpr, EACH: tl.constexpr, LANES: tl.constexpr, PAIRS: tl.constexpr, BYTES: tl.constexpr,
    LOG: tl.constexpr,
):  # fmt: skip
    """As `softbench.kernels.triton.staged.forward_staged`, of tensors of any address."""
    THREADS: tl.constexpr = ROWS * LANES
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    WIDTH: tl.constexpr = DTYPE.primitive_bitwidth // 8
    first = tl.program_id(0).to(tl.int64) * (ROWS * PASSES)
    count = tl.minimum(M - first, ROWS * PASSES).to(tl.int32)
    size = count * N * WIDTH
    smem = allocate(count, BYTES, PURE=True)
    token = begin_copies(smem, x_ptr + first * N, size, tl.zeros((THREADS,), tl.int32), BYTES, THREADS)
    token = end_copies(token, ROWS, LANES)
    done = tl.zeros((ROWS, LANES), tl.int32)
    for number in range(PASSES):
        rows = rows_of_pass(number, distance, ROWS, LANES)
        exists = rows < count
        lower, upper = read_units(smem + token, x_ptr, rows, exists, N, -float("inf"), EACH, LANES, PAIRS, PURE=True)
        low, high, base, norm = row_statistics(lower, upper, None, EACH, PAIRS, LOG)
        for e in tl.static_range(EACH):
            a, b = unit_results(lower, upper, low, high, base, norm, None, e, PAIRS, LOG)
            done += write_unit(smem, y_ptr, rows, exists, N, a, b, e, EACH, LANES, PAIRS, PURE=True)
    store_block(smem, y_ptr, first * N * WIDTH, size, tl.reshape(done, (THREADS,)), BYTES, THREADS)


@triton.jit
def backward_staged_traceable(
    dy_ptr, y_ptr, dx_ptr, M, N, distance,
    ROWS: tl.constexpr, PASSES: tl.constexpr, EACH: tl.constexpr, LANES: tl.constexpr, PAIRS: tl.constexpr, BYTES: tl.constexpr,
    LOG: tl.constexpr,
):  # fmt: skip
    """As `softbench.kernels.triton.staged.backward_staged`, of tensors of any address."""
    THREADS: tl.constexpr = ROWS * LANES
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    WIDTH: tl.constexpr = DTYPE.primitive_bitwidth // 8
    first = tl.program_id(0).to(tl.int64) * (ROWS * PASSES)
    count = tl.minimum(M - first, ROWS * PASSES).to(tl.int32)
    size = count * N * WIDTH
    smem = allocate(count, 2 * BYTES, PURE=True)
    token = begin_copies(smem, dy_ptr + first * N, size, tl.zeros((THREADS,), tl.int32), BYTES, THREADS)
    token = begin_copies(smem + BYTES, y_ptr + first * N, size, token, BYTES, THREADS)
    token = end_copies(token, ROWS, LANES)
    done = tl.zeros((ROWS, LANES), tl.int32)
    for number in range(PASSES):
        rows = rows_of_pass(number, distance, ROWS, LANES)
        exists = rows < count
        dy_low, dy_high = read_units(smem + token, dy_ptr, rows, exists, N, 0.0, EACH, LANES, PAIRS, PURE=True)
        y_low, y_high = read_units(smem + BYTES + token, y_ptr, rows, exists, N, 0.0, EACH, LANES, PAIRS, PURE=True)
        dot = row_dot(dy_low, dy_high, y_low, y_high, EACH, PAIRS, LOG)
        for e in tl.static_range(EACH):
            a = gradient(y_low[e], dy_low[e], dot, None, LOG)
            b = gradient(y_high[e], dy_high[e], dot, None, LOG) if PAIRS else a
            done += write_unit(smem, dx_ptr, rows, exists, N, a, b, e, EACH, LANES, PAIRS, PURE=True)
    store_block(smem, dx_ptr, first * N * WIDTH, size, tl.reshape(done, (THREADS,)), BYTES, THREADS)
