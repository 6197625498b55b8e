"""Softmax in Triton by tiles: short rows share a program, long rows are looped over.

The autotuner chooses the warps. A row of 128 elements would leave most of a program idle, so a program takes a tile of rows. A row
of over TILE_COLUMNS does not fit the registers. Its program reads it twice: once for the maximum and the sum of each lane (online),
and once to write.

softbench run --plugin triton_tile.py
"""

import torch
import triton
import triton.language as tl

TILE_ELEMENTS = 2048  # of a tile of short rows
TILE_COLUMNS = 16384  # the longest row in a tile
CHUNK = 8192  # elements of a longer row at a time

autotuned = triton.autotune(configs=[triton.Config({}, num_warps=warps) for warps in (4, 8, 16)], key=["N"])


@autotuned
@triton.jit
def forward_tile(x_ptr, y_ptr, M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    at = rows[:, None] * N + columns[None, :]
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    # Rows beyond the last one are zeros, so that their results are numbers. Columns beyond the last one change no maximum and no sum.
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x = tl.where((columns < N)[None, :], x, -float("inf"))
    numerator = tl.exp(x - tl.max(x, 1)[:, None])
    tl.store(y_ptr + at, numerator / tl.sum(numerator, 1)[:, None], mask=inside)


@autotuned
@triton.jit
def backward_tile(dy_ptr, y_ptr, dx_ptr, M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    at = rows[:, None] * N + columns[None, :]
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(dx_ptr + at, y * (dy - tl.sum(dy * y, 1)[:, None]), mask=inside)


@triton.jit
def forward_loop(x_ptr, y_ptr, N, CHUNK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * N
    columns = tl.arange(0, CHUNK)
    tops = tl.full((CHUNK,), -float("inf"), tl.float32)
    sums = tl.zeros((CHUNK,), tl.float32)
    for first in range(0, N, CHUNK):
        x = tl.load(x_ptr + start + first + columns, mask=first + columns < N, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(tops, x, propagate_nan=tl.PropagateNan.ALL)
        # A lane that has seen only -inf has the sum 0, and -inf - -inf would make it NaN.
        sums = tl.where(tops == higher, sums, sums * tl.exp(tops - higher)) + tl.where(x == -float("inf"), 0.0, tl.exp(x - higher))
        tops = higher
    top = tl.max(tops, 0)
    total = tl.sum(tl.where(tops == top, sums, sums * tl.exp(tops - top)), 0)
    for first in range(0, N, CHUNK):
        inside = first + columns < N
        x = tl.load(x_ptr + start + first + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + start + first + columns, tl.exp(x - top) / total, mask=inside)


@triton.jit
def backward_loop(dy_ptr, y_ptr, dx_ptr, N, CHUNK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * N
    columns = tl.arange(0, CHUNK)
    dots = tl.zeros((CHUNK,), tl.float32)
    for first in range(0, N, CHUNK):
        inside = first + columns < N
        dy = tl.load(dy_ptr + start + first + columns, mask=inside, other=0.0).to(tl.float32)
        dots += dy * tl.load(y_ptr + start + first + columns, mask=inside, other=0.0).to(tl.float32)
    dot = tl.sum(dots, 0)
    for first in range(0, N, CHUNK):
        inside = first + columns < N
        dy = tl.load(dy_ptr + start + first + columns, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + start + first + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + start + first + columns, y * (dy - dot), mask=inside)


def launch(tile, loop, *tensors: torch.Tensor) -> torch.Tensor:
    """Run one of two kernels over the rows of contiguous tensors; it writes the last one."""
    M, N = tensors[0].shape
    columns = triton.next_power_of_2(N)
    if columns > TILE_COLUMNS:
        loop[(M,)](*tensors, N, CHUNK, num_warps=16)
    else:
        rows = max(1, TILE_ELEMENTS // columns)
        tile[(triton.cdiv(M, rows),)](*tensors, M, N, rows, columns)
    return tensors[-1]


def supports(case) -> str | None:
    """None, or why a run skips the case."""
    return None if case.M * case.N else "it takes no tensors without elements"


def softmax(x: torch.Tensor) -> torch.Tensor:
    return launch(forward_tile, forward_loop, x, torch.empty_like(x))


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch(backward_tile, backward_loop, dy, y, torch.empty_like(y))
