"""Random shapes of 16 to 400 MB, by number and seed, for `softbench run`: python tools/random_shapes.py write 3/10 -o three.toml

- write I/N: writes part I of the --count shapes as a configuration. A shape depends on the seed and its number only.
- compile FILE.toml: compiles the Triton kernels of its cases into Triton's cache, in a process a core. It needs an NVIDIA GPU.
- kinds FILE.csv ...: writes a case of each kind of launch in `triton` on --device that the cells of the files do not have. A kind counts if
  at least --least of --count shapes have it. Shapes of one seed miss some kinds of launches. It needs no GPU. A cell counts with the launch
  that it has now, so leave out files from before its plan changed.
- below FILE.csv ...: lists the cells of our kernels below --share of the yardstick, and how many there are. If several files have a cell,
  the last one counts.

For example:

    python tools/random_shapes.py write 3/10 -o three.toml
    python tools/random_shapes.py compile three.toml

    softbench run --config three.toml --output random/3 --resume
    python tools/random_shapes.py below random/*/latest.csv
    python tools/random_shapes.py kinds random/*/latest.csv --seed 2 -o kinds.toml
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from softbench.core.errors import UsageError
from softbench.plan.config_file import load
from softbench.plan.plan import cases_of
from softbench.plan.settings import Settings
from softbench.results.csv import read_csv
from softbench.results.rows import Row

SIZES = {"fp32": 4, "bf16": 2}  # fp16 has the plans of bf16
BYTES = 16e6, 400e6  # of x
COLUMNS = 2, 1 << 20
OURS = ("cuda", "triton")
SETTINGS = """backends = {}
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
    return head + SETTINGS.format('["cuda", "triton"]') + "".join(f"\n{shape(seed, number).toml()}" for number in numbers)


def compile_plan(work: tuple[Any, Any, Any]) -> str | None:
    """Fills Triton's cache, in a process without a GPU; the error if the kernel does not compile."""
    import cards

    try:
        cards.compile_plan(*work)
    except Exception as error:
        return f"{work[1]} {work[2]}: {error}"
    return None


def launch(one: Shape, card: Any, name: str) -> tuple[Any, Any]:
    """The problem and the plan of a shape on a card with this name."""
    import cards
    from softbench.kernels.triton import heuristics

    size = SIZES[one.dtype]
    row = one.N * size
    problem = replace(cards.problem_of(card, one.direction == "backward", one.M, one.N, size, min(16, row & -row)), contiguous=True)
    return problem, heuristics.choose(problem, name)


def plans(shapes: Iterable[Shape], card: Any, name: str) -> list[tuple[Any, Any, Any]]:
    """(card, problem, plan) of what the shapes launch. No kernel is in it twice, as far as known."""
    found = {}
    for one in shapes:
        problem, plan = launch(one, card, name)
        launched = replace(problem, alignment=16)  # of the tensors' addresses, for which Triton compiles
        numbers = problem.element_size, plan, problem.policy(plan), one.N if plan.tier in ("tile", "loop") else 0
        found[one.direction, *numbers] = card, launched, plan
    return list(found.values())


def kind(one: Shape, card: Any, name: str) -> tuple[Any, ...]:
    """What tells one kind of launch from another: not how many programs a split row has, nor how many tiles are in shared memory."""
    from softbench.kernels.triton.tier_candidates import SHORT_ROW

    problem, plan = launch(one, card, name)
    alignment = problem.alignment if one.N * problem.element_size <= SHORT_ROW else problem.alignment == 16
    return one.direction, one.dtype, alignment, replace(plan, split_ctas=min(2, plan.split_ctas), smem_tiles=min(1, plan.smem_tiles))


def card_of(name: str) -> Any:
    """The card of `cards.py` whose name a device's name has, the longest if there are several; None if there is none."""
    import cards

    found = (card for card in cards.CARDS if card.name.replace("-", " ") in name.replace("-", " "))
    return max(found, key=lambda card: len(card.name), default=None)


