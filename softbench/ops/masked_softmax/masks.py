"""Changes of masks, biases and sinks of rows: what takes elements out, and what wrong kernels treat otherwise than right ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from softbench.ops.rowwise.structured_rows import Places, put

LARGE_SINK = 300.0
LOWEST = {"fp32": -(2.0**127), "fp16": -65504.0, "bf16": -(2.0**127)}
"""What code adds in place of -inf. A sum with z overflows only in float16, to -inf, so each row has another element."""
Change = Callable[[torch.Tensor, Places], object]


def _one_key(values: torch.Tensor, places: Places, *, off: float) -> None:
    values.fill_(off)
    put(values, places, 1 if values.dtype is torch.bool else 0)


def _first(values: torch.Tensor, places: Places, *, off: float) -> None:
    values[places.before(len(values))] = off


def _last(values: torch.Tensor, places: Places, *, off: float) -> None:
    values[places.before(len(values)).flip(1)] = off


def _lowest(bias: torch.Tensor, places: Places, *, lowest: float) -> None:
    """The first element takes part, whatever was drawn: every causal query sees it."""
    bias.masked_fill_(places.some(len(bias)), lowest)
    bias[:, :1] = 0


def of_mask(off: float) -> Mapping[str, Change]:
    """Changes of rows of a mask or a bias, by name; `off` is what takes an element out."""
    return {
        "as drawn": lambda values, places: values,
        "with one key": partial(_one_key, off=off),
        "without a key": lambda values, places: values.fill_(off),
        "without the first keys": partial(_first, off=off),
        "without the last keys": partial(_last, off=off),
        "with scattered keys": lambda values, places: values.masked_fill_(places.some(len(values)), off),
    }


def of_bias(dtype: str) -> Mapping[str, Change]:
    """Changes of rows of a bias that are none of a mask, by name."""
    return {
        "30 times as wide": lambda bias, places: bias.nan_to_num_(neginf=0.0).mul_(30),
        "with the lowest number": partial(_lowest, lowest=LOWEST[dtype]),
        "falling with the distance": lambda bias, places: bias.copy_(
            -0.5 * torch.arange(places.N, device=bias.device).flip(0).clamp(max=120)
        ),
    }


def of_sink() -> Mapping[str, Change]:
    """Changes of sinks, by name."""
    return {
        "as drawn": lambda sink, places: sink,
        f"of {LARGE_SINK:g}": lambda sink, places: sink.fill_(LARGE_SINK),
        f"of {-LARGE_SINK:g}": lambda sink, places: sink.fill_(-LARGE_SINK),
    }
