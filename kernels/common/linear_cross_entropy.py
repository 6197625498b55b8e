"""The mean cross entropy of hidden states and a weight, and its gradients, by parts of the rows: the logits are never whole in memory.

For each part of the rows: one product of matrices makes its logits, our kernels of the loss write the gradient over them, and two products
add up the gradients of states and weight. So a call has the three products that it needs, and moves each logit four times beside them.

A part has many rows. The logits of few rows would stay in the L2, but each part reads and writes the gradient of the weight: of 8192 states
and 128256 words of 4096 columns, 64 parts would move 134 GB for it, and the loss of all logits moves 4.2 GB in any case.

On an H200 the three products of that shape alone take 36.7 ms in bfloat16. The whole call takes 38.5 ms with parts of 3072 rows, which
`rows_of_part` chooses, 39.0 with 2048, 40.3 with 3584 and 42.2 with 1024. With a dw in float32 instead, parts of 2048 take 41.2.

In 16 bits the logits, their gradient and what parts add up are rounded to 16 bits. Sums of products are float32. The bound of a dw that is
rounded once holds for several parts too: errors in bfloat16 are .35 of it with one part of 6144 rows, .59 with three and .72 with eight.

In float16 a gradient of the mean is too small: a word's probability by the number of rows becomes 0, and no later factor, such as that of a
loss scaler, brings it back. A sum over rows may be above 65504. So float16 has gradients times a power of two until `multiply`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .rows import DTYPES

MOST_BYTES = 10**9
"""Bytes of the logits of a part and of what is made of them, at most. Beside them a call has its results only."""
FLOATS = 2**24
"""Of a gradient that is multiplied at a time: where the CPU computes, it has a copy in float32."""
SCALE = 16
"""Of the gradients of logits in float16, before the mean.

They are at most 1 in size, but for a large z_loss. A probability is some 8e-6 of 128256 words, and float16 has all digits from 6e-5 on.
"""
SCALE_OF_MEAN = 2**10
"""Of the mean over rows in dw in float16, at most: a mean up to 64 is finite, and one above 6e-11 is not 0. Few rows are a sum."""
TILE_ROWS, TILE_COLUMNS = 128, 256
"""The tile of a product that one SM computes at a time, as cuBLAS has it on Hopper."""


class Losses(NamedTuple):
    """The kernels of the loss: those of `softbench.kernels.triton.losses` or `softbench.kernels.cuda.losses`."""

    forward: Callable[..., tuple[Tensor, Tensor]]
    backward: Callable[..., Tensor]
    fused: Callable[..., tuple[Tensor, Tensor]] | None = None
    """Both in one pass over the logits, with a `dloss` of all rows; None without such a kernel."""
    temporaries: int = 0
    """Bytes for each logit that they allocate, at most."""


def linear_cross_entropy(
    losses: Losses, x: Tensor, weight: Tensor, target: Tensor, *, gradients: bool, ignore_index: int, **options: float
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(loss, dx, dw): the mean over rows that are not ignored, a float32 number, and its gradients, or None without `gradients`.

    x is (M, H), weight (V, H) of the same dtype, target (M,) of int64. `options` are those of `losses`. The gradients are contiguous.

    Raises:
        TypeError, ValueError: the tensors do not fit.
    """
    loss, *both, factors = in_parts(losses, x, weight, target, needs=(gradients, gradients), ignore_index=ignore_index, **options)
    dx, dw = both if factors is None else (multiply(one, factor) for one, factor in zip(both, factors, strict=True))
    return loss, dx, dw


