"""What tools/masked_launches.py launches of masked softmax, without tensors.

CUDA: each instantiation of `scores.cuh`. Triton: each two values of what its kernels are compiled for meet in one launch at least, as all
of them together are thousands. The kernels of long causal rows get each number of tiles, with rows that are too few for the rule.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from loss_launches import BRAIN, FULL, HALF

DTYPES = (FULL, HALF, BRAIN)
VECTOR_BYTES = 16
FORWARD, BACKWARD = "forward", "backward"
AXES = ("BHSN", "HSN", "BSN", "SN", "BN")
"""The axes of scores that a mask has. It is broadcast over the others."""
Sizes = tuple[int, int, int, int]


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
SAME = "same"


def covering(factors: dict[str, Sequence[Any]], fits: Callable[[dict[str, Any]], bool], apart: tuple[str, str] | None = None) -> Any:
    """Choices of a value for each factor. Each two values of two factors occur together in one choice, if they fit.

    `fits` says whether a part of a choice is possible. The two factors `apart` need not meet.
    """
    left: dict[frozenset[tuple[str, int]], None] = {}
    for one, other in itertools.combinations(factors, 2):
        for i, j in itertools.product(range(len(factors[one])), range(len(factors[other]))):
            if {one, other} != set(apart or ()) and fits({one: factors[one][i], other: factors[other][j]}):
                left[frozenset(((one, i), (other, j)))] = None
    used: Counter[tuple[str, int]] = Counter()
    while left:
        chosen = dict(sorted(next(iter(left))))
        for name in (name for name in factors if name not in chosen):
            values = {other: factors[other][i] for other, i in chosen.items()}
            possible = [i for i, value in enumerate(factors[name]) if fits({**values, name: value})]
            met = {i: sum(frozenset(((name, i), one)) in left for one in chosen.items()) for i in possible}
            chosen[name] = max(possible, key=lambda i: (met[i], -used[name, i]))
        used.update(chosen.items())
        for pair in itertools.combinations(chosen.items(), 2):
            left.pop(frozenset(pair), None)
        yield {name: factors[name][chosen[name]] for name in factors}


def of_triton_forward() -> Iterator[Asked]:
    factors = {
        "dtype": DTYPES, "mask": (None, SAME, FULL, torch.bool), "axes": ("", *AXES), "causal": (True, False),
        "sink": ((None, False), (FULL, False), (SAME, True)), "N": TRITON_COLUMNS, "offset": (0, 1),
    }  # fmt: skip

    def fits(some: dict[str, Any]) -> bool:
        if "mask" in some and "axes" in some and (some["mask"] is None) != (some["axes"] == ""):
            return False
        if some.get("mask") == some.get("dtype") == FULL:
            return False  # it is the same
        return not (some.get("mask", SAME) is None and not some.get("causal", True) and some.get("sink", (SAME,))[0] is None)

    for one in covering(factors, fits, ("axes", "N")):
        sink, shares = one["sink"]
        mask, sink = (one["dtype"] if kind == SAME else kind for kind in (one["mask"], sink))
        given = {"causal": one["causal"], "sink": sink, "shares": shares, "offset": one["offset"], "mask_offset": one["offset"]}
        yield Asked(FORWARD, one["dtype"], sizes_for(one["N"]), mask, one["axes"], **given)


def of_triton_backward() -> Iterator[Asked]:
    settings = ((True, False), (False, True), (True, True))
    factors = {"dtype": DTYPES, "setting": settings, "N": TRITON_COLUMNS, "offset": (0, 1)}
    for one in covering(factors, lambda some: True):
        causal, shares = one["setting"]
        sink = FULL if shares else None
        yield Asked(BACKWARD, one["dtype"], sizes_for(one["N"]), causal=causal, sink=sink, shares=shares, offset=one["offset"])


def of_long_causal_rows() -> Iterator[Asked]:
    """Each number of tiles in both dtypes."""
    sees = itertools.cycle((1, 7, 1023, 1024, 4098))
    for direction, tile, most in ((FORWARD, 1024, 16), (BACKWARD, 2048, 8)):
        for tiles, dtype in itertools.product(range(5, most + 1), (HALF, BRAIN)):
            yield Asked(direction, dtype, (2, 1, 3, tile * tiles - tiles % 3 * 8), causal=True, first_sees=next(sees))
