"""Cross entropy with classes along a dimension that is not the last, as for segmentation (N, C, H, W), and its gradient, without copies.

Tensors are (outer, R, inner) as in `strided.py`: R are the classes. Targets, losses and lse are contiguous (outer, inner). The formulas are
those of `softbench.kernels.common.losses`, without a softcap.

- forward: a program reads all classes of some columns, and keeps (maximum, sum) of each. One read.
- backward: a program computes some rows of some columns from lse. One read, one write.
"""

from __future__ import annotations

import contextlib

import torch
import triton
import triton.language as tl

from .generic import CONTRACTION
from .interpreter import INTERPRETED, interpreted_number
from .launch_plan import WARP
from .packed_io import rounded
from .softmax_ops import exp_fast, finite_or_zero
from .stable_key import with_stable_key
from .strided import VECTOR_BYTES

THREADS = 128
SEGMENT_BYTES = 256
TILES = 4  # loads of a thread in flight


@triton.jit
def _place(columns, inner, COLUMNS: tl.constexpr):
    """A program's columns (1, C): their numbers, outers, places there, and whether they exist."""
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return column, column // inner, column % inner, column < columns


@triton.jit(do_not_specialize=["x_outer", "x_row", "R", "inner", "columns", "ignored", "smoothing", "z_loss", "scale"])
def loss_forward(
    x_ptr, target_ptr, loss_ptr, lse_ptr, x_outer, x_row, R, inner, columns, ignored, smoothing, z_loss, scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Strides and `inner` count units of ALIGN elements. `scale` multiplies the logits."""
    number, outer, column, inside = _place(columns.to(tl.int64) * ALIGN, inner.to(tl.int64) * ALIGN, COLUMNS)
    target = tl.load(target_ptr + number, mask=inside, other=0)
    row = tl.arange(0, ROWS)[:, None]
    of_row = x_row.to(tl.int64) * ALIGN
    at = x_ptr + outer * (x_outer.to(tl.int64) * ALIGN) + column + row * of_row
    maximum = tl.full((ROWS, COLUMNS), -float("inf"), tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    picked = tl.full((ROWS, COLUMNS), -float("inf"), tl.float32)
    added = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, R, ROWS * TILES):
        tiles = ()
        for k in tl.static_range(TILES):
            mask = inside & (first + row + k * ROWS < R)
            tiles = tiles + (tl.load(at + k * ROWS * of_row, mask=mask, other=-float("inf")).to(tl.float32),)
        most = maximum
        for k in tl.static_range(TILES):
            most = tl.maximum(most, tiles[k])
        base = finite_or_zero(most)
        total *= exp_fast(maximum - base, scale)
        for k in tl.static_range(TILES):
            here = first + row + k * ROWS
            total += exp_fast(tiles[k] - base, scale)
            picked = tl.where(here == target, tiles[k], picked)
            added += tl.where(here < R, tiles[k], 0.0)
        maximum = most
        at += ROWS * TILES * of_row
    top = tl.max(maximum, 0)[None, :]
    base = finite_or_zero(top)
    log = tl.log(tl.sum(total * exp_fast(maximum - base, scale), 0)[None, :])
    lse = top * scale + log
    loss = (top - tl.max(picked, 0)[None, :]) * scale + log
    mean = tl.sum(added, 0)[None, :] / R
    loss = tl.where(smoothing > 0, (1 - smoothing) * loss + smoothing * ((top - mean) * scale + log), loss) + z_loss * lse * lse
    loss = tl.where((target < 0) | (target >= R), float("nan"), loss)
    tl.store(loss_ptr + number, tl.where(target == ignored, 0.0, loss), mask=inside)
    tl.store(lse_ptr + number, lse, mask=inside)


@triton.jit(
    do_not_specialize=["x_outer", "x_row", "dx_outer", "dx_row", "R", "inner", "columns", "ignored", "smoothing", "z_loss", "scale"]
)
def loss_backward(
    x_ptr, target_ptr, lse_ptr, dloss_ptr, dx_ptr, x_outer, x_row, dx_outer, dx_row, R, inner, columns, ignored, smoothing, z_loss, scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    number, outer, column, inside = _place(columns.to(tl.int64) * ALIGN, inner.to(tl.int64) * ALIGN, COLUMNS)
    row = tl.program_id(1) * (ROWS * TILES) + tl.arange(0, ROWS)[:, None]
    of_row = x_row.to(tl.int64) * ALIGN
    at = x_ptr + outer * (x_outer.to(tl.int64) * ALIGN) + column + row * of_row
    tiles = ()
    for k in tl.static_range(TILES):
        tiles = tiles + (tl.load(at + k * ROWS * of_row, mask=inside & (row + k * ROWS < R), other=0.0),)
    target = tl.load(target_ptr + number, mask=inside, other=0)
    lse = tl.load(lse_ptr + number, mask=inside, other=0.0)
    dloss = tl.load(dloss_ptr + number, mask=inside, other=0.0) * scale
    dloss = tl.where((target < 0) | (target >= R), float("nan"), dloss)
    factor = 1 + 2 * z_loss * lse
    of_result = dx_row.to(tl.int64) * ALIGN
    to = dx_ptr + outer * (dx_outer.to(tl.int64) * ALIGN) + column + row * of_result
    for k in tl.static_range(TILES):
        here = row + k * ROWS
        dz = factor * exp_fast(tiles[k].to(tl.float32) * scale - lse) - tl.where(here == target, 1 - smoothing, 0.0) - smoothing / R
        dz = tl.where(target == ignored, 0.0, dz * dloss)
        tl.store(to + k * ROWS * of_result, rounded(dz, dx_ptr.dtype.element_ty), mask=inside & (here < R))


def cross_entropy_forward(
    x: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, lse) of (outer, R, inner) logits and contiguous int64 targets (outer * inner), each float32 of the targets' shape.

    Columns lie beside each other. Targets out of range make their loss NaN, but for ignore_index.
    """
    loss, lse = (torch.empty(target.shape, dtype=torch.float32, device=x.device) for _ in range(2))
    _launch(loss_forward, (x,), (target, loss, lse), (ignore_index, label_smoothing, z_loss, scale))
    return loss, lse


def cross_entropy_backward(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, dloss: torch.Tensor, *, ignore_index: int = -100, label_smoothing: float = 0,
    z_loss: float = 0, scale: float = 1,
) -> torch.Tensor:  # fmt: skip
    """dx of x, contiguous, for a gradient `dloss` (outer * inner) of each loss; otherwise as `cross_entropy_forward`."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(loss_backward, (x, dx), (target, lse, dloss), (ignore_index, label_smoothing, z_loss, scale))
    return dx


def _launch(
    kernel: triton.JITFunction, tensors: tuple[torch.Tensor, ...], of_columns: tuple[torch.Tensor, ...], options: tuple[int | float, ...]
) -> None:
    """Launches on (outer, R, inner) tensors, x and perhaps dx, and on contiguous numbers of each column."""
    x = tensors[0]
    outers, R, inner = x.shape
    size = x.element_size()
    align = VECTOR_BYTES // size
    for tensor in tensors:
        for number in (inner, *tensor.stride()[:2], tensor.data_ptr() // size):
            align = min(align, number & -number or align)
    columns = SEGMENT_BYTES // size
    rows = THREADS * VECTOR_BYTES // SEGMENT_BYTES
    grid = (triton.cdiv(outers * inner, columns), triton.cdiv(R, rows * TILES) if len(tensors) == 2 else 1)
    strides = [number // align for tensor in tensors for number in tensor.stride()[:2]]
    ignored, *numbers = options
    given = [interpreted_number(float(number)) if INTERPRETED else float(number) for number in numbers]
    operands = (x, *of_columns) if len(tensors) == 1 else (x, *of_columns, tensors[1])
    sizes = R, inner // align, outers * inner // align
    with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():
        with_stable_key(kernel)[grid](
            *operands, *strides, *sizes, ignored, *given, rows, columns, TILES, align, num_warps=THREADS // WARP, **CONTRACTION
        )
