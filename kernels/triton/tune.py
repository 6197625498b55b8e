"""Measures the table of plans for this GPU: python -m softbench.kernels.triton.tune [--output FILE] [--only WORDS] [--most N]

Over a grid of cells, it times the plans of `heuristics.candidates` by `triton.testing.do_bench` (median), and keeps the fastest. It keeps
the heuristics' choice unless another plan is at least 1 % faster. It reports and drops plans whose result differs from torch's float64
softmax. It takes CHUNK cells at a time: several processes compile their kernels, and then one measures. Compilation takes most of the time.

--only measures part of the grid and leaves the table's other lines unchanged. --most tries only the first plans of a cell, and the plan
that the cell's line has. Each line is written as soon as its cell is measured, so Ctrl-C loses none. Its exit code is 130.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from . import dispatch, heuristics
from .launch_plan import Fields, Plan, Problem, plan_to_json

LONG = (262144, 196608, 131072, 98304, 65536, 49152, 32768, 24576, 16384, 12288, 8192, 6144, 4096, 3072, 2048, 1536)
MIDDLE = (1024, 768, 512, 384)
SHORT = (16, 24, 32, 48, 64, 100, 128, 130, 200, 256)
MULTIPLES = (8, 40, 56, 72, 80, 88, 104, 120, 136, 152, 160, 176, 216, 232, 272, 304, 320, 352)  # of 8: aligned in 16 and 32 bits
ODD_SHORT = (5, 6, 9, 12, 17, 20, 33, 50, 60, 65, 77, 131, 149, 171, 207, 243, 333)
FEW = (*((M, 1 << log) for log in (15, 16, 17, 18, 19, 20, 22) for M in (1, 2, 4, 8, 16, 32, 64, 128) if M <= 1 << (27 - log)),
       *((M, N) for N in (50257, 151937) for M in (2, 8, 32, 128)),
       *((M, N) for N in (5120, 151936) for M in (2, 48)), (512, 1 << 20), (1024, 1 << 18), (1024, 1 << 19))  # fmt: skip
CHUNK = 64
"""Cells whose kernels are compiled at once, so that an interrupt loses at most the work for these."""
MIN_GAIN = 1.01
FINALISTS, ROUNDS = 6, 4  # plans of a cell that are measured again, and how often: one short measurement is good to a percent or two
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
SPECIALIZED = 16  # Triton compiles separate kernels for integers that this divides.
MAX_ELEMENTS = 1 << 30  # of a tensor, to leave memory to other processes.

Cell = tuple[bool, torch.dtype, int, int]
"""(backward, dtype, M, N)"""
Line = tuple[str, int, int, Fields]
"""A line of a table: its bucket, and the plan's fields."""
Table = dict[tuple[str, int, int], Line]


class NoPlanError(Exception):
    """No plan of a cell ran and was right. `bucket` is the cell's bucket."""

    def __init__(self, name: str, bucket: tuple[str, int, int]) -> None:
        super().__init__(f"{name}: no plan ran and was right; the table keeps what it had")
        self.bucket = bucket


def cell_name(cell: Cell) -> str:
    """The cell as in `forward bfloat16 few 16x32768`; `few` means at most 128 rows."""
    backward, dtype, M, N = cell
    return f"{'backward' if backward else 'forward'} {str(dtype).removeprefix('torch.')} {'few ' if M <= 128 else ''}{M}x{N}"


def cells(only: str = "") -> Iterator[Cell]:
    """The grid's cells that fit the GPU and match `only`.

    `only` has alternatives between commas; a cell matches one if its name has each of its words. float16 uses the lines of bfloat16.
    """
    for cell in _grid():
        alternatives = only.rstrip(", ").split(",")
        if cell[2] * cell[3] <= MAX_ELEMENTS and any(all(word in cell_name(cell) for word in words.split()) for words in alternatives):
            yield cell


def _grid() -> Iterator[Cell]:
    for backward in (False, True):
        for dtype in (torch.bfloat16, torch.float32):
            for number, N in enumerate((*LONG, *MIDDLE)):
                yield backward, dtype, 4096, N
                if number % 2 == 0:
                    yield backward, dtype, 4096, N + 1
            for N in (*SHORT, *MULTIPLES, *ODD_SHORT):
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


