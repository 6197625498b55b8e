"""The shapes that tuning draws, and the families of plans that it times on each."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from ..plans.table import PASSES, VECTOR_BYTES, Family, Kind, families, kind_of

SIZES = (6e4, 3e6, 1.6e7, 4.5e7, 1.5e8, 4e8)
"""Bytes of a tensor: launches that fit in L2, that nearly do, and larger ones. A launch's bytes are uniform on a logarithmic scale in one
of these ranges."""
SHARES = (12, 16, 28, 26, 18)
FEW_ROWS, SHORT_ROWS = 0.1, 0.5
"""The shares of rows of a MB and more, and of rows of up to 1200 elements. The other rows lie between."""
TIMED = {"cuda": (4, 4, 2), "triton": (4, 3, 1, 2)}
"""How many of ten lengths each of PASSES has. Losses in CUDA have the families of forwards."""
HELD_OUT = 7
"""Every so many lengths, one is kept for the figure that tuning reports. It has no divisor of ten, so each pass has some."""
CUDA = """
sub_warp 1 128 0, sub_warp 1 128 8, sub_warp 1 128 16, sub_warp 2 128 0, sub_warp 2 128 8, sub_warp 2 128 16, sub_warp 3 64 0,
sub_warp 3 128 0, sub_warp 3 128 4, sub_warp 3 128 8, sub_warp 4 128 0, sub_warp 4 128 4, sub_warp 4 128 8, sub_warp 5 64 0,
staged 10 3072, staged 10 6144, staged 10 8192, staged 12 12288, block 1 128, block 2 16, block 2 128, block 4 128, block 8 128,
cluster 2 256, cluster 4 256, cluster 4 320, cluster 8 16, cluster 8 96, cluster 8 128, cluster 8 256, cluster 12 16, cluster 12 128,
cluster_bulk 16, split 2 512 1024, split 4 256 -400, split 4 256 1024, split 8 256 2048,
split_bulk 8 256 -400 100, split_bulk 8 256 -200 100, split_bulk 8 256 5000 100, split_bulk 8 256 5000 133, split_bulk 24 128 5400 100,
split_bulk 24 256 -200 100, split_bulk 24 256 10950 133
"""
TRITON = """
tile 1, tile 2, staged 10 4 8192, staged 20 4 8192, rows 1 1 2 16, rows 2 1 1 16, rows 2 4 1 16, rows 2 8 1 16, rows 3 2 1 16,
rows 3 4 1 4, rows 4 1 1 16, rows 8 1 1 16, rows 16 1 1 16, cluster 128 2 0, cluster 128 4 0, cluster 128 8 0, cluster 128 16 0,
cluster 256 8 0, cluster 256 16 0, cluster 512 16 0, split 128 16 5 0, split 128 16 5 100, split 128 20 4 0, split 256 8 2 50,
split 256 8 4 0, split 256 8 4 100, split 256 16 2 100
"""
FAMILIES: dict[str, tuple[Family, ...]] = {"cuda": families("cuda", CUDA), "triton": families("triton", TRITON)}
"""All that are timed. They were chosen by times of many more on an H200; another card may want others."""


@dataclass(frozen=True)
class Shape:
    """M rows of N elements of `size` bytes, back to back. `which`: one of PASSES."""

    which: str
    size: int
    M: int
    N: int

    @property
    def row_bytes(self) -> int:
        """Of a row of one tensor."""
        return self.N * self.size

    @property
    def reads(self) -> int:
        """The tensors that are read."""
        return 2 if self.which == "gradient" else 1

    @property
    def written_size(self) -> int:
        """The bytes of an element of the result."""
        return 2 * self.size if self.which == "widened" else self.size

    @property
    def kind(self) -> Kind:
        """The rows' kind in a table."""
        return kind_of(self.which, self.size, self.row_bytes, min(VECTOR_BYTES, self.row_bytes & -self.row_bytes))

    def kib_per_sm(self, sms: int) -> float:
        """What the launch reads for each SM."""
        return self.M * self.row_bytes * self.reads / 1024 / sms


def draw(number: int, language: str, each: int = 1, seed: str = "") -> Shape:
    """The shape with this number. Half of the lengths are multiples of 8 or 64 elements. `each`: so many shapes have one length.

    `seed`: others draw other shapes.
    """
    length_of, of_length = divmod(number, each)
    dice, other = random.Random(f"{seed} {length_of}"), random.Random(f"{seed} {length_of} {of_length}")
    which = [one for one, count in zip(PASSES, TIMED[language], strict=False) for _ in range(count)][length_of % 10]
    size = 2 if which == "widened" else dice.choice((2, 4))

    def between(low: float, high: float, dice: random.Random = dice) -> float:
        return math.exp(dice.uniform(math.log(low), math.log(high)))

    part = dice.random()
    length = between(2, 1200) if part < SHORT_ROWS else between(1 << 18, 1 << 22) if part > 1 - FEW_ROWS else between(600, 1 << 20)
    unit = dice.choice((1, 1, 2, 8, 8, 64))
    N = max(unit, int(length) // unit * unit)
    (at,) = other.choices(range(len(SHARES)), SHARES)
    return Shape(which, size, max(1, int(between(SIZES[at], SIZES[at + 1], other) / (N * size))), N)
