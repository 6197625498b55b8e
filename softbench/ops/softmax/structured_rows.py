"""The kinds of structured rows of softmax, by direction; `softbench.ops.rowwise.structured_rows` has those of x and of dy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from softbench.core.case import Case, Direction
from softbench.ops.rowwise import structured_rows
from softbench.ops.rowwise.structured_rows import LARGE_DY, Kinds, Places, first, of_dy, of_x, put, second
from softbench.ops.softmax import scaling

NEAR_ZERO = "1000 times as narrow"
"""Its products with a scale are small, and so are their errors: y has no error but its own rounding."""
SMALL_DY = {"fp32": 1e-8, "fp16": 1e-4, "bf16": 1e-8}
FLAT = ("constant", "stepping up", "stepping down", "all below -100", "with a dy of mean 5", "with a dy of ones", NEAR_ZERO)
"""Kinds that `both` lacks in float16. There an eager gradient divides twice by the sum, and on flat rows the quotient is subnormal."""
HUGE_DY = {"fp32": 1e30, "fp16": LARGE_DY, "bf16": 1e30}


def of_dy_and_y(dtype: str) -> dict[str, Callable[[torch.Tensor, torch.Tensor, Places], object]]:
    """The kinds of rows of dy and y, by name, for the backward alone."""

    def one_hot(y: torch.Tensor, places: Places) -> None:
        y.zero_()
        put(y, places, 1)

    def scaled(dy: torch.Tensor, y: torch.Tensor, places: Places, *, size: float) -> None:
        dy.clamp_(-1.5, 1.5).mul_(size)
        one_hot(y[1::2], places)

    def infinite(dy: torch.Tensor, y: torch.Tensor, places: Places) -> None:
        """+inf and -inf, or an infinity where y is 0: NaN either way."""
        dy[:, 0] = -math.inf
        dy[:, -1] = math.inf
        if places.N > 2:
            one_hot(y[1::2], Places(places.generator, places.N - 1, places.device))

    def wide(dy: torch.Tensor, y: torch.Tensor, places: Places) -> None:
        y.copy_(torch.softmax(30 * torch.randn(y.shape, generator=places.on_device(), device=y.device), dim=-1))

    both = {name: partial(first, change) for name, change in of_dy(dtype).items()}
    return both | {
        "with a one-hot y": lambda dy, y, places: one_hot(y, places),
        f"with a dy of size {SMALL_DY[dtype]:g}": partial(scaled, size=SMALL_DY[dtype]),
        "with a large dy and a one-hot y": partial(scaled, size=HUGE_DY[dtype]),
        "with y = 0 first": lambda dy, y, places: y.masked_fill_(places.before(len(y)), 0),
        "with a y of wide rows": wide,
        "with infinities in dy": infinite,
        "with a y of NaN": lambda dy, y, places: y.fill_(math.nan),
    }


def kinds(case: Case) -> Kinds:
    """All kinds of a case."""
    dtype, changes = case.dtype, of_x(case.dtype)
    if case.parameters:
        changes |= {NEAR_ZERO: lambda x, places: x.mul_(1e-3)}
    if case.direction is Direction.FORWARD:
        return dict(changes)
    if case.direction is Direction.BACKWARD:
        return dict(of_dy_and_y(dtype))
    of_both: dict[str, Callable[..., object]] = {name: partial(first, change) for name, change in changes.items()}
    of_both |= {name: partial(second, change) for name, change in of_dy(dtype).items()}
    return {name: change for name, change in of_both.items() if dtype != "fp16" or name not in FLAT}


def make_structured(given: tuple[torch.Tensor, ...], case: Case, seed: int) -> list[str]:
    """As `softbench.ops.rowwise.structured_rows.make_structured`. With a scale above 1, x * scale has them."""
    rows, scale = scaling.split(case, given)
    names = structured_rows.make_structured(rows, case, seed, kinds(case))
    if case.direction is not Direction.BACKWARD:
        scaling.shrink(rows[0], scale)
    if case.direction is not Direction.FORWARD and case.dtype == "fp16":
        scaling.fit(rows[0 if case.direction is Direction.BACKWARD else 1], scale)
    return names
