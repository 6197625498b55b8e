"""Measure the table of plans for the GPU at hand: python -m softbench.kernels.triton.tune [--output FILE] [--only WORDS] [--most N]

Over a grid of shapes, times every plan of `rules.candidates` by `triton.testing.do_bench` (median) and keeps the fastest; one that is not
1 % faster than the rule's own choice is not worth a departure from it. A plan whose result is not that of torch's float64 softmax is
named and dropped. Kernels are compiled beforehand by several processes, as most of the time would go there. Minutes; less with --only,
which measures a part of the grid and leaves the table's other lines as they are, and with --most, which tries a cell's first plans. The one
that a cell's line has is tried, too. Each line is written as it is known.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from . import rules, tiers
from .plans import STAYS_BYTES, Plan, Shape, as_numbers

LONG = (262144, 196608, 131072, 98304, 65536, 49152, 32768, 24576, 16384, 12288, 8192, 6144, 4096, 3072, 2048, 1536)
MIDDLE = (1024, 768, 512, 384)
SHORT = (16, 24, 32, 48, 64, 100, 128, 130, 200, 256)
ODD_SHORT = (17, 33, 65, 131, 197, 333)
FEW = (*((M, 1 << log) for log in (15, 16, 17, 18, 19, 20, 22) for M in (1, 2, 4, 8, 16, 32, 64, 128) if M <= 1 << (27 - log)),
       *((M, N) for N in (50257, 151937) for M in (2, 8, 32, 128)), (512, 1 << 20), (1024, 1 << 18), (1024, 1 << 19))  # fmt: skip
GAIN = 1.01
FINALISTS, ROUNDS = 6, 4  # of a cell's plans, measured again so often, as one short measurement is good to a percent or two
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
SPECIALIZED = 16  # Triton compiles anew for integers that this divides
ELEMENTS = 1 << 30  # most of a tensor: the card's memory is another's, too


Cell = tuple[bool, torch.dtype, int, int]
Line = tuple[str, int, int, dict[str, Any]]  # bucket, and the plan's numbers
Known = dict[tuple[str, int, int], Line]


class NoPlanError(Exception):
    """No plan of a cell ran and was right; `bucket` is the cell's."""

    def __init__(self, what: str, bucket: tuple[str, int, int]) -> None:
        super().__init__(f"{what}: no plan ran and was right; the table keeps what it had")
        self.bucket = bucket


def named(cell: Cell) -> str:
    """As in `forward bfloat16 few 16x32768`; a cell of 128 rows at most is of few."""
    backward, dtype, M, N = cell
    return f"{'backward' if backward else 'forward'} {str(dtype).removeprefix('torch.')} {'few ' if M <= 128 else ''}{M}x{N}"


def cells(only: str = "") -> Iterator[Cell]:
    """The grid's cells that fit the card and, by `only`, have in their names each of the words before a comma, or between commas; float16
    rows go the way of bfloat16."""
    for cell in _grid():
        if cell[2] * cell[3] <= ELEMENTS and any(
            all(word in named(cell) for word in words.split()) for words in only.rstrip(", ").split(",")
        ):
            yield cell


def _grid() -> Iterator[Cell]:
    """(backward, dtype, M, N)."""
    for backward in (False, True):
        for dtype in (torch.bfloat16, torch.float32):
            for number, N in enumerate((*LONG, *MIDDLE)):
                yield backward, dtype, 4096, N
                if number % 2 == 0:
                    yield backward, dtype, 4096, N + 1
            for N in (*SHORT, *ODD_SHORT):
                yield backward, dtype, (1 << 26) // N, N
            for M, N in FEW:
                yield backward, dtype, M, N


def operands(backward: bool, dtype: torch.dtype, M: int, N: int) -> tuple[torch.Tensor, ...]:
    """A forward's (x, y) or a backward's (dy, y, dx)."""
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(M, N, dtype=dtype, device="cuda", generator=generator)
    if not backward:
        return x, torch.empty_like(x)
    y = torch.empty_like(x)
    for part in range(0, M, 256):
        y[part : part + 256] = torch.softmax(torch.randn(min(256, M - part), N, dtype=dtype, device="cuda", generator=generator), -1)
    return x, y, torch.empty_like(x)


def right(backward: bool, tensors: tuple[torch.Tensor, ...]) -> bool:
    """True when the first and last rows are what torch makes of them in float64."""
    for rows in (slice(0, 4), slice(-4, None)):
        given = [tensor[rows].double() for tensor in tensors]
        expected = given[1] * (given[0] - (given[0] * given[1]).sum(-1, keepdim=True)) if backward else torch.softmax(given[0], -1)
        if not float((given[-1] - expected).abs().max() / expected.abs().max()) <= TOLERANCE[tensors[0].dtype]:
            return False
    return True


def compile_part(part: int, parts: int, only: str, most: int | None = None) -> None:
    """Launch this part of all plans once on a few rows: what they compile to is kept on disk."""
    seen = set()
    for number, (backward, dtype, M, N) in enumerate(cells(only)):
        if number % parts != part:
            continue
        shape = _shape(backward, dtype, M, N)
        few = operands(backward, dtype, rows_to_compile(shape), N)
        for plan in itertools.islice(rules.candidates(shape), most):
            if (kernel := (plan, dtype, N, backward, shape.stays)) not in seen:
                seen.add(kernel)
                _try(few, plan)


def rows_to_compile(shape: Shape) -> int:
    """As few rows as compile what all of them do: lines that stay are another kernel's, and so is an M that 16 divides, or 1."""
    least = math.ceil(STAYS_BYTES / (shape.N * shape.size * shape.tensors)) if shape.stays else 2
    if shape.M % SPECIALIZED == 0:
        least = math.ceil(least / SPECIALIZED) * SPECIALIZED
    elif least % SPECIALIZED == 0:
        least += 1
    return min(shape.M, least)