def new_kinds(known: Iterable[Shape], shapes: Iterable[Shape], least: int, name: str) -> list[Shape]:
    """A shape of each kind that at least `least` of the shapes have and no known one has, the most frequent kind first.

    It is the shape with the median number of rows. Known shapes count with the launches that they have now, not with those they had.
    """
    card = card_of(name)
    old = {kind(one, card, name) for one in known}
    found: dict[tuple[Any, ...], list[Shape]] = {}
    for one in shapes:
        found.setdefault(kind(one, card, name), []).append(one)
    new = [those for of_kind, those in found.items() if of_kind not in old and len(those) >= least]
    return [sorted(those, key=lambda one: one.M)[len(those) // 2] for those in sorted(new, key=len, reverse=True)]


def rows_of(files: list[Path]) -> list[Row]:
    """The rows of results files. It prints that a torn line was dropped.

    Raises:
        ResultsError: one of them is none.
    """
    found: list[Row] = []
    for file in files:
        rows, warnings = read_csv(file)
        print(*warnings, sep="\n", end="\n" * bool(warnings), file=sys.stderr)
        found += rows
    return found


def measured_shapes(files: list[Path]) -> set[Shape]:
    """The shapes of the cells of softmax of `triton` with a result, in float32 and bfloat16."""
    rows = (row for row in rows_of(files) if row.backend == "triton" and row.of_copy and row.op == "softmax" and row.dtype in SIZES)
    return {Shape(row.M, row.N, row.dtype, row.direction) for row in rows}


def shapes_of(file: Path) -> list[Shape]:
    """The shapes of a configuration's cases of softmax in SIZES.

    Raises:
        ConfigError: it is no configuration.
    """
    cases = cases_of(Settings.from_sources(load(str(file)), {}), "cuda")
    return [Shape(case.M, case.N, case.dtype, case.direction.value) for case in cases if case.op == "softmax" and case.dtype in SIZES]


def compile_all(file: Path) -> int:
    """Compiles the Triton kernels of a configuration."""
    import torch

    shapes = shapes_of(file)
    gpu = torch.cuda.get_device_properties(0)
    like = card_of(gpu.name) or card_of("A100" if gpu.major == 8 else "B200" if gpu.major > 9 else "H200")
    work = plans(shapes, replace(like, sms=gpu.multi_processor_count), gpu.name)
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), mp_context=get_context("spawn")) as pool:
        failed = [error for error in pool.map(compile_plan, work, chunksize=4) if error]
    print(*failed, sep="\n")
    print(f"{len(work)} kernels of {len(shapes)} cases, {len(failed)} did not compile")
    return 1 if failed else 0


def below(files: list[Path], share: float) -> int:
    """Lists cells below a share of the yardstick."""
    cells = {(row.backend, row.case): row for row in rows_of(files) if row.backend in OURS}
    measured = [(row.of_copy, row) for row in cells.values() if row.of_copy is not None]
    low = sorted((found for found in measured if found[0] < share), key=lambda found: found[0])
    for fraction, row in low:
        print(f"{fraction:.3f} {row.backend:6} {row.direction:8} {row.dtype} {row.M}x{row.N}  {row.labels}")
    print(f"{len(low)} of {len(measured)} cells below {share}; {len(cells) - len(measured)} without a result")
    return 1 if low or len(measured) < len(cells) else 0


def write_kinds(given: argparse.Namespace) -> int:
    """Writes a configuration of the kinds that were not measured."""
    shapes = [shape(given.seed, number) for number in range(given.count)]
    found = new_kinds(measured_shapes(given.files), shapes, given.least, given.device)
    if not found:
        print(f"no kind of launch is new: wrote no {given.output}")
        return 0
    head = f"# Kinds of launches on {given.device} of {given.count} shapes of seed {given.seed}, without those of earlier runs\n"
    given.output.write_text(head + SETTINGS.format('["triton"]') + "".join(f"\n{one.toml()}" for one in found), encoding="utf-8")
    print(f"{given.output}: {len(found)} shapes")
    return 0


def device(text: str) -> str:
    """The name of a device.

    Raises:
        argparse.ArgumentTypeError: it has the name of no card of `cards.py`.
    """
    import cards

    if card_of(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} names no card; cards are {', '.join(card.name for card in cards.CARDS)}")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("part", help="as in 3/10")
    write.add_argument("--count", type=int, default=2000)
    write.add_argument("--seed", type=int, default=1)
    write.add_argument("-o", "--output", type=Path, required=True)
    commands.add_parser("compile").add_argument("file", type=Path)
    kinds = commands.add_parser("kinds")
    kinds.add_argument("files", type=Path, nargs="+")
    kinds.add_argument("--count", type=int, default=20000)
    kinds.add_argument("--seed", type=int, default=2)
    kinds.add_argument("--least", type=int, default=3, help="shapes of a kind")
    kinds.add_argument("--device", type=device, default="NVIDIA H200", help="its name, for which there may be a table")
    kinds.add_argument("-o", "--output", type=Path, required=True)
    listing = commands.add_parser("below")
    listing.add_argument("files", type=Path, nargs="+")
    listing.add_argument("--share", type=float, default=0.9)
    given = parser.parse_args()
    try:
        if given.command == "compile":
            return compile_all(given.file)
        if given.command == "below":
            return below(given.files, given.share)
        if given.command == "kinds":
            return write_kinds(given)
        try:
            numbers = part(given.part, given.count)
        except ValueError:
            parser.error(f"{given.part!r} is no part of {given.count} shapes: write I/N, as in 3/10")
        given.output.write_text(configuration(given.seed, numbers), encoding="utf-8")
        print(f"{given.output}: {len(numbers)} shapes")
        return 0
    except (UsageError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
