"""Softmax, log-softmax and their gradients for every layout, every dtype and any N: masked tiles, and loops for longer rows.

The fast tiers (`forward.py`, `backward.py`) leave to these kernels what they do not take. That is float64, rows that no vector can move,
operands with different alignments, and rows beyond any tier. Compilers trace some of these kernels (`traceable.py`), so they have no inline
assembly and no workspace. LOG and `scale` are as in `forward.py`.

- tile, N <= TILE_COLUMNS: BLOCK_M whole rows a program. Short rows share a program, because a row of 128 elements would leave most of a
  warp idle. A long row has as many warps as keep about 16 elements a thread. One read.
- loop, for longer rows: a row a program, in steps of LOOP_COLUMNS. Each lane has its own running (max, sum), so the serial part of the sum
  is N / LOOP_COLUMNS. One reduction at the end merges the lanes. Two reads; the second finds much of the row in L2.

Arithmetic is float32, and float64 for float64 rows. Row offsets are 64-bit, because M * N easily passes 2^31.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .interpreter import INTERPRETED

TILE_COLUMNS = 16384  # of all inputs: 64 KiB of float32, 16 elements a thread at 32 warps: a quarter of an SM's registers.
TILE_ELEMENTS = 2048  # of a tile of short rows: 16 a thread at 4 warps.
LOOP_COLUMNS = 8192
ELEMENTS_PER_THREAD = 16

CONTRACTION = {} if INTERPRETED else {"enable_fp_fusion": True}
"""The option of every launch for floating-point contraction: a product and a sum become one operation. Triton announces another default.

No bound depends on it. `exp2((x - m) * log2 e)` subtracts first, so that nothing can be contracted there: contracted, m * log2 e would be
rounded (`softbench.ops.softmax`, low-precision). Elsewhere a contraction has one rounding less.
"""


@triton.jit
def widen(x):
    """`x` in the dtype of the arithmetic."""
    if x.dtype == tl.float64:
        return x
    else:
        return x.to(tl.float32)


@triton.jit
def distance(x, base, scale):
    """(x - base) * scale; `scale` is None, a number, or one number a row in the rank of x."""
    if scale is None:
        return x - base
    else:
        return (x - base) * scale


@triton.jit
def slope(dy, y, dot, scale, LOG: tl.constexpr):
    """dx of elements; `dot` is the sum of `dot_terms` over their row."""
    if LOG:
        dx = dy - tl.exp(y) * dot
    else:
        dx = y * (dy - dot)
    return dx if scale is None else dx * scale


@triton.jit
def dot_terms(dy, y, LOG: tl.constexpr):
    """The terms of a row's dot: dy * y, or for log-softmax dy."""
    if LOG:
        return dy
    else:
        return dy * y


