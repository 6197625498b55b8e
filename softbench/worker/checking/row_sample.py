"""Which rows of an output are compared with float64 where the whole tensor would cost more than its timing.

A share p of wrong rows is missed by n random rows with probability (1 - p)^n: 512 rows miss a hundredth with 0.006. Rows that are wrong in
few places are found by their number: first, last, around powers of two. A comparison of all rows in float32 finds others. It decides
nothing: the rows that differ most are compared with float64.
"""

from __future__ import annotations

import random

import torch

from softbench.core.case import Case
from softbench.ops.check import row_chunks
from softbench.ops.registry import numerics, rows as rows_in
from softbench.worker.checking.any_dim import rows_of, rows_of_outputs

WHOLE_ELEMENTS = {"cpu": 2**22, "cuda": 2**28}
"""Elements of a tensor that are compared in full."""
LEAST_ROWS = 16
"""Rows of any length that are compared: a row of each kind."""
LONG_ELEMENTS = {"cpu": 2**24, "cuda": 2**30}
"""Elements that LEAST_ROWS may have; of longer rows fewer are compared."""
FEWEST_ROWS = 4
MOST_ROWS = 2**16
"""Rows of a sample, at most: their numbers are drawn on the host, one by one."""
CHECK_ELEMENTS, CHECK_ROWS = 2**18, (64, 4096)
"""Elements of a check case that are compared, about, and the least and the largest number of rows."""
SUSPECTS = 32
"""Rows that the comparison in float32 adds, at most."""


def most_rows(case: Case) -> int:
    """How many rows of a case are compared, at most."""
    long = min(LEAST_ROWS, max(FEWEST_ROWS, LONG_ELEMENTS[case.device] // case.N))
    return max(long, WHOLE_ELEMENTS[case.device] // case.N)


def of_check_case(case: Case) -> int:
    """How many rows of a check case are compared, at most."""
    least, most = CHECK_ROWS
    return min(most, max(least, CHECK_ELEMENTS // max(1, case.N)))


def rows_to_compare(case: Case, seed: int, kinds: int = 1, at_most: int = MOST_ROWS) -> list[int] | None:
    """The numbers of the rows to compare, in order; None for all. A row of each kind is among them if there are as many rows."""
    if min(most_rows(case), at_most if at_most < MOST_ROWS else case.M) >= case.M or rows_in(case) == 1:
        return None
    most = min(most_rows(case), at_most)
    chosen = random.Random(seed)
    first = chosen.randrange(case.M - min(kinds, most) + 1)
    rows = {0, case.M - 1, *range(first, first + min(kinds, most))}
    edges = {row for power in range(case.M.bit_length()) for row in range((1 << power) - 1, (1 << power) + 2) if row < case.M}
    rows |= set(chosen.sample(sorted(edges), min(len(edges), most // 4)))
    return sorted(rows | set(chosen.sample(range(case.M), max(0, most - len(rows)))))


def suspects(case: Case, given: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]) -> list[int]:
    """The rows whose outputs differ most from float32 ones. The inputs are normal: no NaN, no infinity."""
    found, estimate = torch.zeros(case.M, device=outputs[0].device), numerics(case.op).estimate
    for rows in row_chunks(case):
        expected_rows = estimate(case, rows_of(case, given, rows))
        for got, expected in zip(rows_of_outputs(case, outputs, rows), expected_rows, strict=True):
            apart = (got - expected).abs_()
            peak = _row_peak(apart)
            worst = torch.where(peak == 0, 0.0, peak / _row_peak(expected.abs()))  # a loss of zero may be exact
            found[rows] = torch.maximum(found[rows], worst.nan_to_num(nan=torch.inf))
    return found.topk(min(SUSPECTS, max(1, most_rows(case) // 4), case.M)).indices.tolist()


def _row_peak(values: torch.Tensor) -> torch.Tensor:
    """The largest value of each row."""
    return values.amax(dim=-1) if values.dim() > 1 else values
