"""Small launches of every kernel of masked softmax, for tools/every_tier.py.

CUDA: each instantiation of `scores.cuh`. Triton: each dtype with each length, and what else its kernels are compiled for in turns. The
kernels of long causal rows get each number of tiles, with rows that are too few for the rule.

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
VECTOR_BYTES = 16
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
WHOLE_ROWS = tuple(
    Asked(FORWARD, dtype, (2, 3, 32, N), torch.bool, axes, sink=sink)
    for dtype, N, (axes, sink) in itertools.product((HALF, BRAIN), (128, 256), (("BN", None), ("BSN", None), ("BN", FULL)))
)
"""Four vectors a lane: masks that all queries share, masks of each query, and sinks."""
LARGE_CUDA = (
    Asked(FORWARD, BRAIN, (8, 8, 2048, 128), torch.bool, "BN"),
    Asked(FORWARD, HALF, (4, 8, 2048, 256), torch.bool, "BSN"),
    Asked(FORWARD, BRAIN, (4, 8, 1024, 512), causal=True),
    Asked(FORWARD, BRAIN, (2, 2, 1024, 4104), torch.bool, "BSN", causal=True),  # the heads that share a row of the mask are neighbours
    Asked(FORWARD, FULL, (2, 2, 1025, 2049), FULL, "SN"),
    Asked(BACKWARD, BRAIN, (4, 8, 512, 512), causal=True),
    Asked(BACKWARD, FULL, (2, 2, 513, 2049), causal=True),
)
"""Enough rows for the kernels that keep their reads in L2."""
LARGE_TRITON = (
    Asked(FORWARD, BRAIN, (1, 1, 512, 4104), causal=True),  # as few rows as the rule for long causal rows takes
    Asked(BACKWARD, HALF, (1, 1, 512, 8200), causal=True),
    Asked(FORWARD, HALF, (1, 1, 1024, 16384), causal=True),
    Asked(BACKWARD, BRAIN, (1, 1, 512, 16384), causal=True),
    Asked(FORWARD, FULL, (4, 4, 1025, 513), torch.bool, "BSN", causal=True),
    Asked(BACKWARD, BRAIN, (4, 8, 512, 512), causal=True),
)
"""The last four are enough for the kernels that keep their reads in L2."""
CUDA_COLUMNS = {
    # (short, aligned): columns by the elements V of a vector. 128 vectors are the most of a short row.
    (True, True): lambda V: (V, 8 * V, 16 * V, 32 * V, 48 * V, 128 * V),
    (True, False): lambda V: (1, 7, 33, 197, 333, 127 * V - 1),
    (False, True): lambda V: (129 * V, 2048 * V, 4096),
    (False, False): lambda V: (1021, 2048 * V - 1, 4099),  # the second begin at vectors: from lines on, 512 threads would not hold them
}
EIGHT_VECTORS = {(True, True): (1000, 516), (True, False): (997, 515), (False, True): (8196, 16384), (False, False): (8193, 16383)}
"""Columns of float32 rows with eight vectors a thread."""


def cuda_kernels() -> Iterator[tuple[torch.dtype, bool, bool, bool, Iterator[int]]]:
    """dtype, whether a thread has eight vectors, whether a row is short, whether it is aligned, and columns in turns."""
    for dtype, eight, short, aligned in itertools.product(DTYPES, (False, True), (True, False), (True, False)):
        if eight and dtype != FULL:
            continue
        columns = EIGHT_VECTORS[short, aligned] if eight else CUDA_COLUMNS[short, aligned](VECTOR_BYTES // dtype.itemsize)
        yield dtype, eight, short, aligned, itertools.cycle(columns)


def plan_of_eight(eight: bool, short: bool) -> tuple[Any, ...]:
    """The rules choose no short rows with eight vectors a lane."""
    return ("sub_warp", 8, 64, 32, 0, VECTOR_BYTES) if eight and short else ()


def of_cuda_forward() -> Iterator[tuple[Asked, tuple[Any, ...]]]:
    """Every instantiation, most of them twice. What they are not compiled for takes turns."""
    settings = itertools.cycle(itertools.product((True, False), ((None, False), (FULL, False), (BRAIN, True), (FULL, True))))
    axes = itertools.cycle(AXES)
    for dtype, eight, short, aligned, columns in cuda_kernels():
        for mask, again in itertools.product((None, dtype, torch.bool), range(1 if eight or aligned > short else 2)):
            N, (causal, (sink, shares)) = next(columns), next(settings)
            offset = 0
            if mask is not None and not aligned and again:  # a mask at an odd address before aligned rows
                N, offset = (64, 1) if short else (4096, 1)
            given = {"causal": causal or mask is sink is None, "sink": sink, "shares": shares, "offset": again, "mask_offset": offset}
            yield Asked(FORWARD, dtype, sizes_for(N), mask, next(axes) if mask else "", **given), plan_of_eight(eight, short)
    dtypes = itertools.cycle(DTYPES)
    for N, boolean, order in itertools.product((333, 1021), (False, True), (1, 2, 3)):
        dtype = next(dtypes)
        plan = ("sub_warp", 4, 128, 32, 1 + order, VECTOR_BYTES) if N == 333 else ("block", 4, 96, 0, 1 + order, 128)
        yield Asked(FORWARD, dtype, sizes_for(N), torch.bool if boolean else dtype, next(axes), causal=boolean), plan
    yield from ((asked, ()) for asked in WHOLE_ROWS)


def of_cuda_backward() -> Iterator[tuple[Asked, tuple[Any, ...]]]:
    settings = itertools.cycle(((True, False), (False, True), (True, True)))
    for dtype, eight, short, _, columns in cuda_kernels():
        for again in range(2):
            N, (causal, shares) = next(columns), next(settings)
            sink = FULL if shares else None
            asked = Asked(BACKWARD, dtype, sizes_for(N), causal=causal, sink=sink, shares=shares, offset=again)
            yield asked, plan_of_eight(eight, short)


TRITON_COLUMNS = (1, 7, 33, 64, 128, 384, 1000, 1500, 4096, 8192, 16383)
"""Blocks of 1 to 16384 columns and programs of 1 to 32 warps, with a length that is a multiple of 16 and one that is not."""


def of_triton_forward() -> Iterator[Asked]:
    """Two launches of each dtype and length."""
    kinds = [*((mask, axes) for mask in ("same", FULL, torch.bool) for axes in AXES), (None, "")]
    settings = [
        (mask, axes, causal, sink, shares)
        for (mask, axes), causal, (sink, shares) in itertools.product(kinds, (True, False), ((None, False), (FULL, False), ("same", True)))
        if causal or mask is not None or sink is not None
    ]
    random.Random(0).shuffle(settings)
    turns = itertools.cycle(settings)
    for offset, dtype, N in itertools.product((0, 1), DTYPES, TRITON_COLUMNS):
        mask, axes, causal, sink, shares = next(turns)
        mask, sink = (dtype if one == "same" else one for one in (mask, sink))
        yield Asked(FORWARD, dtype, sizes_for(N), mask, axes, causal, sink, shares, offset, offset)


def of_triton_backward() -> Iterator[Asked]:
    settings = itertools.cycle(((True, False), (False, True), (True, True)))
    for dtype, N in itertools.product(DTYPES, TRITON_COLUMNS):
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


def cuda_launches(_: str) -> Iterator[Launch]:
    from softbench.kernels.common.masked_softmax import MaskedSoftmax
    from softbench.kernels.cuda import masked_softmax as kernels
    from softbench.kernels.cuda.launch import TIERS, Plan

    def launch(asked: Asked, numbers: tuple[Any, ...] = ()) -> Launch:
        tiers = ["softmax"]

        def by_plan(launcher: Callable[..., None]) -> Callable[..., None]:
            def launched(*given: Any) -> None:
                plan = Plan(*((TIERS.index(numbers[0]), *numbers[1:]) if numbers else (-1,)))
                launcher(*given, plan=plan)
                tiers[:] = [TIERS[plan.tier]]

            return launched

        launchers = by_plan(kernels.launch_forward), by_plan(kernels.launch_backward)
        function = MaskedSoftmax(kernels.masked_softmax.softmax, *launchers, kernels.MAX_COLUMNS)
        return launch_of(asked, lambda asked, given: (called(function, asked, given), tiers[0]))

    yield from (launch(*one) for one in (*of_cuda_forward(), *of_cuda_backward()))
    yield from (launch(asked) for asked in (*ROWS_OF_SOFTMAX, *LARGE_CUDA))


def triton_launches(_: str) -> Iterator[Launch]:
    from softbench.kernels.triton import causal_rows, masked_softmax as scores
    from softbench.kernels.triton.masked_softmax import masked_softmax

    names: list[str] = []
    launch = scores._launch

    def recorded(kernel: Any, *given: Any) -> Any:
        names.append(kernel.fn.__name__)
        return launch(kernel, *given)

    scores._launch = recorded

    def call(asked: Asked, given: Tensors) -> tuple[Tensors, str]:
        names.clear()
        return called(masked_softmax, asked, given), names[0] if names else "softmax"

    def call_causal(asked: Asked, given: Tensors) -> tuple[Tensors, str]:
        """The kernel for long causal rows, whose rule wants 512 rows."""
        (B, H, S, N), backward = asked.sizes, asked.direction == BACKWARD
        plan = causal_rows.causal_plan(N, backward)
        kernel = causal_rows.backward_causal if backward else causal_rows.forward_causal
        out = torch.full_like(given[0], math.nan)
        constants = plan.tiles, plan.threads, plan.group, False
        tensors = (*given[:2], out) if backward else (given[0], out)
        names.clear()
        numbers = N * asked.dtype.itemsize // VECTOR_BYTES, asked.sees
        scores._launch(kernel, tensors, asked.scale, numbers, constants, (S, H, B), plan.threads // 32, plan.registers)
        return (out, None), names[0]

    yield from (launch_of(asked, call) for asked in (*of_triton_forward(), *of_triton_backward()))
    yield from (launch_of(asked, call_causal) for asked in of_long_causal_rows())
    yield from (launch_of(asked, call) for asked in (*ROWS_OF_SOFTMAX, *LARGE_TRITON))
