"""Losses over rows with a target: what `losses.py` of each kind of kernels computes, and checks of what the kernels are given.

All functions take x of (M, N), the logits, in float32, float16 or bfloat16. `target` is int64 of shape (M,). Other tensors of a row are
float32 of shape (M,), and so are all results but dx. Rows whose elements are adjacent are read in place. Arithmetic is float32.

With z = logit_scale x, or softcap * tanh(logit_scale x / softcap), lse = log(sum_j exp(z_j)), p = exp(z - lse), the target t and
e = label_smoothing:

    loss = (1 - e) (lse - z_t) + e (lse - mean(z)) + z_loss lse^2
    dx_i = dloss ((1 + 2 z_loss lse) p_i - (1 - e) [i = t] - e / N) (1 - (z_i / softcap)^2) logit_scale

Where the target is `ignore_index`, loss and dx are 0; of logprob, the log-probability is 0 and the entropy stays. Another target out of
range makes the results of its row NaN, but for dx where the target is ELSEWHERE. Nothing is read or written out of range, and there is no
device assertion.

The statistics of a row, float32 of (M, 2), are the maximum of z and the sum of exp(z - maximum). An lse is rounded at the size of the
maximum, and p with it, so a gradient takes the statistics if there are some.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import NamedTuple

import torch

from .rows import DTYPES

NO_CLASS = -(2**63)
"""An ignore_index that no target has."""
ELSEWHERE = -(2**62)
"""A target that is a class of another part of the vocabulary: no element of the row has it."""
MOST_COLUMNS = 2**31 - 4096
"""The longest row, in elements: an index within a row has 32 bits."""


class Options(NamedTuple):
    """The options of cross entropy, which its kernels take by these names; logprob has the first, NO_CLASS by default, and the last."""

    ignore_index: int = -100
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float = 0.0
    logit_scale: float = 1.0

    def with_reduction(self, reduction: int) -> tuple[int | float, ...]:
        """As the operators of cross entropy take them."""
        return *self[:4], reduction, self.logit_scale


def logits_and_targets(x: torch.Tensor, target: torch.Tensor, device_types: Sequence[str] = ("cuda",)) -> tuple[torch.Tensor, torch.Tensor]:
    """x of (M, N) with adjacent elements in each row, and the targets of (M,), each a copy where it has other strides.

    Raises:
        TypeError: a dtype or a device does not fit, or target has another shape.
        ValueError: x has another number of dimensions, or no columns, or too many.
    """
    _check(x, target, 2, "(M, N) with an N", device_types)
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous(), target.contiguous()


def targets_of_columns(x: torch.Tensor, target: torch.Tensor, device_types: Sequence[str]) -> torch.Tensor:
    """The targets of (outer, R, inner) logits, int64 of (outer * inner,), contiguous. Each of the other functions takes such logits too.

    Raises TypeError and ValueError as `logits_and_targets`.
    """
    _check(x, target, 3, "(outer, R, inner) with an R", device_types)
    return target.contiguous()


def _check(x: torch.Tensor, target: torch.Tensor, dimensions: int, wanted: str, device_types: Sequence[str]) -> None:
    if x.dim() != dimensions or not 0 < x.shape[1] <= MOST_COLUMNS:
        raise ValueError(f"x is {tuple(x.shape)}; it must be {wanted} from 1 to {MOST_COLUMNS}")
    if x.dtype not in DTYPES or x.device.type not in device_types:
        raise TypeError(f"x is {x.dtype} on {x.device}; the kernels take float32, float16 and bfloat16 on {' and '.join(device_types)}")
    _require(target, x, "target", torch.int64)


def check_arguments(tensors: dict[str, object], ignore_index: object, **numbers: object) -> None:
    """Raises TypeError or ValueError for what are no tensors, and for options of cross entropy that are no numbers or out of range."""
    for name, one in tensors.items():
        if not isinstance(one, torch.Tensor):
            raise TypeError(f"{name} is a {type(one).__name__}; it must be a tensor")
    if not isinstance(ignore_index, (int, Integral)):  # abstract classes take longer
        raise TypeError(f"ignore_index {ignore_index!r}: must be a whole number")
    for name, number in numbers.items():
        if not isinstance(number, (float, int, Real)):
            raise TypeError(f"{name} {number!r}: must be a number")
        positive = name in ("logit_scale", "temperature")
        if not (0 <= float(number) <= 1 if name == "label_smoothing" else 0 <= float(number) < math.inf) or (positive and not number):
            wanted = "0 to 1" if name == "label_smoothing" else "finite and positive" if positive else "finite and not negative"
            raise ValueError(f"{name} {number}: must be {wanted}")


def number_of_rows(given: torch.Tensor, x: torch.Tensor, name: str, *, spread: bool = False) -> torch.Tensor:
    """`given`, a float32 number for each row of x, contiguous unless `spread`. Raises TypeError, with its name, if it is something else."""
    _require(given, x, name, torch.float32)
    return given if spread else given.contiguous()


def base_of_rows(given: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """(lse, None), or (None, statistics) if `given` has two numbers a row, contiguous. Raises TypeError if it is something else."""
    if given.dim() != 2:
        return number_of_rows(given, x, "lse"), None
    if given.shape != (_rows(x), 2) or given.dtype is not torch.float32 or given.device != x.device:
        got = f"{tuple(given.shape)} {given.dtype} on {given.device}"
        raise TypeError(f"lse is {got}; statistics of rows must be ({_rows(x)}, 2) float32 on {x.device}")
    return None, given.contiguous()


def statistics_of_rows(x: torch.Tensor) -> torch.Tensor:
    """Empty statistics of the rows of x."""
    return x.new_empty((_rows(x), 2), dtype=torch.float32)


def check_output_of_rows(given: torch.Tensor, x: torch.Tensor, name: str) -> None:
    """Raises TypeError, with its name, unless `given` is a contiguous float32 number for each row of x."""
    _require(given, x, name, torch.float32)
    if not given.is_contiguous():
        raise TypeError(f"{name} has strides {given.stride()}; it must be contiguous")


def result_of_rows(x: torch.Tensor) -> torch.Tensor:
    """An empty float32 result for each row of x."""
    return x.new_empty(_rows(x), dtype=torch.float32)


def _rows(x: torch.Tensor) -> int:
    """M of (M, N) logits, or the columns of (outer, R, inner) ones."""
    return x.shape[0] if x.dim() == 2 else x.shape[0] * x.shape[2]


def _require(given: torch.Tensor, x: torch.Tensor, name: str, dtype: torch.dtype) -> None:
    rows = _rows(x)
    if given.dtype is not dtype or given.shape != (rows,) or given.device != x.device:
        wanted = str(dtype).removeprefix("torch.")
        raise TypeError(f"{name} is {tuple(given.shape)} {given.dtype} on {given.device}; it must be ({rows},) {wanted} on {x.device}")
