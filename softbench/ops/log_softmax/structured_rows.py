"""The kinds of structured rows of log-softmax, by direction; `softbench.ops.rowwise.structured_rows` has those of x and of dy.

Rows with +inf are no kind. torch gives NaN in the whole row, and x - logsumexp(x) gives -inf beside one NaN. `softbench check` has such a
row, and expects what torch gives. The kinds of this module show errors that normal rows hide:

- The last column alone: it has nearly all of the sum, or a `dy` that is zero elsewhere. In normal rows it has about 1 / N of the sum.
  Such a loss is below the last rounding of a 16-bit output.
- One element above the rest: all others are d = 8 below it, and a little more. From 8 to 16 the spacing of 16-bit numbers is 16 u_o, and
  d lies just below the middle of two of them. An argument of exp in 16 bits is then off by nearly 8 u_o in all these terms at once. With
  their share p of the sum, L is off by 8 p u_o. The bound of `low-precision` at the largest element is (1 + 2 L) u_o. For 4096 terms p is
  0.58 and L is 0.86; from 2048 terms on 8 p exceeds 1 + 2 L. Errors of normal rows have both signs and cancel.
- Alternating signs of `dy`: the sum is 0 or 1 while that of |dy| is N.

Shared kinds do the rest. Wide rows, one-hot rows, steps and an element of 300 have outputs below -104, where exp is 0 in float32 and the
logarithm of softmax is -inf. A `dy` of one sign has the largest sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from softbench.core.case import Case, Direction
from softbench.ops.rowwise import structured_rows
from softbench.ops.rowwise.structured_rows import LARGE_DY, Change, Kinds, Places, first, of_dy, of_x, put, second

ABOVE, FAR = 8.0, -60.0
"""The element above the rest, and elements that add nothing to the sum."""
AROUND = 4096
"""Elements of the rest, about: 4096 exp(-8) is 1.4, so their share p of the sum is 0.58. Shorter rows have fewer."""
BELOW_MIDDLE = {"fp32": 2.0**-5, "fp16": 2.0**-8, "bf16": 2.0**-5}
"""Half of the spacing of 16-bit numbers from 8 to 16; that of bf16 in fp32."""
SMALL_DY = {"fp32": 1e-8, "fp16": 1e-4, "bf16": 1e-8}
HUGE_DY = {"fp32": 1e30, "fp16": 10.0, "bf16": 1e30}
"""`dy` is at most 1.5 times as large. Where y is one-hot, dx has the sum of dy, which must not overflow float16."""
WIDE = f"with a dy of size {LARGE_DY:g}"
"""A kind that float16 lacks: in a short row dx has most of the sum of dy, and may overflow."""


def kinds(direction: Direction, dtype: str) -> Kinds:
    """All kinds of a direction."""
    if direction is Direction.FORWARD:
        return _of_x(dtype)
    if direction is Direction.BACKWARD:
        return {name: partial(first, change) for name, change in _of_dy(dtype).items()} | _of_dy_and_y(dtype)
    x_or_dy = [(_of_x(dtype), first), (_of_dy(dtype), second)]
    return {name: partial(one, change) for changes, one in x_or_dy for name, change in changes.items()}


def make_structured(given: tuple[torch.Tensor, ...], case: Case, seed: int) -> list[str]:
    """As `softbench.ops.rowwise.structured_rows.make_structured`."""
    return structured_rows.make_structured(given, case, seed, kinds(case.direction, case.dtype))


def _of_x(dtype: str) -> dict[str, Change]:
    def one_above(x: torch.Tensor, places: Places) -> None:
        share, chosen = torch.rand((2, *x.shape), generator=places.on_device(), device=x.device)
        x.copy_(torch.where(chosen < AROUND / places.N, -BELOW_MIDDLE[dtype] * (1 - share / 8), FAR))
        put(x, places, ABOVE)

    return {name: change for name, change in of_x(dtype).items() if name != "with one +inf"} | {
        "with 30 in the last column": lambda x, places: x[:, -1].fill_(30),
        "with one element above the rest": one_above,
    }


def _of_dy(dtype: str) -> dict[str, Change]:
    def last(dy: torch.Tensor, places: Places) -> None:
        dy.zero_()
        dy[:, -1] = 1

    def alternating(dy: torch.Tensor, places: Places) -> None:
        dy.fill_(1)
        dy[:, 1::2] = -1

    return {name: change for name, change in of_dy(dtype).items() if dtype != "fp16" or name != WIDE} | {
        "with a dy in the last column alone": last,
        "with a dy of alternating signs": alternating,
    }


def _of_dy_and_y(dtype: str) -> dict[str, Callable[[torch.Tensor, torch.Tensor, Places], object]]:
    """The kinds of rows of dy and y, by name, for the backward alone."""

    def one_hot(y: torch.Tensor, places: Places) -> None:
        y.fill_(-math.inf)
        put(y, places, 0)

    def scaled(dy: torch.Tensor, y: torch.Tensor, places: Places, *, size: float) -> None:
        dy.clamp_(-1.5, 1.5).mul_(size)
        one_hot(y[1::2], places)

    def infinite(dy: torch.Tensor, y: torch.Tensor, places: Places) -> None:
        dy[:, 0] = -math.inf
        dy[:, -1] = math.inf

    def wide(dy: torch.Tensor, y: torch.Tensor, places: Places) -> None:
        y.copy_(torch.log_softmax(30 * torch.randn(y.shape, generator=places.on_device(), device=y.device), dim=-1))

    return {
        "with a one-hot y": lambda dy, y, places: one_hot(y, places),
        f"with a dy of size {SMALL_DY[dtype]:g}": partial(scaled, size=SMALL_DY[dtype]),
        f"with a dy of size {HUGE_DY[dtype]:g}": partial(scaled, size=HUGE_DY[dtype]),
        "with y = -inf first": lambda dy, y, places: y.masked_fill_(places.before(len(y)), -math.inf),
        "with a y of wide rows": wide,
        "with infinities in dy": infinite,
        "with a y of NaN": lambda dy, y, places: y.fill_(math.nan),
    }