def is_right(backward: bool, tensors: tuple[torch.Tensor, ...]) -> bool:
    """Whether the first and last rows of the result agree with torch in float64."""
    for rows in (slice(0, 4), slice(-4, None)):
        given = [tensor[rows].double() for tensor in tensors]
        expected = given[1] * (given[0] - (given[0] * given[1]).sum(-1, keepdim=True)) if backward else torch.softmax(given[0], -1)
        if not float((given[-1] - expected).abs().max() / expected.abs().max()) <= TOLERANCE[tensors[0].dtype]:
            return False
    return True


def compile_part(part: int, parts: int, chosen: Sequence[Cell], most: int | None = None) -> None:
    """Launches this part of the cells' kernels once on a few rows. Triton's cache on disk keeps them.

    Every part sees the same order and takes each `parts`-th one, so all have as many. A plan that only a table has is not among them.
    """
    seen: set[tuple[object, ...]] = set()
    for backward, dtype, M, N in chosen:
        problem = _problem(backward, dtype, M, N)
        rows, few = rows_to_compile(problem), None
        for plan in plans_to_try(problem, most):
            kernel = plan, dtype, N, backward, problem.policy(plan), rows % SPECIALIZED == 0, rows == 1
            if kernel in seen:
                continue
            if len(seen) % parts == part:
                few = few or operands(backward, dtype, rows, N)
                _try(few, plan)
            seen.add(kernel)


def rows_to_compile(problem: Problem) -> int:
    """The fewest rows that compile the same kernels as the problem.

    Triton compiles separate kernels for each policy of loads for L2, for an M that 16 divides, and for M = 1.
    """
    least = max(2, math.ceil(problem.least_bytes / (problem.N * problem.element_size * problem.reads)))
    if problem.M % SPECIALIZED == 0:
        least = math.ceil(least / SPECIALIZED) * SPECIALIZED
    elif least % SPECIALIZED == 0:
        least += 1
    return min(problem.M, least)


def _problem(backward: bool, dtype: torch.dtype, M: int, N: int) -> Problem:
    sample = torch.empty(2, N, dtype=dtype, device="cuda")
    return replace(dispatch.problem_of((sample,) * (3 if backward else 2)), M=M)


def _try(tensors: tuple[torch.Tensor, ...], plan: Plan) -> str | None:
    """Launches the plan; returns what failed, or None."""
    try:
        dispatch.run(dispatch.problem_of(tensors), plan, tensors)
        return None
    except Exception as error:  # this GPU or compiler does not take the plan
        return str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__


def measure(
    output: Path, only: str = "", most: int | None = None, compile_cells: Callable[[int], object] = lambda begin: None
) -> tuple[int, int]:
    """Measures the cells and writes their lines to the table's file, each as soon as it is known.

    A cell without a plan keeps its line. Measuring the whole grid removes lines that no cell of the grid has.

    Args:
        output: the table's file.
        only: as in `cells`.
        most: plans to try for each cell.
        compile_cells: called before each CHUNK cells, with the number of the first one.

    Returns:
        The number of cells measured, and the number of lines in the file.
    """
    table: Table = {tuple(line[:3]): line for line in (json.loads(output.read_text()) if output.is_file() else [])}
    measured: Table = {}
    failed: Table = {}
    for number, cell in enumerate(cells(only)):
        if number % CHUNK == 0:
            compile_cells(number)
        try:
            line = measure_cell(*cell, most, table)
        except NoPlanError as error:
            print(error, file=sys.stderr, flush=True)
            if error.bucket in table:
                failed[error.bucket] = table[error.bucket]
            continue
        measured[line[:3]] = table[line[:3]] = line
        _write(output, table)
    if not only:
        _write(output, table := failed | measured)
    return len(measured), len(table)


def _write(output: Path, table: Table) -> None:
    output.parent.mkdir(exist_ok=True)
    beside = output.with_suffix(".part")
    beside.write_text("[\n" + ",\n".join(json.dumps(table[key]) for key in sorted(table)) + "\n]\n")
    beside.replace(output)


