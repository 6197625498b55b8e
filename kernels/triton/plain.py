"""Softmax and its gradient, the plain way: masked tiles, and loops for rows beyond one. Every layout, every dtype, any N.

The fast tiers (`forward.py`, `backward.py`) leave to these what they do not take: float64, rows that a vector cannot reach, operands
whose alignments differ, rows beyond any tier. Compilers trace these, too (`traced.py`): no inline assembly, no workspace.

- tile, N <= TILE_COLUMNS: BLOCK_M whole rows a program. Short rows share a program because one of 128 elements would leave most of
  a warp idle; a long one has as many warps as keep about 16 elements a thread. One read.
- loop, beyond: a row per program in steps of LOOP_COLUMNS. Each lane keeps its own running (max, sum), so the serial part of the sum is
  N / LOOP_COLUMNS and one reduction at the end joins the lanes. Two reads, of which the second finds much of the row in L2.

Arithmetic is float32, of float64 rows float64. Row offsets are 64-bit: M * N passes 2^31 easily.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

TILE_COLUMNS = 16384  # 64 KiB of float32, 16 elements a thread at 32 warps: a quarter of an SM's registers
TILE_ELEMENTS = 2048  # of a tile of short rows: 16 a thread at 4 warps
LOOP_COLUMNS = 8192
ELEMENTS_PER_THREAD = 16

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def wide(x):
    """`x` as it is computed with."""
    if x.dtype == tl.float64:
        return x
    else:
        return x.to(tl.float32)


@triton.jit
def softmax_tile(x_ptr, y_ptr, x_stride, y_stride, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, KEPT: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    mask = (rows < M)[:, None] & (columns < N)[None, :]
    x = wide(tl.load(x_ptr + rows[:, None] * x_stride + columns[None, :], mask=mask, other=-float("inf"), eviction_policy=KEPT))
    numerator = tl.exp(x - tl.max(x, 1)[:, None])  # a row of only -inf is NaN, as torch has it
    y = numerator / tl.sum(numerator, 1)[:, None]
    tl.store(y_ptr + rows[:, None] * y_stride + columns[None, :], y, mask=mask)


@triton.jit
def forward_tile(x_ptr, y_ptr, x_stride, y_stride, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    softmax_tile(x_ptr, y_ptr, x_stride, y_stride, M, N, BLOCK_M, BLOCK_N, "")


@triton.jit
def forward_tile_stays(x_ptr, y_ptr, x_stride, y_stride, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """For shapes with `plans.Shape.stays`."""
    softmax_tile(x_ptr, y_ptr, x_stride, y_stride, M, N, BLOCK_M, BLOCK_N, "evict_last")


@triton.jit
def forward_loop(x_ptr, y_ptr, x_stride, y_stride, M, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    y_ptr += row * y_stride
    columns = tl.arange(0, BLOCK)
    x = wide(tl.load(x_ptr + columns, mask=columns < N, other=-float("inf")))
    top = x
    # -inf - -inf would make NaN of a lane that has seen only -inf
    total = tl.exp(x - tl.where(x == -float("inf"), 0.0, x))
    for start in range(BLOCK, N, BLOCK):
        x = wide(tl.load(x_ptr + start + columns, mask=start + columns < N, other=-float("inf")))
        new_top = tl.maximum(top, x)
        base = tl.where(new_top == -float("inf"), 0.0, new_top)
        total = total * tl.exp(top - base) + tl.exp(x - base)
        top = new_top
    row_top = tl.max(top, 0)
    row_total = tl.sum(total * tl.exp(top - row_top), 0)
    for start in range(0, N, BLOCK):
        mask = start + columns < N
        x = wide(tl.load(x_ptr + start + columns, mask=mask, other=-float("inf")))
        tl.store(y_ptr + start + columns, tl.exp(x - row_top) / row_total, mask=mask)


@triton.jit
def slopes_tile(
    dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, KEPT: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    mask = (rows < M)[:, None] & (columns < N)[None, :]
    dy = wide(tl.load(dy_ptr + rows[:, None] * dy_stride + columns[None, :], mask=mask, other=0.0, eviction_policy=KEPT))
    y = wide(tl.load(y_ptr + rows[:, None] * y_stride + columns[None, :], mask=mask, other=0.0, eviction_policy=KEPT))
    dx = y * (dy - tl.sum(dy * y, 1)[:, None])
    tl.store(dx_ptr + rows[:, None] * dx_stride + columns[None, :], dx, mask=mask)


@triton.jit
def backward_tile(dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    slopes_tile(dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N, BLOCK_M, BLOCK_N, "")


@triton.jit
def backward_tile_stays(dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    slopes_tile(dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N, BLOCK_M, BLOCK_N, "evict_last")


@triton.jit
def backward_loop(dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    dy_ptr += row * dy_stride
    y_ptr += row * y_stride
    dx_ptr += row * dx_stride
    columns = tl.arange(0, BLOCK)
    dy = wide(tl.load(dy_ptr + columns, mask=columns < N, other=0.0))
    y = wide(tl.load(y_ptr + columns, mask=columns < N, other=0.0))
    lanes = dy * y
    for start in range(BLOCK, N, BLOCK):
        mask = start + columns < N
        dy = wide(tl.load(dy_ptr + start + columns, mask=mask, other=0.0))
        y = wide(tl.load(y_ptr + start + columns, mask=mask, other=0.0))
        lanes += dy * y
    dot = tl.sum(lanes, 0)
    for start in range(0, N, BLOCK):
        mask = start + columns < N
        dy = wide(tl.load(dy_ptr + start + columns, mask=mask, other=0.0))
        y = wide(tl.load(y_ptr + start + columns, mask=mask, other=0.0))
        tl.store(dx_ptr + start + columns, y * (dy - dot), mask=mask)


def block_n(N: int) -> int:
    """The power of two that holds a row."""
    return triton.next_power_of_2(N)


def block_m(N: int) -> int:
    """Rows of a tile: as many short ones as make TILE_ELEMENTS."""
    return max(1, TILE_ELEMENTS // block_n(N))


def warps(elements: int) -> int:
    """Warps that keep about ELEMENTS_PER_THREAD elements a thread."""
    return min(32, max(1, elements // (32 * ELEMENTS_PER_THREAD)))
