"""Times the tier staged against the plans in use, on short rows of a million: python tools/short_rows.py [--columns N ...]

It needs an NVIDIA GPU. It compiles the kernels in one process a core beforehand, into Triton's cache. Each line has a cell, the plan in use
and the plan of other candidates that was fastest, both as fractions of the speed of a copy of the same bytes.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import cards
import torch
from softbench.kernels.triton import dispatch, heuristics, tune
from softbench.kernels.triton.launch_plan import Plan, Problem, plan_to_json
from softbench.kernels.triton.staged_candidates import staged_plans
from softbench.kernels.triton.tier_candidates import short_row_plans

ROWS = 1_000_000
COLUMNS = (3, 5, 8, 12, 17, 31, 50, 60, 77, 131, 197)
ROUNDS = 3


def plans(problem: Problem) -> list[Plan]:
    """The plan in use, the first staged plans, and the first plan of the other short tiers."""
    in_use = heuristics.choose(problem, torch.cuda.get_device_name())
    found = [in_use, *list(staged_plans(problem))[:3], *list(short_row_plans(problem))[:2]]
    return list(dict.fromkeys(found))


def compile_plan(work: tuple[str, Problem, Plan]) -> None:
    """Fills Triton's cache, in a process without a GPU."""
    name, problem, plan = work
    cards.compile_plan(next(card for card in cards.CARDS if card.name == name), problem, plan)


def measure(backward: bool, dtype: torch.dtype, N: int, chosen: list[Plan]) -> str:
    """The line of a cell."""
    tensors = tune.operands(backward, dtype, ROWS, N)
    problem = dispatch.problem_of(tensors)
    copy = functools.partial(torch.add, *tensors[:2], out=tensors[-1]) if backward else functools.partial(tensors[1].copy_, tensors[0])
    copies, times = [tune.time_ms(copy)], []
    calls: list[Any] = []
    for plan in chosen:
        tensors[-1].fill_(float("nan"))
        dispatch.run(problem, plan, tensors)
        if not tune.is_right(backward, tensors):
            return f"{tune.cell_name((backward, dtype, ROWS, N))}: a wrong result of {plan_to_json(plan)}"
        calls.append(dispatch.compiled_call(problem, plan, tensors))
        times.append([tune.time_ms(calls[-1])])
    for _ in range(ROUNDS - 1):
        copies.append(tune.time_ms(copy))
        for call, taken in zip(calls, times, strict=True):
            taken.append(tune.time_ms(call))
    shares = [statistics.median(copies) / statistics.median(taken) for taken in times]
    best = max(range(len(chosen)), key=lambda number: shares[number] if number else 0.0)
    name = tune.cell_name((backward, dtype, ROWS, N))
    return f"{name}: {shares[0]:.3f} {plan_to_json(chosen[0])}, best other {shares[best]:.3f} {plan_to_json(chosen[best])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--columns", type=int, nargs="*", default=COLUMNS)
    asked = parser.parse_args()
    card = "A100" if torch.cuda.get_device_capability()[0] == 8 else "B200" if torch.cuda.get_device_capability()[0] > 9 else "H200"
    cells = [(backward, dtype, N) for backward in (False, True) for dtype in (torch.bfloat16, torch.float32) for N in asked.columns]
    problems = {cell: problem_of(*cell) for cell in cells}
    chosen = {cell: plans(problem) for cell, problem in problems.items()}
    work = [(card, problems[cell], plan) for cell, found in chosen.items() for plan in found]
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_plan, work))
    for cell, found in chosen.items():
        print(measure(*cell, found), flush=True)


def problem_of(backward: bool, dtype: torch.dtype, N: int) -> Problem:
    """The launch problem of a cell."""
    sample = torch.empty(2, N, dtype=dtype, device="cuda")
    return replace(dispatch.problem_of((sample,) * (3 if backward else 2)), M=ROWS, contiguous=True)


if __name__ == "__main__":
    main()