def measure_cell(backward: bool, dtype: torch.dtype, M: int, N: int, most: int | None = None, table: Table | None = None) -> Line:
    """The table's line for a cell: its bucket, and the fields of the fastest plan.

    Raises:
        NoPlanError: no plan ran and was right.
    """
    tensors = operands(backward, dtype, M, N)
    problem = dispatch.problem_of(tensors)
    copy = functools.partial(torch.add, *tensors[:2], out=tensors[-1]) if backward else functools.partial(tensors[1].copy_, tensors[0])
    copy_time = time_ms(copy)
    name = cell_name((backward, dtype, M, N))
    timed: list[tuple[list[float], Callable[[], object], Plan]] = []
    for plan in _with_line(problem, plans_to_try(problem, most), table or {}):
        tensors[-1].fill_(float("nan"))
        failure = _try(tensors, plan)
        if failure is None and not is_right(backward, tensors):
            failure = "a wrong result"
        if failure is not None:
            print(f"{M}x{N} {dtype} {plan_to_json(plan)}: {failure}", file=sys.stderr, flush=True)
            continue
        call = dispatch.compiled_call(problem, plan, tensors)
        timed.append(([time_ms(call)], call, plan))
    if not timed:
        raise NoPlanError(name, heuristics.bucket(problem))
    finalists = sorted(timed[1:], key=lambda one: one[0][0])[:FINALISTS]
    for _ in range(ROUNDS):
        for times, call, _plan in (timed[0], *finalists):
            times.append(time_ms(call))
    (first_time, first), *others = ((statistics.median(times), plan) for times, _call, plan in (timed[0], *finalists))
    best_time, best = min(others, key=lambda pair: pair[0], default=(first_time, first))
    if first_time <= best_time * MIN_GAIN:
        best_time, best = first_time, first
    fields = plan_to_json(best)
    result = f"{copy_time / best_time:.3f} of copy, the heuristics' {copy_time / first_time:.3f}, of {len(timed)}"
    print(f"{name}: {result}: {fields}", flush=True)
    return (*heuristics.bucket(problem), fields)


def plans_to_try(problem: Problem, most: int | None) -> list[Plan]:
    """The heuristics' choice, and those of the first candidates that `choose` would take from a table as they are."""
    plans = list(itertools.islice(heuristics.candidates(problem), most))
    return plans[:1] + [plan for plan in plans[1:] if heuristics.fit(problem, plan) == plan]


def _with_line(problem: Problem, plans: list[Plan], table: Table) -> list[Plan]:
    """The plans and that of the table's line for the problem."""
    line = table.get(heuristics.bucket(problem))
    fitted = heuristics.fit(problem, Plan(**line[3])) if line else None
    return plans if fitted is None or fitted in plans else [*plans, fitted]


def time_ms(call: Callable[[], object]) -> float:
    """do_bench's median, in ms; each measurement is short, because there are thousands."""
    from triton.testing import do_bench

    return float(do_bench(call, warmup=2, rep=10, return_mode="median"))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m softbench.kernels.triton.tune", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--output", type=Path, help="the table's file; by default tables/<device>.json beside this module")
    parser.add_argument("--only", default="", metavar="WORDS", help="only cells with these words in their names, as in 'forward few'")
    parser.add_argument("--most", type=int, metavar="N", help="plans to try for each cell, in the heuristics' order; by default all")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--parts", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="processes that compile")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("tune needs a CUDA GPU; this machine has none")
    if given.part is not None:
        compile_part(given.part, given.parts, list(cells(given.only))[given.begin : given.begin + CHUNK], given.most)
        return
    os.environ["SOFTBENCH_TRITON_TABLE"] = os.devnull  # compare with the heuristics' choice, not with an older table
    again = [sys.executable, "-m", __spec__.name, "--parts", str(given.parts), "--only", given.only]
    again += ["--most", str(given.most)] if given.most else []
    total = len(list(cells(given.only)))

    def compile_cells(begin: int) -> None:
        print(f"cells {begin + 1} to {min(begin + CHUNK, total)} of {total}: compiling", flush=True)
        own = [*again, "--begin", str(begin)]
        torch.cuda.empty_cache()  # the compilers need memory, too
        with ExitStack() as stack:
            compilers = []
            for part in range(given.parts):
                compilers.append(subprocess.Popen([*own, "--part", str(part)], stderr=subprocess.DEVNULL))
                stack.callback(compilers[-1].terminate)
            failed = sum(compiler.wait() != 0 for compiler in compilers)
        if failed:
            print(f"{failed} of {given.parts} compilers failed; the measurement compiles what they left", file=sys.stderr, flush=True)

    output = given.output or Path(__file__).with_name("tables") / f"{torch.cuda.get_device_name().replace(' ', '-')}.json"
    try:
        measured, lines = measure(output, given.only, given.most, compile_cells)
    except KeyboardInterrupt:
        print(
            f"interrupted; {output} keeps the plans of all cells measured so far; --only WORDS measures some of the others", file=sys.stderr
        )
        sys.exit(130)
    print(f"{measured} cells measured, {lines} plans in {output}")
    if not measured:
        sys.exit(1)


if __name__ == "__main__":
    main()
