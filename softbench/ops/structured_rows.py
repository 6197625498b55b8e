"""Kinds of structured rows: values on which wrong kernels differ from right ones.

A kind changes a view of some rows in place, (rows, N). All right kernels agree on the result: no value depends on the order of a sum, and
NaN and infinities follow from IEEE arithmetic in any order. So infinities in `dy` make the whole row NaN.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from softbench.core.case import Case
from softbench.ops.lazy import torch

MARGIN = 1.02
"""A factor for the rounding of a quotient and of a product in 16 bits."""
FLOAT16 = 3e4
"""Below half of the largest float16: dx has a difference of two such numbers."""
MAX_SHIFT = {"fp32": 1e7, "fp16": 1.5e3, "bf16": 1e3}
"""The largest shift of a row, by dtype, at which its elements still differ."""
MASSIVE = (300.0, 3008.0, 29952.0)
"""Single large elements, as the massive activations and sinks of language models; 16 bits hold them."""
STEPS = (1e2, 1e3, 1e4)
"""Heights of steps. All exceed 88, where exp overflows float32. At larger ones a float32 exponent by one multiply-add is too inexact."""
ABOVE = (7.0, 11.0, 15.0)
"""Maxima of rows whose other elements are near 0."""
LEVELS = {"fp32": (100.0, 2e4, 5e6), "fp16": (100.0, 2e4, FLOAT16), "bf16": (100.0, 2e4, 5e6)}
"""Elements of all-negative rows lie below minus these numbers. Kernels may begin a maximum there."""
TINY = {"fp32": 1e-40, "fp16": 1e-7, "bf16": 1e-40}
"""Factors that make normal values subnormal."""
ZEROS = "of zeros or tiny numbers"
NORMAL = "of normal values"
"""What rows are called that stay as they were drawn."""
LONG_ROWS = ("with a large element or a step, and -inf", "with -inf first", "with one large element")
"""Kinds that half of the structured rows have where there are few, because they are long: tiles of a row differ."""
PRODUCT, EACH_ONCE = 2**18, 2**19
"""Elements of all calls, at most, where each kind is in the first row, the last and all rows; and of rows that have each kind once."""
LARGE_DY = 1e4
"""`dy` is at most 1.5 times as large: half the difference of two such values is a float16."""


@dataclass(frozen=True, slots=True)
class Places:
    """Random columns of N, from a generator on the CPU."""

    generator: torch.Generator
    N: int
    device: torch.device

    def columns(self, rows: int) -> torch.Tensor:
        """A column for each row: one of the last two, a tile's edge, and two of any number, in turn."""
        random = torch.randint(self.N, (rows,), generator=self.generator)
        edges, turn = torch.tensor(self.edges()), int(torch.randint(4, (), generator=self.generator)) if rows < 4 else 0
        at_edges, last = slice((1 - turn) % 4, None, 4), slice(-turn % 4, None, 4)
        random[at_edges] = edges[torch.randint(len(edges), random[at_edges].shape, generator=self.generator)]
        random[last] = self.N - 1 - torch.randint(min(2, self.N), random[last].shape, generator=self.generator)
        return random.to(self.device)

    def edges(self) -> list[int]:
        """The first and last columns, and those around powers of two, where tiles begin and end."""
        near = {around + off for power in range(self.N.bit_length()) for around in (1 << power, 0, self.N) for off in (-2, -1, 0, 1)}
        return sorted(column for column in near if 0 <= column < self.N)

    def at_blocks(self, rows: int) -> torch.Tensor:
        """A column for each row: the first or the last one of any block of 16, 32, 64 and so on."""
        powers = range(4, self.N.bit_length())
        if not powers:
            return self.columns(rows)
        first, off = (int(torch.randint(count, (), generator=self.generator)) for count in (len(powers), 2))
        sizes = torch.tensor([1 << powers[(first + row) % len(powers)] for row in range(rows)])
        blocks = 1 + (torch.rand(rows, generator=self.generator, dtype=torch.float64) * (self.N // sizes)).long()
        ends = blocks * sizes - (torch.arange(rows) // len(powers) + torch.arange(rows) + off) % 2
        return ends.clamp(max=self.N - 1).to(self.device)

    def before(self, rows: int) -> torch.Tensor:
        """(rows, N), True to the left of a random column of each row. At least one column of a row is False."""
        return torch.arange(self.N, device=self.device) < self.columns(rows)[:, None]

    def some(self, rows: int) -> torch.Tensor:
        """(rows, N), True at a share of a half, or of nearly all. One column of each row is False."""
        shares = torch.tensor([0.5, 0.99, 1.0], device=self.device).repeat(1 + rows // 3)[:rows, None]
        chosen = torch.rand((rows, self.N), generator=self.on_device(), device=self.device) < shares
        chosen[torch.arange(rows, device=self.device), self.columns(rows)] = False
        return chosen

    def on_device(self) -> torch.Generator:
        """A generator for whole rows, which the CPU's would make slowly for a GPU."""
        seed = int(torch.randint(2**31, (), generator=self.generator))
        return torch.Generator(self.device).manual_seed(seed)


def put(rows: torch.Tensor, places: Places, *values: float) -> None:
    """Write one of the values, in turn, into one random column of each row."""
    rows[torch.arange(len(rows), device=rows.device), places.columns(len(rows))] = _levels(rows, values)[:, 0]


def _a_little_above(x: torch.Tensor, places: Places) -> None:
    """The sum before the maximum is small beside it, and still counts."""
    x.mul_(0.25)  # equal elements would round alike in a serial sum
    put(x, places, *ABOVE)


def _levels(rows: torch.Tensor, levels: tuple[float, ...]) -> torch.Tensor:
    """(rows, 1), the levels in turn."""
    return torch.tensor(levels, dtype=rows.dtype, device=rows.device).repeat(1 + len(rows) // len(levels))[: len(rows), None]


Change = Callable[["torch.Tensor", Places], object]
Kinds = Mapping[str, Callable[..., object]]
"""Functions of views of the tensors of a pass, and `Places`, by the name of the kind."""


def of_x(dtype: str) -> dict[str, Change]:
    """The kinds of rows of x, by name."""

    def one_hot(x: torch.Tensor, places: Places) -> None:
        x.fill_(-50)
        put(x, places, 50)

    def ramp(x: torch.Tensor, places: Places, *, falling: bool) -> None:
        values = torch.linspace(0, 60 if falling else -100, places.N, device=x.device).to(x.dtype)  # float16's own has an inf
        x.copy_(values.flip(0))

    def zeros(x: torch.Tensor, places: Places) -> None:
        turn = int(torch.randint(3, (), generator=places.generator))
        x.mul_(TINY[dtype])
        x[turn::3] = 0.0
        x[(turn + 1) % 3 :: 3] = -0.0

    def infinite(x: torch.Tensor, places: Places) -> None:
        put(x[1::2], places, -math.inf)
        put(x, places, math.inf)

    def step(x: torch.Tensor, places: Places, *, up: bool) -> None:
        x.add_(torch.where(places.before(len(x)) != up, _levels(x, STEPS), 0))

    def large(x: torch.Tensor, places: Places) -> None:
        put(x, places, *MASSIVE)

    def uneven(x: torch.Tensor, places: Places) -> None:
        changes: tuple[Change, ...] = (large, partial(step, up=True), partial(step, up=False))
        masks = (places.before, places.before, places.some, lambda rows: places.before(rows).flip(1))
        turn = int(torch.randint(12, (), generator=places.generator))
        for number, change in enumerate(changes):
            change(x[(number - turn) % 3 :: 3], places)
        for number, mask in enumerate(masks):
            rows = x[(number - turn) % 4 :: 4]
            rows.masked_fill_(mask(len(rows)), -math.inf)

    return {
        "30 times as wide": lambda x, places: x.mul_(30),
        f"shifted by {MAX_SHIFT[dtype]:g}": lambda x, places: x.add_(MAX_SHIFT[dtype]),
        "constant": lambda x, places: x.fill_(3.25),
        "one-hot": one_hot,
        "rising to 0": partial(ramp, falling=False),
        "falling from 60": partial(ramp, falling=True),
        "stepping up": partial(step, up=True),
        "stepping down": partial(step, up=False),
        "with one element a little above the others": _a_little_above,
        "with one large element": large,
        LONG_ROWS[0]: uneven,
        ZEROS: zeros,
        "all below -100": lambda x, places: x.abs_().neg_().sub_(_levels(x, LEVELS[dtype])),
        "with -inf first": lambda x, places: x.masked_fill_(places.before(len(x)), -math.inf),
        "with -inf last": lambda x, places: x.masked_fill_(places.before(len(x)).flip(1), -math.inf),
        "with -inf scattered": lambda x, places: x.masked_fill_(places.some(len(x)), -math.inf),
        "of -inf": lambda x, places: x.fill_(-math.inf),
        "with one NaN": lambda x, places: put(x, places, math.nan),
        "with one +inf": infinite,
    }


def of_dy(dtype: str) -> dict[str, Change]:
    """The kinds of rows of dy, by name, on which `both` and the backward agree."""

    def large(dy: torch.Tensor, places: Places) -> None:
        dy.clamp_(-1.5, 1.5).mul_(LARGE_DY)

    def one_hot(dy: torch.Tensor, places: Places) -> None:
        dy.zero_()
        put(dy, places, 1)

    return {
        "with a dy of ones": lambda dy, places: dy.fill_(1),
        "with a dy of zeros": lambda dy, places: dy.zero_(),
        "with a one-hot dy": one_hot,
        "with a dy of mean 5": lambda dy, places: dy.add_(5),
        "with a dy of size 100": lambda dy, places: dy.mul_(100),
        f"with a dy of size {LARGE_DY:g}": large,
        "with one NaN in dy": lambda dy, places: put(dy, places, math.nan),
    }


def first(change: Change, one: torch.Tensor, other: torch.Tensor, places: Places) -> None:
    """Change the first of two tensors."""
    change(one, places)


def second(change: Change, one: torch.Tensor, other: torch.Tensor, places: Places) -> None:
    """Change the second of two tensors."""
    change(other, places)


def make_structured(given: tuple[torch.Tensor, ...], case: Case, seed: int, kinds: Kinds, order: Sequence[str] = ()) -> list[str]:
    """Structured rows in place of normal ones, in the same memory: what is right on normal rows alone is then wrong.

    `order` has the kinds of the rows, in turn. Without it, rows of a kind are one in so many; in a case of fewer rows the seed chooses.
    Returns the kinds' names: that of a row is at its number modulo their number.
    """
    names = list(kinds)
    first = seed % len(names)
    dealt = list(order) or names[first:] + names[:first]
    places = Places(torch.Generator().manual_seed(seed), case.N, given[0].device)
    return change_rows(given, [True] * len(given), dealt, case.M, kinds, places)


def change_rows(
    given: Sequence[torch.Tensor], has_rows: Sequence[bool], dealt: list[str], M: int, kinds: Kinds, *more: Places
) -> list[str]:
    """Change each of M rows as its kind in `dealt` says, which is returned. Tensors without rows stay."""
    which: dict[str, list[int]] = {}
    for place, name in enumerate(dealt[:M]):
        which.setdefault(name, []).append(place)
    for name, change in kinds.items():
        if name not in which:
            continue
        alone = len(which[name]) == 1
        rows = slice(which[name][0], None, len(dealt)) if alone else torch.tensor(which[name], device=given[0].device)
        parts = [tensor.detach()[rows] if own else tensor.detach() for tensor, own in zip(given, has_rows, strict=True)]
        change(*parts, *more)
        for tensor, part, own in zip(given, parts, has_rows, strict=True):
            if own and not alone:
                tensor.data[rows] = part
    return dealt


def deal(kinds: Sequence[str], M: int, N: int, source: random.Random, most_calls: int) -> list[list[str]]:
    """The kinds of the rows of each call on (M, N) tensors, in turn: a random product as large as its elements allow.

    A backend may decide by its first row, or by its last, how it computes all: so each kind is there once, and once in all rows.
    """
    shuffled = source.sample(kinds, len(kinds))
    others = [*kinds, *[NORMAL] * len(kinds)]
    calls: list[list[str]] = []
    if 2 * len(kinds) * M * N <= PRODUCT:
        for kind, last in zip(shuffled, shuffled[1:] + shuffled[:1], strict=True):
            calls += [[kind] * M] + ([[kind, *source.choices(others, k=M - 2), last]] if M > 1 else [])
        return calls[:most_calls]
    if len(others) <= M:
        return [source.sample(others, len(others))]
    if len(kinds) * N <= EACH_ONCE:
        rows = shuffled
    else:
        preferred = [kind for kind in kinds if kind in LONG_ROWS] or shuffled
        rows = [source.choice(preferred if source.random() < 0.5 else shuffled) for _ in range(M)]
        rows = source.sample([*rows, *[NORMAL] * M], 2 * M)
    rows = rows[: M * most_calls] + [NORMAL] * (-len(rows) % M)
    return [rows[first : first + M] for first in range(0, min(len(rows), M * most_calls), M)]


def shrink(tensor: torch.Tensor, scale: float | torch.Tensor | None) -> None:
    """Divide by a scale above 1, in place, so that products with it overflow no dtype, although quotient and product are rounded."""
    if scale is not None:
        above = (MARGIN * scale).clamp_min(1).to(tensor.dtype) if isinstance(scale, torch.Tensor) else max(1.0, MARGIN * scale)
        tensor.data.div_(above)


def fit(dy: torch.Tensor, scale: float | torch.Tensor | None) -> None:
    """Make rows of dy smaller, in place, whose product with a scale would overflow float16."""
    if scale is not None:
        high = dy.detach().double().nan_to_num(0, 0, 0).abs().amax(dim=-1, keepdim=True) * scale
        dy.data.div_((high / FLOAT16).clamp_min(1).to(dy.dtype))