@triton.jit(do_not_specialize=["M", "scale"])
def tile_of_rows(
    x_ptr, y_ptr, x_stride, y_stride, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, POLICY: tl.constexpr, LOG: tl.constexpr, scale
):  # fmt: skip
    """POLICY: the eviction policy of the loads."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    mask = (rows < M)[:, None] & (columns < N)[None, :]
    if scale is not None and scale.dtype.is_ptr():
        scale = tl.load(scale + rows, mask=rows < M, other=1.0)[:, None]
    x = widen(tl.load(x_ptr + rows[:, None] * x_stride + columns[None, :], mask=mask, other=-float("inf"), eviction_policy=POLICY))
    below = distance(x, tl.max(x, 1)[:, None], scale)
    numerator = tl.exp(below)  # a row of only -inf becomes NaN, as in torch
    total = tl.sum(numerator, 1)[:, None]
    if LOG:
        y = below - tl.log(total)
    else:
        y = numerator / total
    tl.store(y_ptr + rows[:, None] * y_stride + columns[None, :], y, mask=mask)


@triton.jit(do_not_specialize=["M", "scale"])
def loop_over_row(x_ptr, y_ptr, x_stride, y_stride, M, N, BLOCK: tl.constexpr, LOG: tl.constexpr, scale):
    row = tl.program_id(0).to(tl.int64)
    if scale is not None and scale.dtype.is_ptr():
        scale = tl.load(scale + row)
    row_by_steps(x_ptr + row * x_stride, y_ptr + row * y_stride, N, BLOCK, LOG, scale)


@triton.jit
def row_by_steps(x_ptr, y_ptr, N, BLOCK: tl.constexpr, LOG: tl.constexpr, scale):
    """The row at `x_ptr`, in steps of BLOCK columns. `scale` is None or a number."""
    columns = tl.arange(0, BLOCK)
    x = widen(tl.load(x_ptr + columns, mask=columns < N, other=-float("inf")))
    lane_max = x
    # In a lane that has seen only -inf, -inf - -inf would be NaN.
    lane_sum = tl.exp(x - tl.where(x == -float("inf"), 0.0, x))
    for start in range(BLOCK, N, BLOCK):
        x = widen(tl.load(x_ptr + start + columns, mask=start + columns < N, other=-float("inf")))
        new_max = tl.maximum(lane_max, x)
        base = tl.where(new_max == -float("inf"), 0.0, new_max)
        lane_sum = lane_sum * tl.exp(distance(lane_max, base, scale)) + tl.exp(distance(x, base, scale))
        lane_max = new_max
    row_max = tl.max(lane_max, 0)
    row_sum = tl.sum(lane_sum * tl.exp(distance(lane_max, row_max, scale)), 0)
    for start in range(0, N, BLOCK):
        mask = start + columns < N
        x = widen(tl.load(x_ptr + start + columns, mask=mask, other=-float("inf")))
        below = distance(x, row_max, scale)
        y = below - tl.log(row_sum) if LOG else tl.exp(below) / row_sum
        tl.store(y_ptr + start + columns, y, mask=mask)


@triton.jit(do_not_specialize=["M", "scale"])
def gradient_tile(
    dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, POLICY: tl.constexpr, LOG: tl.constexpr, scale,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    mask = (rows < M)[:, None] & (columns < N)[None, :]
    if scale is not None and scale.dtype.is_ptr():
        scale = tl.load(scale + rows, mask=rows < M, other=1.0)[:, None]
    dy = widen(tl.load(dy_ptr + rows[:, None] * dy_stride + columns[None, :], mask=mask, other=0.0, eviction_policy=POLICY))
    y = widen(tl.load(y_ptr + rows[:, None] * y_stride + columns[None, :], mask=mask, other=0.0, eviction_policy=POLICY))
    dx = slope(dy, y, tl.sum(dot_terms(dy, y, LOG), 1)[:, None], scale, LOG)
    tl.store(dx_ptr + rows[:, None] * dx_stride + columns[None, :], dx, mask=mask)


@triton.jit(do_not_specialize=["M", "scale"])
def gradient_loop(dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N, BLOCK: tl.constexpr, LOG: tl.constexpr, scale):
    row = tl.program_id(0).to(tl.int64)
    if scale is not None and scale.dtype.is_ptr():
        scale = tl.load(scale + row)
    gradient_of_row(dy_ptr + row * dy_stride, y_ptr + row * y_stride, dx_ptr + row * dx_stride, N, BLOCK, LOG, scale)


@triton.jit
def gradient_of_row(dy_ptr, y_ptr, dx_ptr, N, BLOCK: tl.constexpr, LOG: tl.constexpr, scale):
    """As `row_by_steps`."""
    columns = tl.arange(0, BLOCK)
    dy = widen(tl.load(dy_ptr + columns, mask=columns < N, other=0.0))
    y = widen(tl.load(y_ptr + columns, mask=columns < N, other=0.0))
    lane_dot = dot_terms(dy, y, LOG)
    for start in range(BLOCK, N, BLOCK):
        mask = start + columns < N
        dy = widen(tl.load(dy_ptr + start + columns, mask=mask, other=0.0))
        y = widen(tl.load(y_ptr + start + columns, mask=mask, other=0.0))
        lane_dot += dot_terms(dy, y, LOG)
    dot = tl.sum(lane_dot, 0)
    for start in range(0, N, BLOCK):
        mask = start + columns < N
        dy = widen(tl.load(dy_ptr + start + columns, mask=mask, other=0.0))
        y = widen(tl.load(y_ptr + start + columns, mask=mask, other=0.0))
        tl.store(dx_ptr + start + columns, slope(dy, y, dot, scale, LOG), mask=mask)


def block_n(N: int) -> int:
    """The power of two that holds a row."""
    return triton.next_power_of_2(N)


def block_m(N: int) -> int:
    """Rows of a tile, which has about TILE_ELEMENTS elements."""
    return max(1, TILE_ELEMENTS // block_n(N))


def warps(elements: int) -> int:
    """Warps for this many elements, with about ELEMENTS_PER_THREAD a thread."""
    return min(most_warps(), max(1, elements // (32 * ELEMENTS_PER_THREAD)))


def most_warps() -> int:
    """The most warps of a program. It has up to 1024 threads, and a warp of AMD's data-center GPUs has 64 of them."""
    return 32 if torch.version.hip is None else 16
