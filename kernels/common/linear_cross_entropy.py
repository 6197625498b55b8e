"""The mean cross entropy of hidden states and a weight, and its gradients, by parts of the rows: the logits are never whole in memory.

For each part of the rows: one product of matrices makes its logits, our kernels of the loss write the gradient over them, and two products
add up the gradients of states and weight. So a call has the three products that it needs, and moves each logit four times beside them.

A part has many rows. The logits of few rows would stay in the L2, but each part reads and writes the gradient of the weight: of 8192 states
and 128256 words of 4096 columns, 64 parts would move 134 GB for it, and the loss of all logits moves 4.2 GB in any case.

In 16 bits the logits, their gradient and what parts add up are rounded to 16 bits. Sums of products are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from .rows import DTYPES

MOST_BYTES = 10**9
"""Bytes of the logits of a part, at most. Beside them a call has its results only."""
TILE_ROWS, TILE_COLUMNS = 128, 256
"""The tile of a product that one SM computes at a time, as cuBLAS has it on Hopper."""
MORE_PARTS = 2
"""Parts beyond the fewest that are considered."""


class Losses(NamedTuple):
    """The kernels of the loss: those of `softbench.kernels.triton.losses` or `softbench.kernels.cuda.losses`."""

    forward: Callable[..., tuple[Tensor, Tensor]]
    backward: Callable[..., Tensor]

    @classmethod
    def of(cls, module: ModuleType) -> Losses:
        """Those of a module."""
        return cls(module.cross_entropy_forward, module.cross_entropy_backward)


def linear_cross_entropy(
    losses: Losses, x: Tensor, weight: Tensor, target: Tensor, *, gradients: bool, ignore_index: int = -100, **options: float
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(loss, dx, dw): the mean over rows that are not ignored, a float32 number, and its gradients, or None without `gradients`.

    x is (M, H), weight (V, H) of the same dtype, target (M,) of int64. `options` are those of `losses`. The gradients are contiguous.

    Raises:
        TypeError, ValueError: the tensors do not fit.
    """
    check(x, weight, target)
    M, V = len(x), len(weight)
    share = 1 / (target != ignore_index).sum()
    of_rows = torch.empty(M, dtype=torch.float32, device=x.device)
    dx, dw = (torch.empty(given.shape, dtype=x.dtype, device=x.device) if gradients else None for given in (x, weight))
    rows = rows_of_part(M, weight.shape, x.element_size(), multiprocessors(x.device))
    memory = torch.empty(rows, V, dtype=x.dtype, device=x.device)
    each = share.to(torch.float32).expand(rows).contiguous()
    if not M and dw is not None:
        dw.zero_()
    with torch.no_grad():
        for start in range(0, M, rows):
            part, targets = x[start : start + rows], target[start : start + rows]
            logits = torch.mm(part, weight.t(), out=memory[: len(part)])
            of_rows[start : start + rows], lse = losses.forward(logits, targets, ignore_index=ignore_index, **options)
            if dx is None or dw is None:
                continue
            losses.backward(logits, targets, lse, each[: len(part)], ignore_index=ignore_index, out=logits, **options)
            torch.mm(logits, weight, out=dx[start : start + rows])
            if start:
                dw.addmm_(logits.t(), part)
            else:
                torch.mm(logits.t(), part, out=dw)
    return of_rows.sum() * share, dx, dw


def rows_of_part(M: int, weight: tuple[int, ...], element_size: int, multiprocessors: int) -> int:
    """Rows of a part, whose products keep all SMs busy.

    dx of a part has few tiles, so its last wave may leave most SMs idle. Of the numbers of parts whose logits fit MOST_BYTES the one with
    the fewest waves is taken, and of these the fewest parts.
    """
    V, H = weight
    most = max(TILE_ROWS, MOST_BYTES // (element_size * max(1, V)) // TILE_ROWS * TILE_ROWS)
    if most >= M:
        return max(1, M)
    fewest = -(-M // most)
    rows = [-(-M // parts // TILE_ROWS) * TILE_ROWS for parts in range(fewest, fewest + MORE_PARTS + 1)]
    return min(rows, key=lambda rows: (waves(M, rows, H, multiprocessors), -rows))


def waves(M: int, rows: int, H: int, multiprocessors: int) -> int:
    """Waves of tiles of dx, of all parts."""
    parts = [min(rows, M - start) for start in range(0, M, rows)]
    return sum(-(-(-(-part // TILE_ROWS) * -(-H // TILE_COLUMNS)) // multiprocessors) for part in parts)


def multiprocessors(device: torch.device) -> int:
    """The number of SMs, or 1."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def check(x: Tensor, weight: Tensor, target: Tensor) -> None:
    """Raises TypeError or ValueError for tensors that do not fit."""
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"hidden is {tuple(x.shape)} and weight {tuple(weight.shape)}; they must be (M, H) and (V, H)")
    if x.dtype not in DTYPES or weight.dtype is not x.dtype or weight.device != x.device:
        given = f"hidden is {x.dtype} on {x.device} and weight {weight.dtype} on {weight.device}"
        raise TypeError(f"{given}; they must have one dtype of float32, float16 and bfloat16, and one device")
    if target.shape != x.shape[:1] or target.dtype is not torch.int64:
        raise TypeError(f"target is {tuple(target.shape)} {target.dtype}; it must be ({len(x)},) int64")
