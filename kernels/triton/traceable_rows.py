"""Kernels that compilers trace. Those of the tier rows are `forward_rows` and `backward_rows` for tensors of any address.

A compiler finds by analysis what a kernel writes. It takes all operands for written where it meets assembly with side effects, and an input
for written where the address of a store depends on it. So these kernels reduce by Triton's own reductions, and count all vectors from the
result's rows. Inductor writes global constants into its code by their `repr`, so these kernels have no infinity among them.

A compiled graph may be given tensors of any address. Where the operands' rows have different offsets from a 16-byte boundary, a program
takes its rows element by element, in steps of BLOCK columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .backward import backward_vectors
from .forward import forward_vectors
from .generic import gradient_of_row, gradient_tile, row_by_steps, tile_of_rows

VECTOR_MASK = tl.constexpr(15)


@triton.jit
def forward_traceable(
    x_ptr, y_ptr, x_stride, y_stride, M, N,
    ROWS: tl.constexpr, TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr,
    BASE_ALIGNMENT: tl.constexpr, KEEP_IN_L2: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """As `softbench.kernels.triton.forward.forward_rows`, of rows of any address."""
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    x_base = x_ptr.to(tl.int64) & VECTOR_MASK
    y_base = y_ptr.to(tl.int64) & VECTOR_MASK
    differ = x_base - y_base if BASE_ALIGNMENT > 0 else x_base | y_base
    if differ == 0:
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        y_row = y_ptr + row * y_stride * UNIT
        forward_vectors(
            x_ptr + row * x_stride * UNIT, y_row, y_row, row < M, N, None,
            ROWS, TILES, THREADS, WORDS, VECTOR, BASE_ALIGNMENT, KEEP_IN_L2, LOG,
        )  # fmt: skip
    else:
        first_row = tl.program_id(0).to(tl.int64) * ROWS
        for number in range(ROWS):
            one = first_row + number
            if one < M:
                row_by_steps(x_ptr + one * x_stride * UNIT, y_ptr + one * y_stride * UNIT, N * UNIT, BLOCK, LOG, None)


@triton.jit
def backward_traceable(
    dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N,
    ROWS: tl.constexpr, TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr,
    BASE_ALIGNMENT: tl.constexpr, KEEP_IN_L2: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """As `softbench.kernels.triton.backward.backward_rows`, of rows of any address."""
    UNIT: tl.constexpr = 1 if BASE_ALIGNMENT > 0 else VECTOR
    dy_base = dy_ptr.to(tl.int64) & VECTOR_MASK
    y_base = y_ptr.to(tl.int64) & VECTOR_MASK
    dx_base = dx_ptr.to(tl.int64) & VECTOR_MASK
    differ = (dy_base - y_base) | (dx_base - y_base) if BASE_ALIGNMENT > 0 else dy_base | y_base | dx_base
    if differ == 0:
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        dy_row = dy_ptr + row * dy_stride * UNIT
        dx_row = dx_ptr + row * dx_stride * UNIT
        backward_vectors(
            dy_row, y_ptr + row * y_stride * UNIT, dx_row, dx_row, row < M, N, None,
            ROWS, TILES, THREADS, WORDS, VECTOR, BASE_ALIGNMENT, KEEP_IN_L2, LOG,
        )  # fmt: skip
    else:
        first_row = tl.program_id(0).to(tl.int64) * ROWS
        for number in range(ROWS):
            one = first_row + number
            if one < M:
                dy_one = dy_ptr + one * dy_stride * UNIT
                y_one = y_ptr + one * y_stride * UNIT
                gradient_of_row(dy_one, y_one, dx_ptr + one * dx_stride * UNIT, N * UNIT, BLOCK, LOG, None)


@triton.jit
def tile_traceable(
    x_ptr, y_ptr, x_stride, y_stride, M, N, BM: tl.constexpr, BN: tl.constexpr, KEEP_IN_L2: tl.constexpr, LOG: tl.constexpr
):  # fmt: skip
    POLICY: tl.constexpr = "evict_last" if KEEP_IN_L2 else ""
    tile_of_rows(x_ptr, y_ptr, x_stride, y_stride, M, N, BM, BN, POLICY, LOG, None)


@triton.jit
def gradient_tile_traceable(
    dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N,
    BM: tl.constexpr, BN: tl.constexpr, KEEP_IN_L2: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    POLICY: tl.constexpr = "evict_last" if KEEP_IN_L2 else ""
    gradient_tile(dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N, BM, BN, POLICY, LOG, None)