def _shape(backward: bool, dtype: torch.dtype, M: int, N: int) -> Shape:
    sample = torch.empty(2, N, dtype=dtype, device="cuda")
    found = tiers.shape_of((sample,) * (3 if backward else 2))
    return replace(found, M=M)


def _try(tensors: tuple[torch.Tensor, ...], plan: Plan) -> str | None:
    try:
        tiers.run(tiers.shape_of(tensors), plan, tensors)
        return None
    except Exception as error:  # a plan that this GPU or compiler does not take
        return str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__


def measure(output: Path, only: str = "", most: int | None = None) -> tuple[int, int]:
    """Put the lines of these cells into the table's file, each as it is known: what is cut short loses nothing. Returns how many were
    measured and how many the file has; a whole grid's is rid of lines that it has not. Of a cell without a plan the line stays.
    """
    table: Known = {tuple(line[:3]): line for line in (json.loads(output.read_text()) if output.is_file() else [])}
    fresh: Known = {}
    kept: Known = {}
    for cell in cells(only):
        try:
            line = measured_cell(*cell, most, table)
        except NoPlanError as error:
            print(error, file=sys.stderr, flush=True)
            if error.bucket in table:
                kept[error.bucket] = table[error.bucket]
            continue
        fresh[line[:3]] = table[line[:3]] = line
        _write(output, table)
    if not only:
        _write(output, table := kept | fresh)
    return len(fresh), len(table)


def _write(output: Path, table: Known) -> None:
    output.parent.mkdir(exist_ok=True)
    beside = output.with_suffix(".part")
    beside.write_text("[\n" + ",\n".join(json.dumps(table[key]) for key in sorted(table)) + "\n]\n")
    beside.replace(output)


def measured_cell(backward: bool, dtype: torch.dtype, M: int, N: int, most: int | None = None, known: Known | None = None) -> Line:
    """One line of the table: the bucket and the fastest plan's numbers.

    Raises:
        NoPlanError: there is none that runs and is right.
    """
    tensors = operands(backward, dtype, M, N)
    shape = tiers.shape_of(tensors)
    copy = timed(
        functools.partial(torch.add, *tensors[:2], out=tensors[-1]) if backward else functools.partial(tensors[1].copy_, tensors[0])
    )
    times: list[tuple[list[float], Callable[[], object], Plan]] = []
    plans = list(itertools.islice(rules.candidates(shape), most))
    if (line := (known or {}).get(rules.bucket(shape))) and (fitted := rules.fit(shape, Plan(**line[3]))) not in (None, *plans):
        plans.append(fitted)
    for plan in plans:
        tensors[-1].fill_(float("nan"))
        trouble = _try(tensors, plan)
        if trouble is None and not right(backward, tensors):
            trouble = "a wrong result"
        if trouble is not None:
            print(f"{M}x{N} {dtype} {as_numbers(plan)}: {trouble}", file=sys.stderr, flush=True)
            continue
        call = tiers.prepared(shape, plan, tensors)
        times.append(([timed(call)], call, plan))
    if not times:
        raise NoPlanError(named((backward, dtype, M, N)), rules.bucket(shape))
    again = sorted(times[1:], key=lambda one: one[0][0])[:FINALISTS]
    for _ in range(ROUNDS):
        for found, call, _plan in (times[0], *again):
            found.append(timed(call))
    (rule, first), *others = ((statistics.median(found), plan) for found, _call, plan in (times[0], *again))
    time, best = min(others, key=lambda pair: pair[0], default=(rule, first))
    if rule <= time * GAIN:
        time, best = rule, first
    numbers = as_numbers(best)
    said = f"{copy / time:.3f} of copy, the rule's {copy / rule:.3f}, of {len(times)}"
    print(f"{named((backward, dtype, M, N))}: {said}: {numbers}", flush=True)
    return (*rules.bucket(shape), numbers)


def timed(call: Callable[[], object]) -> float:
    """do_bench's median, ms; short, as there are thousands of them."""
    from triton.testing import do_bench

    return float(do_bench(call, warmup=2, rep=10, return_mode="median"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m softbench.kernels.triton.tune", description=__doc__.split("\n\n")[0])
    parser.add_argument("--output", type=Path, help="the table's file; by default tables/<device>.json beside this module")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="cells with these words in their names, as in 'forward few'; others stay"
    )
    parser.add_argument("--most", type=int, metavar="N", help="plans of a cell, in the rule's order; all without it")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parts", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="processes that compile")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("tune needs a CUDA GPU; without one there is nothing to measure")
    if given.part is not None:
        compile_part(given.part, given.parts, given.only, given.most)
        return
    os.environ["SOFTBENCH_TRITON_TABLE"] = os.devnull  # the rules' own choice is what a table departs from
    again = [sys.executable, "-m", __spec__.name, "--parts", str(given.parts), "--only", given.only]
    again += ["--most", str(given.most)] if given.most else []
    compilers = [subprocess.Popen([*again, "--part", str(part)], stderr=subprocess.DEVNULL) for part in range(given.parts)]
    for compiler in compilers:
        compiler.wait()
    output = given.output or Path(__file__).with_name("tables") / f"{torch.cuda.get_device_name().replace(' ', '-')}.json"
    measured, lines = measure(output, given.only, given.most)
    print(f"{measured} cells measured, {lines} plans in {output}")
    if not measured:
        sys.exit(1)


if __name__ == "__main__":
    main()
