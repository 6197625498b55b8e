"""Small launches of every kernel of masked softmax, which are Triton's, for tools/every_tier.py.

Each dtype with each length, and what else the kernels are compiled for in turns. Those of long causal rows get each number of tiles, with
rows that are too few for the rule.

Tensors end where their memory ends. The last row of a mask takes no part. In a row without a sink the results are then NaN, as in torch.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from launches import BRAIN, FULL, HALF, Launch, Pairs, placed

DTYPES = (FULL, HALF, BRAIN)
FORWARD, BACKWARD = "forward", "backward"
AXES = ("BHSN", "HSN", "BSN", "SN", "BN")
"""The axes of scores that a mask has. It is broadcast over the others."""
Sizes = tuple[int, int, int, int]
Tensors = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class Asked:
    """What a launch is asked, apart from numbers."""

    direction: str
    dtype: torch.dtype
    sizes: Sizes
    mask: torch.dtype | None = None
    """bool, or the dtype of a bias."""
    axes: str = ""
    causal: bool = False
    sink: torch.dtype | None = None
    shares: bool = False
    """Forward: the share of the sink is written. Backward: it is read."""
    offset: int = 0
    """Elements before x, or before dy and y."""
    mask_offset: int = 0
    first_sees: int = 0
    """Columns that query 0 sees, if it is not what `masked_softmax` makes of the sizes."""
    scale: float = 0.3

    @property
    def sees(self) -> int:
        return self.first_sees or 1 + max(0, self.sizes[3] - self.sizes[2])

    @property
    def rows(self) -> int:
        return math.prod(self.sizes[:3])

    @property
    def bytes(self) -> int:
        """Of the scores."""
        return math.prod(self.sizes) * self.dtype.itemsize


def sizes_for(N: int) -> Sizes:
    """An odd number of rows, as CTAs have several short ones, and few long rows. Very short rows see all columns before the last query."""
    return (3, 3, 9 if N < 9 else 5, N) if N <= 1024 else (2, 2, 3, N)


ROWS_OF_SOFTMAX = tuple(Asked(direction, BRAIN, (2, 3, 5, 100)) for direction in (FORWARD, BACKWARD))
"""Scores without mask, order and sink: the kernels of softmax have them."""
LARGE = (
    Asked(FORWARD, BRAIN, (1, 1, 512, 4104), causal=True),  # as few rows as the rule for long causal rows takes
    Asked(BACKWARD, HALF, (1, 1, 512, 8200), causal=True),
    Asked(FORWARD, HALF, (1, 1, 1024, 16384), causal=True),
    Asked(BACKWARD, BRAIN, (1, 1, 512, 16384), causal=True),
    Asked(FORWARD, FULL, (4, 4, 1025, 513), torch.bool, "BSN", causal=True),
    Asked(BACKWARD, BRAIN, (4, 8, 512, 512), causal=True),
)
"""The last four are enough for the kernels that keep their reads in L2."""
COLUMNS = (1, 7, 33, 64, 128, 384, 1000, 1500, 4096, 8192, 16383)
"""Blocks of 1 to 16384 columns and programs of 1 to 32 warps, with a length that is a multiple of 16 and one that is not."""


def of_forward() -> Iterator[Asked]:
    """Two launches of each dtype and length."""
    kinds = [*((mask, axes) for mask in ("same", FULL, torch.bool) for axes in AXES), (None, "")]
    settings = [
        (mask, axes, causal, sink, shares)
        for (mask, axes), causal, (sink, shares) in itertools.product(kinds, (True, False), ((None, False), (FULL, False), ("same", True)))
        if causal or mask is not None or sink is not None
    ]
    random.Random(0).shuffle(settings)
    turns = itertools.cycle(settings)
    for offset, dtype, N in itertools.product((0, 1), DTYPES, COLUMNS):
        mask, axes, causal, sink, shares = next(turns)
        mask, sink = (dtype if one == "same" else one for one in (mask, sink))
        yield Asked(FORWARD, dtype, sizes_for(N), mask, axes, causal, sink, shares, offset, offset)


def of_backward() -> Iterator[Asked]:
    settings = itertools.cycle(((True, False), (False, True), (True, True)))
    for dtype, N in itertools.product(DTYPES, COLUMNS):
        causal, shares = next(settings)
        yield Asked(BACKWARD, dtype, sizes_for(N), causal=causal, sink=FULL if shares else None, shares=shares, offset=N % 2)


def of_long_causal_rows() -> Iterator[Asked]:
    """Each number of tiles in both dtypes."""
    sees = itertools.cycle((1, 7, 1023, 1024, 4098))
    for direction, tile, most in ((FORWARD, 1024, 16), (BACKWARD, 2048, 8)):
        for tiles, dtype in itertools.product(range(5, most + 1), (HALF, BRAIN)):
            yield Asked(direction, dtype, (2, 1, 3, tile * tiles - tiles % 3 * 8), causal=True, first_sees=next(sees))


@dataclass
class Scores:
    """The tensors of a launch. They are made on the CPU, and so is what is expected: racecheck reports hazards in torch's own kernels."""

    asked: Asked
    x: torch.Tensor = field(init=False)
    mask: torch.Tensor | None = None
    sink: torch.Tensor | None = None

    def __post_init__(self) -> None:
        asked = self.asked
        self.x = placed(2 * torch.randn(asked.sizes), asked.dtype, asked.offset)
        if asked.mask is not None:
            shape = [size if axis in asked.axes else 1 for axis, size in zip("BHSN", asked.sizes, strict=True)]
            keep = torch.rand(shape) < 0.7
            keep.view(-1, shape[3])[-1] = False
            values = keep if asked.mask is torch.bool else torch.randn(shape).masked_fill(~keep, -math.inf)
            self.mask = placed(values, asked.mask, asked.mask_offset)
        if asked.sink is not None:
            self.sink = placed(torch.randn(asked.sizes[1]), asked.sink)

    def hidden(self) -> torch.Tensor:
        """Where a query does not see a column, (S, N)."""
        S, N = self.asked.sizes[2:]
        return (torch.arange(N) >= torch.arange(S)[:, None] + self.asked.sees) & self.asked.causal

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """y, and the share of the sink, in float64."""
        z = self.x.cpu().double() * self.asked.scale
        if self.mask is not None:
            mask = self.mask.cpu()
            z = z.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else z + mask.double()
        z = z.masked_fill(self.hidden(), -math.inf)
        logit = torch.full((z.shape[1],), -math.inf) if self.sink is None else self.sink.cpu()
        y = torch.softmax(torch.cat([z, logit.double()[:, None, None].expand(*z.shape[:3], 1)], -1), -1)
        return y[..., :-1], y[..., -1]


