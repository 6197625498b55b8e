"""The results of a split vocabulary from the numbers of all ranks, in one launch: `softbench.kernels.automatic.vocabulary_parallel`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common import losses
from .dispatch import with_stable_key

ROWS, ROWS_TOGETHER = 1024, 4096
"""Rows of a program at a time, and those of the one that adds up all losses: its loads wait for memory in turns."""
ROWS_OF_WARP = 256
ELSEWHERE = tl.constexpr(losses.ELSEWHERE)
IGNORED, NO_RANKS = tl.constexpr(-100), tl.constexpr(-1)
_cache: dict[tuple[Hashable, ...], Callable[..., object]] = {}


def merged(
    of_ranks: Tensor, target: Tensor, shard: tuple[int | Tensor, int | Tensor], size: int, options: Any, reduction: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(loss, statistics, classes, counted), as `automatic/vocabulary_parallel.py` has them, from (ranks, 3 M)."""
    ranks, M = of_ranks.shape[0], target.shape[0]
    loss, statistics = of_ranks.new_empty(() if reduction else M), of_ranks.new_empty((M, 2))
    classes, counted = torch.empty_like(target), of_ranks.new_empty(1 if reduction else 0)
    if not M:
        return loss.fill_(torch.nan if reduction == 1 else 0.0), statistics, classes, counted.zero_()
    tensors = of_ranks, target.contiguous(), *shard, loss, statistics, classes, counted
    numbers = size, M, options.ignore_index, float(options.z_loss), ranks, reduction, ROWS_TOGETHER if reduction else ROWS
    programs = 1 if reduction else triton.cdiv(M, ROWS)  # one adds up all losses, in an order that does not change
    device = of_ranks.device
    if device.type == "cuda" and device.index != torch._C._cuda_getDevice():  # Triton launches on the current device
        with torch.cuda.device(device):
            _launch(device, tensors, numbers, programs)
    else:
        _launch(device, tensors, numbers, programs)
    return loss, statistics, classes, counted


def _launch(device: torch.device, tensors: tuple[Any, ...], numbers: tuple[Any, ...], programs: int) -> None:
    given = [one.data_ptr() if isinstance(one, Tensor) else one for one in tensors]
    kinds = [one % 16 if isinstance(of, Tensor) else "number" for of, one in zip(tensors, given, strict=True)]
    _, _, ignore_index, _, *constants = numbers
    key = device, programs, abs(ignore_index) < 2**31, *constants, *kinds
    if (run := _cache.get(key)) is not None:
        run(*given, *numbers)
    else:
        compiled = with_stable_key(_merge)[(programs,)](*tensors, *numbers, num_warps=numbers[-1] // ROWS_OF_WARP)
        if hasattr(compiled, "function"):  # not under the interpreter
            _cache[key] = compiled[(programs, 1, 1)]


@triton.jit
def _number(given):
    """A whole number, which may be in memory."""
    if given.dtype.is_ptr():
        found = tl.load(given)
    else:
        found = given.to(tl.int64)
    return found


@triton.jit(do_not_specialize=["first", "total", "size", "M", "ignore_index", "z_loss"])
def _merge(
    of_ranks_ptr, target_ptr, first, total, loss_ptr, statistics_ptr, classes_ptr, counted_ptr, size, M, ignore_index, z_loss,
    RANKS: tl.constexpr, REDUCTION: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    sum_of_losses = tl.zeros((ROWS,), tl.float32)
    count = tl.zeros((ROWS,), tl.float32)
    for begin in range(tl.program_id(0) * ROWS, M, tl.num_programs(0) * ROWS):
        row = begin + tl.arange(0, ROWS)
        there = row < M
        target = tl.load(target_ptr + row, mask=there, other=0)
        highest = tl.full((ROWS,), float("-inf"), tl.float32)
        for rank in tl.static_range(RANKS):
            m = tl.load(of_ranks_ptr + rank * 3 * M + 2 * row, mask=there, other=0.0)
            s = tl.load(of_ranks_ptr + rank * 3 * M + 2 * row + 1, mask=there, other=1.0)
            highest = tl.where((s != 0.0) & (m > highest), m, highest)  # a part of -inf alone has no maximum
        highest = tl.where(highest == float("-inf"), 0.0, highest)
        whole = tl.zeros((ROWS,), tl.float32)
        for rank in tl.static_range(RANKS):
            m = tl.load(of_ranks_ptr + rank * 3 * M + 2 * row, mask=there, other=0.0)
            s = tl.load(of_ranks_ptr + rank * 3 * M + 2 * row + 1, mask=there, other=1.0)
            whole += tl.where(s == 0.0, 0.0, s * tl.exp(m - highest))
        log = tl.log(whole)
        loss = tl.full((ROWS,), float("inf"), tl.float32)  # where the target's part has -inf alone
        for rank in tl.static_range(RANKS):
            m = tl.load(of_ranks_ptr + rank * 3 * M + 2 * row, mask=there, other=0.0)
            s = tl.load(of_ranks_ptr + rank * 3 * M + 2 * row + 1, mask=there, other=1.0)
            of_part = tl.load(of_ranks_ptr + (rank * 3 + 2) * M + row, mask=there, other=0.0)
            loss = tl.where(of_part == of_part, of_part + ((highest - m) + (log - tl.log(s))), loss)
        lse = highest + log
        loss += z_loss * lse * lse
        ignored = target == ignore_index
        valid = (target >= 0) & (target < _number(total))
        loss = tl.where(valid & (whole > 0.0) & (whole < float("inf")), loss, float("nan"))
        loss = tl.where(ignored, 0.0, loss)
        local = target - _number(first)
        classes = tl.where((local >= 0) & (local < size), local, ELSEWHERE)
        classes = tl.where(ignored, IGNORED, tl.where(valid, classes, NO_RANKS))
        tl.store(statistics_ptr + 2 * row, highest, mask=there)
        tl.store(statistics_ptr + 2 * row + 1, whole, mask=there)
        tl.store(classes_ptr + row, classes, mask=there)
        if REDUCTION == 0:
            tl.store(loss_ptr + row, loss, mask=there)
        else:
            sum_of_losses += tl.where(there, loss, 0.0)
            count += tl.where(there & (target != ignore_index), 1.0, 0.0)
    if REDUCTION != 0:
        result = tl.sum(sum_of_losses, 0)
        counted = tl.sum(count, 0)
        tl.store(counted_ptr, counted)
        if REDUCTION == 1:
            result = result / counted
        tl.store(loss_ptr, result)
