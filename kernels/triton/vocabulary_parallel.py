"""The small steps of cross entropy over a split vocabulary, each in one launch: `softbench.kernels.automatic.vocabulary_parallel`.

Rows are elements here: the tensors are (M,), but for the logits and the numbers of all ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 256
"""Rows of a program."""
NOBODY = -1


class Rows(NamedTuple):
    """A class of the part for each row, whether it is the target, and its logit in float32."""

    at: Tensor
    inside: Tensor
    z: Tensor


def begin(x: Tensor, target: Tensor, first: int | Tensor, total: int | Tensor) -> tuple[Rows, Tensor]:
    """The rows as this part sees them, and the target's logit, 0 where the target is elsewhere. `first`: the part's first class."""
    M, N = x.shape
    at, inside, z = torch.empty_like(target), torch.empty(M, dtype=torch.bool, device=x.device), x.new_empty(M, dtype=torch.float32)
    z_target = torch.empty_like(z)
    _launch(_begin, M, (x, target.contiguous(), first, at, inside, z, z_target, *x.stride(), M, N))
    return Rows(at, inside, z), z_target


def merged(of_ranks: Tensor, target: Tensor, shard: tuple[int | Tensor, int | Tensor], options: Any) -> tuple[Tensor, Tensor]:
    """(loss, lse) of rows, from the numbers of all ranks, (ranks, 4, M): a logit, lse above it, lse, and the target's logit."""
    ranks, _, M = of_ranks.shape
    loss, lse = of_ranks.new_empty(M), of_ranks.new_empty(M)
    given = of_ranks, target.contiguous(), shard[1], loss, lse, M, options.ignore_index, options.z_loss
    _launch(_merge, M, given, RANKS=ranks)
    return loss, lse


def of_gradient(
    target: Tensor, lse: Tensor, dloss: Tensor, counted: Tensor | None, rows: Rows, shard: tuple[int | Tensor, int | Tensor], options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The classes for the kernel of the gradient, dloss of each row, and the column of dx at these classes."""
    at, of_row, column = torch.empty_like(rows.at), torch.empty_like(lse), torch.empty_like(lse)
    step = dloss.stride(0) if dloss.dim() else 0
    given = target.contiguous(), lse, dloss, step, counted, *rows, shard[1], at, of_row, column, len(lse)
    _launch(_gradient, len(lse), (*given, options.ignore_index, options.z_loss))
    return at, of_row, column


def _launch(kernel: Any, M: int, given: tuple[Any, ...], **constants: int) -> None:
    if M:
        with torch.cuda.device_of(given[0]):  # Triton launches on the current device
            kernel[(triton.cdiv(M, ROWS),)](*given, **constants, ROWS=ROWS)


@triton.jit
def _number(given):
    """A whole number, which may be in memory."""
    if given.dtype.is_ptr():
        found = tl.load(given)
    else:
        found = given.to(tl.int64)
    return found


@triton.jit(do_not_specialize=["first"])
def _begin(
    x_ptr, target_ptr, first, at_ptr, inside_ptr, z_ptr, z_target_ptr, x_stride, x_step, M, N,
    ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < M
    local = tl.load(target_ptr + row, mask=there, other=0) - _number(first)
    at = tl.minimum(tl.maximum(local, 0), N - 1)
    z = tl.load(x_ptr + row.to(tl.int64) * x_stride + at * x_step, mask=there, other=0.0).to(tl.float32)
    tl.store(at_ptr + row, at, mask=there)
    tl.store(inside_ptr + row, at == local, mask=there)
    tl.store(z_ptr + row, z, mask=there)
    tl.store(z_target_ptr + row, tl.where(at == local, z, 0.0), mask=there)


@triton.jit(do_not_specialize=["total", "ignore_index", "z_loss"])
def _merge(
    of_ranks_ptr, target_ptr, total, loss_ptr, lse_ptr, M, ignore_index, z_loss,
    RANKS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < M
    target = tl.load(target_ptr + row, mask=there, other=0)
    high = tl.full((ROWS,), float("-inf"), tl.float64)
    sum = tl.zeros((ROWS,), tl.float64)
    z_target = tl.zeros((ROWS,), tl.float64)
    for rank in tl.static_range(RANKS):
        numbers = of_ranks_ptr + rank * 4 * M + row
        z = tl.load(numbers, mask=there, other=0.0)
        above = tl.load(numbers + M, mask=there, other=0.0)
        lse = tl.load(numbers + 2 * M, mask=there, other=0.0)
        part = tl.where(tl.abs(above) < tl.abs(lse), z.to(tl.float64) + above.to(tl.float64), lse.to(tl.float64))
        higher = tl.where(part > high, part, high)  # not of NaN, which the sum gets
        sum = tl.where(high == higher, sum, sum * tl.exp(high - higher)) + tl.where(part == higher, 1.0, tl.exp(part - higher))
        sum = tl.where(higher == float("-inf"), tl.where(part == part, 0.0, part), sum)
        high = higher
        z_target += tl.load(numbers + 3 * M, mask=there, other=0.0).to(tl.float64)
    whole = high + tl.log(sum)
    loss = whole - z_target + z_loss * whole * whole
    valid = (target >= 0) & (target < _number(total))
    loss = tl.where(target == ignore_index, 0.0, tl.where(valid, loss, float("nan")))
    tl.store(loss_ptr + row, loss.to(tl.float32), mask=there)
    tl.store(lse_ptr + row, whole.to(tl.float32), mask=there)


@triton.jit(do_not_specialize=["total", "ignore_index", "z_loss", "dloss_step"])
def _gradient(
    target_ptr, lse_ptr, dloss_ptr, dloss_step, counted_ptr, at_ptr, inside_ptr, z_ptr, total, new_at_ptr, of_row_ptr, column_ptr, M,
    ignore_index, z_loss,
    ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < M
    target = tl.load(target_ptr + row, mask=there, other=0)
    lse = tl.load(lse_ptr + row, mask=there, other=0.0)
    dloss = tl.load(dloss_ptr + row * dloss_step, mask=there, other=0.0).to(tl.float32)
    if counted_ptr is not None:
        dloss = dloss / tl.load(counted_ptr).to(tl.float32)
    ignored = target == ignore_index
    valid = (target >= 0) & (target < _number(total))
    dloss = tl.where(ignored, 0.0, tl.where(valid, dloss, float("nan")))
    at = tl.load(at_ptr + row, mask=there, other=0)
    hot = tl.load(inside_ptr + row, mask=there, other=0).to(tl.float32)
    dz = tl.exp(tl.load(z_ptr + row, mask=there, other=0.0) - lse) * (1.0 + 2.0 * z_loss * lse) - hot
    tl.store(new_at_ptr + row, tl.where(ignored, -1, at), mask=there)
    tl.store(of_row_ptr + row, dloss, mask=there)
    tl.store(column_ptr + row, tl.where(ignored, 0.0, dz * dloss), mask=there)