Call = Callable[[Asked, Tensors], tuple[Tensors, str]]
"""Launches a forward of (x, mask, sink) or a backward of (dy, y, share). Returns (y, share) or (dx, dsink), and what was launched."""


def launch_of(asked: Asked, call: Call) -> Launch:
    reads = 1 if asked.direction == FORWARD else 2

    def run() -> tuple[str, Callable[[], Pairs]]:
        scores = Scores(asked)
        given: Tensors = scores.x, scores.mask, scores.sink
        if asked.direction == BACKWARD:
            y, share = scores.expected()
            given = scores.x, placed(y, asked.dtype, asked.offset), placed(share, FULL) if asked.shares else None
        (result, of_sink), kernel = call(asked, given)

        def pairs() -> Pairs:
            if asked.direction == FORWARD:
                y, share = scores.expected()
            else:
                dy, y, share = (None if one is None else one.cpu().double() for one in given)
                dot = (dy * y).sum(-1, keepdim=True)
                y, share = asked.scale * y * (dy - dot), None if share is None else -share * dot[..., 0]
            got, hidden = result.cpu(), scores.hidden()
            unseen = hidden & (got != 0) & ~(got.isnan() & y.isnan().any(-1, keepdim=True))  # a row of NaN may have zeros there
            found = [(result, torch.where(hidden & (got == 0), 0.0, y)), (unseen.sum().float(), torch.zeros(()).double())]
            return [*found, *([(of_sink, share)] if asked.shares else [])]

        return f"{asked.direction} {kernel}", pairs

    return Launch(asked.rows, reads * asked.bytes, (reads + 1) * asked.bytes, run)


def called(function: Any, asked: Asked, given: Tensors) -> Tensors:
    """The results of a `MaskedSoftmax`."""
    if asked.direction == BACKWARD:
        return function.backward(*given, scale=asked.scale, causal=asked.causal)
    x, mask, sink = given
    return function.forward(x, scale=asked.scale, mask=mask, causal=asked.causal, sink=sink, shares=asked.shares)


def triton_launches(_: str) -> Iterator[Launch]:
    from softbench.kernels.triton import causal_rows, masked_softmax as scores
    from softbench.kernels.triton.masked_softmax import masked_softmax

    names: list[str] = []
    run = scores.run

    def recorded(launch: scores.Launch, *given: Any) -> Any:
        names.append(launch.kernel.fn.__name__)
        return run(launch, *given)

    scores.run = recorded

    def call(asked: Asked, given: Tensors) -> tuple[Tensors, str]:
        names.clear()
        scores._cache.clear()  # so that each launch comes here
        return called(masked_softmax, asked, given), names[0] if names else "softmax"

    def call_causal(asked: Asked, given: Tensors) -> tuple[Tensors, str]:
        """The kernel for long causal rows, whose rule wants 512 rows."""
        backward = asked.direction == BACKWARD
        plan = causal_rows.causal_plan(asked.sizes[3], backward)
        kernel = causal_rows.backward_causal if backward else causal_rows.forward_causal
        out = torch.full_like(given[0], math.nan)
        tensors = (*given[:2], out) if backward else (given[0], out)
        run(scores.causal_launch(kernel, plan, range(len(tensors)), tensors, asked.sees), tensors, asked.scale)
        return (out, None), kernel.fn.__name__

    yield from (launch_of(asked, call) for asked in (*of_forward(), *of_backward()))
    yield from (launch_of(asked, call_causal) for asked in of_long_causal_rows())
    yield from (launch_of(asked, call) for asked in (*ROWS_OF_SOFTMAX, *LARGE))