def in_parts(
    losses: Losses, x: Tensor, weight: Tensor, target: Tensor, *, needs: tuple[bool, bool], ignore_index: int, **options: float
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """(loss, dx, dw, factors) as `linear_cross_entropy`. `needs` are whether dx and dw are needed; without, they are not computed.

    Where `factors` are not None but (2,) of float32, dx and dw must be multiplied by them.
    """
    check(x, weight, target)
    M, V = len(x), len(weight)
    counted = (target != ignore_index).sum()
    mean = (1 / counted).to(torch.float32)
    of_logits, alphas, factors = mean, (1.0, 1.0), None
    if x.dtype is torch.float16 and any(needs):
        scale = 2.0 ** min(0, SCALE_OF_MEAN.bit_length() - 1 - max(0, M - 1).bit_length())
        of_logits, alphas = torch.full_like(mean, SCALE), (1 / SCALE, scale / SCALE)
        of_sum = (1 / counted.clamp(min=1)).to(torch.float32)  # without rows the gradients are 0, not NaN
        factors = torch.stack((of_sum, of_sum / scale))
    of_rows = torch.empty(M, dtype=torch.float32, device=x.device)
    given = zip((x, weight), needs, strict=True)
    dx, dw = (torch.empty(one.shape, dtype=x.dtype, device=x.device) if need else None for one, need in given)
    rows = rows_of_part(M, V, x.shape[1], x.element_size() + losses.temporaries, multiprocessors(x.device))
    memory = torch.empty(rows, V, dtype=x.dtype, device=x.device)
    options["ignore_index"] = ignore_index
    if not M and dw is not None:
        dw.zero_()
    with torch.no_grad():
        for start in range(0, M, rows):
            part, targets = x[start : start + rows], target[start : start + rows]
            logits = torch.mm(part, weight.t(), out=memory[: len(part)])
            of_rows[start : start + rows] = _losses_of(losses, logits, targets, of_logits if any(needs) else None, options)
            # alpha multiplies in float32, before the result is rounded. With a beta of 0 nothing is read from the result.
            if dx is not None:
                dx[start : start + rows].addmm_(logits, weight, beta=0, alpha=alphas[0])
            if dw is not None:
                dw.addmm_(logits.t(), part, beta=min(start, 1), alpha=alphas[1])
    return of_rows.sum() * mean, dx, dw, factors


def multiply(gradient: Tensor | None, factor: Tensor) -> Tensor | None:
    """In place, by one float32 number that is not rounded to the gradient's dtype, as torch rounds a tensor without dimensions."""
    if gradient is None:
        return None
    for part in gradient.split(max(1, FLOATS // max(1, gradient.shape[1]))):
        part.mul_(factor.view(1, 1))
    return gradient


def _losses_of(losses: Losses, logits: Tensor, target: Tensor, dloss: Tensor | None, options: Mapping[str, float]) -> Tensor:
    """The loss of each row. With a dloss its gradient replaces the logits."""
    if dloss is not None and losses.fused is not None:
        return losses.fused(logits, target, dloss=dloss, out=logits, **options)[0]
    loss, lse = losses.forward(logits, target, **options)
    if dloss is not None:
        losses.backward(logits, target, lse, dloss.expand(len(logits)).contiguous(), out=logits, **options)
    return loss


@lru_cache(maxsize=256)
def rows_of_part(M: int, V: int, H: int, bytes_of_logit: int, multiprocessors: int) -> int:
    """Rows of a part, whose products keep all SMs busy. `bytes_of_logit` are those of a logit and of what is made of it.

    dx of a part has few tiles, so its last wave may leave most SMs idle. Of the parts whose logits fit MOST_BYTES those with the fewest
    waves are taken, of these the fewest parts, and of these the smallest ones.
    """
    most = max(TILE_ROWS, MOST_BYTES // (bytes_of_logit * max(1, V)) // TILE_ROWS * TILE_ROWS)
    if most >= M:
        return max(1, M)

    def cost(rows: int) -> tuple[int, int, int]:
        parts = [min(rows, M - start) for start in range(0, M, rows)]
        tiles = (-(-part // TILE_ROWS) * -(-H // TILE_COLUMNS) for part in parts)
        return sum(-(-count // multiprocessors) for count in tiles), len(parts), rows

    return min(range(TILE_ROWS, most + 1, TILE_ROWS), key=cost)


def multiprocessors(device: torch.device) -> int:
    """The number of SMs, or 1."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def check(x: Tensor, weight: Tensor, target: Tensor) -> None:
    """Raises TypeError or ValueError for tensors that do not fit."""
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"hidden is {tuple(x.shape)} and weight {tuple(weight.shape)}; they must be (M, H) and (V, H)")
    if x.dtype not in DTYPES or weight.dtype is not x.dtype or weight.device != x.device:
        given = f"hidden is {x.dtype} on {x.device} and weight {weight.dtype} on {weight.device}"
        advice = ": weight.to(hidden.dtype)" if x.dtype in DTYPES and weight.device == x.device else ""
        raise TypeError(f"{given}; they must have one dtype of float32, float16 and bfloat16, and one device{advice}")
    if not len(weight):
        raise ValueError(f"weight is {tuple(weight.shape)}; it must have a row for each class")
    if target.shape != x.shape[:1] or target.dtype is not torch.int64 or target.device != x.device:
        given = f"target is {tuple(target.shape)} {target.dtype} on {target.device}"
        raise TypeError(f"{given}; it must be ({len(x)},) int64 on {x.device}")
