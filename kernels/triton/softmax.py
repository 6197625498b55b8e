"""Softmax and its gradient in Triton: our own, simple tiers.

A row is read once where it fits a program's registers, twice where it does not:

- tile, N <= TILE_COLUMNS: BLOCK_M whole rows a program. Short rows share a program because one of 128 elements would leave most of
  a warp idle; a long one has as many warps as keep about 16 elements a thread.
- loop, beyond: a row per program in steps of LOOP_COLUMNS. Each lane keeps its own running (max, sum), so the serial part of the sum is
  N / LOOP_COLUMNS and one reduction at the end joins the lanes; the second read finds much of the row in L2.

Arithmetic is float32. Row offsets are 64-bit: M * N passes 2^31 easily.
"""

from __future__ import annotations

import functools
import os

import torch
import triton
import triton.language as tl

from .rows import Launch, Softmax

TILE_COLUMNS = 16384  # 64 KiB of float32, 16 elements a thread at 32 warps: a quarter of an SM's registers
TILE_ELEMENTS = 2048  # of a tile of short rows: 16 a thread at 4 warps
LOOP_COLUMNS = 8192
ELEMENTS_PER_THREAD = 16

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def forward_tile(x_ptr, y_ptr, x_stride, y_stride, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    mask = (rows < M)[:, None] & (columns < N)[None, :]
    x = tl.load(x_ptr + rows[:, None] * x_stride + columns[None, :], mask=mask, other=-float("inf")).to(tl.float32)
    numerator = tl.exp(x - tl.max(x, 1)[:, None])  # a row of only -inf is NaN, as torch has it
    y = numerator / tl.sum(numerator, 1)[:, None]
    tl.store(y_ptr + rows[:, None] * y_stride + columns[None, :], y, mask=mask)


@triton.jit
def forward_loop(x_ptr, y_ptr, x_stride, y_stride, M, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    y_ptr += row * y_stride
    columns = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        x = tl.load(x_ptr + start + columns, mask=start + columns < N, other=-float("inf")).to(tl.float32)
        new_top = tl.maximum(top, x)
        base = tl.where(new_top == -float("inf"), 0.0, new_top)  # -inf - -inf would make NaN of a lane that has seen only -inf
        total = total * tl.exp(top - base) + tl.exp(x - base)
        top = new_top
    row_top = tl.max(top, 0)
    row_total = tl.sum(total * tl.exp(top - row_top), 0)
    for start in range(0, N, BLOCK):
        mask = start + columns < N
        x = tl.load(x_ptr + start + columns, mask=mask, other=-float("inf")).to(tl.float32)
        tl.store(y_ptr + start + columns, tl.exp(x - row_top) / row_total, mask=mask)


@triton.jit
def backward_tile(dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    mask = (rows < M)[:, None] & (columns < N)[None, :]
    dy = tl.load(dy_ptr + rows[:, None] * dy_stride + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + rows[:, None] * y_stride + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    dx = y * (dy - tl.sum(dy * y, 1)[:, None])
    tl.store(dx_ptr + rows[:, None] * dx_stride + columns[None, :], dx, mask=mask)


@triton.jit
def backward_loop(dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    dy_ptr += row * dy_stride
    y_ptr += row * y_stride
    dx_ptr += row * dx_stride
    columns = tl.arange(0, BLOCK)
    lanes = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        mask = start + columns < N
        dy = tl.load(dy_ptr + start + columns, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + start + columns, mask=mask, other=0.0).to(tl.float32)
        lanes += dy * y
    dot = tl.sum(lanes, 0)
    for start in range(0, N, BLOCK):
        mask = start + columns < N
        dy = tl.load(dy_ptr + start + columns, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + start + columns, mask=mask, other=0.0).to(tl.float32)
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


def launch_forward(x: torch.Tensor, y: torch.Tensor) -> None:
    """y = softmax(x) by rows; see `softbench.kernels.triton.rows.Launch`."""
    M, N = x.shape
    strides = x.stride(0), y.stride(0)
    if N <= TILE_COLUMNS:
        BM, BN = block_m(N), block_n(N)
        forward_tile[(triton.cdiv(M, BM),)](x, y, *strides, M, N, BM, BN, num_warps=warps(BM * BN))
    else:
        forward_loop[(M,)](x, y, *strides, M, N, LOOP_COLUMNS, num_warps=warps(LOOP_COLUMNS))


def launch_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor) -> None:
    """dx of rows; two tensors are held at once, so tiles end at half the forward's columns."""
    M, N = y.shape
    strides = dy.stride(0), y.stride(0), dx.stride(0)
    if N <= TILE_COLUMNS // 2:
        BM, BN = block_m(2 * N), block_n(N)
        backward_tile[(triton.cdiv(M, BM),)](dy, y, dx, *strides, M, N, BM, BN, num_warps=warps(2 * BM * BN))
    else:
        backward_loop[(M,)](dy, y, dx, *strides, M, N, LOOP_COLUMNS // 2, num_warps=warps(LOOP_COLUMNS))


def softmax_of(forward: Launch, backward: Launch) -> Softmax:
    """A `Softmax` of two Triton launchers.

    Triton's interpreter truncates float32 to bfloat16 where the hardware rounds to nearest; there kernels write float32 and torch rounds.
    """
    if not INTERPRETED:
        return Softmax(forward, backward)

    def rounded(launch: Launch, *tensors: torch.Tensor) -> None:
        wide = torch.empty_like(tensors[-1], dtype=torch.float32)
        launch(*tensors[:-1], wide)
        tensors[-1].copy_(wide)

    return Softmax(functools.partial(rounded, forward), functools.partial(rounded, backward), ("cuda", "cpu"))


softmax = softmax_of(launch_forward, launch_backward)
"""softmax(x, dim=-1): differentiable, any shape and strides, float32, float16 and bfloat16; see `softbench.kernels.triton.rows.Softmax`."""
