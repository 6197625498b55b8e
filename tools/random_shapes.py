"""Random shapes of 16 to 400 MB, by number and seed, for `softbench run`: python tools/random_shapes.py write 3/10 -o three.toml

- write I/N: writes part I of the --count shapes as a configuration. A shape depends on the seed and its number only.
- compile FILE.toml: compiles the Triton kernels of its cases into Triton's cache, in a process a core. It needs an NVIDIA GPU.
- below FILE.csv ...: lists the cells of our kernels below --share of the yardstick, and how many there are. If several files have a cell,
  the last one counts.

For example:

    python tools/random_shapes.py write 3/10 -o three.toml
    python tools/random_shapes.py compile three.toml

    softbench run --config three.toml --output random/3 --resume
    python tools/random_shapes.py below random/*/latest.csv
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
import sys
import tomllib
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

SIZES = {"fp32": 4, "bf16": 2}  # fp16 has the plans of bf16
BYTES = 16e6, 400e6  # of x
COLUMNS = 2, 1 << 20
OURS = ("cuda", "triton")
CELL = ("backend", "op", "direction", "dtype", "M", "N", "shape")
"""The columns that tell one cell from another."""
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


def compile_plan(work: tuple[Any, Any, Any]) -> str | None:
    """Fills Triton's cache, in a process without a GPU; the error if the kernel does not compile."""
    import cards

    try:
        cards.compile_plan(*work)
    except Exception as error:
        return f"{work[1]} {work[2]}: {error}"
    return None


def plans(shapes: Iterable[Shape], card: Any, name: str) -> list[tuple[Any, Any, Any]]:
    """(card, problem, plan) of what the shapes launch. No kernel is in it twice, as far as known."""
    import cards
    from softbench.kernels.triton import heuristics

    found = {}
    for one in shapes:
        size = SIZES[one.dtype]
        row = one.N * size
        problem = replace(cards.problem_of(card, one.direction == "backward", one.M, one.N, size, min(16, row & -row)), contiguous=True)
        plan = heuristics.choose(problem, name)
        launched = replace(problem, alignment=16)  # of the tensors' addresses, for which Triton compiles
        found[one.direction, size, plan, problem.policy(plan), one.N if plan.tier in ("tile", "loop") else 0] = card, launched, plan
    return list(found.values())


def compile_all(file: Path) -> int:
    """Compiles the Triton kernels of a configuration."""
    import cards
    import torch

    sweeps = tomllib.loads(file.read_text())["sweep"]
    gpu = torch.cuda.get_device_properties(0)
    like = next(card for card in cards.CARDS if card.name == ("A100" if gpu.major == 8 else "B200" if gpu.major > 9 else "H200"))
    work = plans((Shape(**sweep) for sweep in sweeps), replace(like, sms=gpu.multi_processor_count), gpu.name)
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), mp_context=get_context("spawn")) as pool:
        failed = [error for error in pool.map(compile_plan, work, chunksize=4) if error]
    print(*failed, sep="\n")
    print(f"{len(work)} kernels of {len(sweeps)} cases, {len(failed)} did not compile")
    return 1 if failed else 0


def below(files: list[Path], share: float) -> int:
    """Lists cells below a share of the yardstick."""
    rows = (row for file in files for row in csv.DictReader(file.open(encoding="utf-8")) if row["backend"] in OURS)
    cells = {tuple(row.get(name) for name in CELL): row for row in rows}
    measured = [row for row in cells.values() if row["of_copy"]]
    low = sorted((row for row in measured if float(row["of_copy"]) < share), key=lambda row: float(row["of_copy"]))
    for row in low:
        print(f"{float(row['of_copy']):.3f} {row['backend']:6} {row['direction']:8} {row['dtype']} {row['M']}x{row['N']}  {row['labels']}")
    print(f"{len(low)} of {len(measured)} cells below {share}; {len(cells) - len(measured)} without a result")
    return 1 if low or len(measured) < len(cells) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("part", help="as in 3/10")
    write.add_argument("--count", type=int, default=2000)
    write.add_argument("--seed", type=int, default=1)
    write.add_argument("-o", "--output", type=Path, required=True)
    commands.add_parser("compile").add_argument("file", type=Path)
    listing = commands.add_parser("below")
    listing.add_argument("files", type=Path, nargs="+")
    listing.add_argument("--share", type=float, default=0.9)
    given = parser.parse_args()
    if given.command == "compile":
        return compile_all(given.file)
    if given.command == "below":
        return below(given.files, given.share)
    try:
        numbers = part(given.part, given.count)
    except ValueError:
        parser.error(f"{given.part!r} is no part of {given.count} shapes: write I/N, as in 3/10")
    given.output.write_text(configuration(given.seed, numbers), encoding="utf-8")
    print(f"{given.output}: {len(numbers)} shapes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
