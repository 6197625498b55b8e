"""Random shapes of 16 to 400 MB, by number and seed, for `softbench run`: python tools/random_shapes.py 3/10 -o three.toml

It writes part 3 of 10 of the shapes as a configuration. A shape depends on the seed and its number only.
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import dataclass
from pathlib import Path

SIZES = {"fp32": 4, "bf16": 2}  # fp16 has the plans of bf16
BYTES = 16e6, 400e6  # of x
COLUMNS = 2, 1 << 20
SETTINGS = """backends = ["cuda", "triton"]
rounds = 3
batch_ms = 6.0
profile = "off"
"""


@dataclass(frozen=True)
class Shape:
    """A case."""

    M: int
    N: int
    dtype: str
    direction: str

    def toml(self) -> str:
        """Its sweep."""
        return f'[[sweep]]\nM = {self.M}\nN = {self.N}\ndtype = "{self.dtype}"\ndirection = "{self.direction}"\n'


def shape(seed: int, number: int) -> Shape:
    """Bytes and columns are uniform on a logarithmic scale. A third of the columns are multiples of 64, and a third of 8."""
    dice = random.Random(f"softbench {seed} {number}")
    dtype, direction = dice.choice(list(SIZES)), dice.choice(("forward", "backward"))
    N = round(math.exp(dice.uniform(*map(math.log, COLUMNS))))
    unit = dice.choice((1, 8, 64))
    N = max(unit, N // unit * unit)
    row = N * SIZES[dtype]
    return Shape(max(math.ceil(BYTES[0] / row), int(math.exp(dice.uniform(*map(math.log, BYTES))) / row)), N, dtype, direction)


def part(text: str, count: int) -> range:
    """The numbers of the shapes of part I/N.

    Raises:
        ValueError: it is no part.
    """
    index, _, parts = text.partition("/")
    i, n = int(index), int(parts)
    if not 1 <= i <= n <= count:
        raise ValueError
    return range(count * (i - 1) // n, count * i // n)


def configuration(seed: int, numbers: range) -> str:
    """The configuration of the shapes with these numbers."""
    head = f"# Random shapes of 16 to 400 MB: numbers {numbers.start} to {numbers.stop - 1} of seed {seed} (tools/random_shapes.py)\n"
    return head + SETTINGS + "".join(f"\n{shape(seed, number).toml()}" for number in numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", help="as in 3/10")
    parser.add_argument("--count", type=int, default=2000, help="shapes of all parts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    try:
        numbers = part(given.part, given.count)
    except ValueError:
        parser.error(f"{given.part!r} is no part of {given.count} shapes: write I/N, as in 3/10")
    given.output.write_text(configuration(given.seed, numbers), encoding="utf-8")


if __name__ == "__main__":
    main()
