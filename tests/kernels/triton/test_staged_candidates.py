"""Plans of tier staged: the rows of a block, and what a table's plan says of them."""

from dataclasses import replace

import pytest
from softbench.kernels.triton import heuristics, launch_plan
from softbench.kernels.triton.launch_plan import Plan, Problem
from softbench.kernels.triton.staged_candidates import staged_plans


@pytest.mark.parametrize("backward", [False, True])
def test_odd_rows_of_16_bits_share_banks_little(backward):
    """An access of 2 bytes that takes two turns or more costs as much as it moves."""
    left = {}
    for N in range(3, heuristics.STAGED_COLUMNS, 2):
        plan = heuristics.by_heuristics(Problem(backward, 1 << 20, N, 2, 2, True, 132, True, contiguous=True))
        turns, _ = launch_plan.row_distance(2 * N, 2, plan.threads, plan.rows)
        assert 2 * N * plan.rows * (2 if backward else 1) <= 17 * 1024
        if turns > 1:
            left[N] = turns
    # No power of two of these rows lies half of all banks away, or only in larger blocks.
    assert left == ({85: 1.5, 95: 1.5, 97: 1.5, 107: 1.5, 127: 1.5, 129: 1.5, 191: 2, 193: 2} if backward else {191: 1.5, 193: 1.5})


def test_a_block_grows_only_while_each_sm_has_many():
    """Gradients of 129 columns have 32 rows a program, but for few rows 8."""
    problem = Problem(True, 1 << 20, 129, 2, 2, True, 132, True, contiguous=True)
    assert heuristics.by_heuristics(problem).rows == 32
    few = replace(problem, M=1 << 15)
    assert heuristics.by_heuristics(few).tier == "staged"
    assert heuristics.by_heuristics(few).rows == 8


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("backward", [False, True])
def test_blocks_of_many_rows_are_whole_sectors(backward, size):
    for N in range(3, heuristics.STAGED_COLUMNS, 2):
        plan = heuristics.by_heuristics(Problem(backward, 1 << 18, N, size, size, True, 132, True, contiguous=True))
        assert plan.tier == "staged"
        assert N * size * plan.rows % 32 == 0, (N, plan)


def test_blocks_of_long_rows_may_be_whole_vectors_only():
    """Sixteen rows of 399 columns have 25.5 KB of both inputs."""
    problem = Problem(True, 1 << 18, 399, 2, 2, True, 132, True, contiguous=True)
    assert {plan.rows for plan in staged_plans(problem)} == {8}
    assert {plan.rows for plan in staged_plans(replace(problem, N=383))} == {16}


def test_a_table_says_how_large_staged_blocks_are():
    """Sixteen rows of 207 columns have 6.6 KB of each input, and eight 3.3 KB."""
    problem = Problem(True, 1 << 18, 207, 2, 2, True, 132, True, contiguous=True)
    large, small = (Plan("staged", 7, 32, 0, 1, 0, 4, rows=rows) for rows in (16, 8))
    assert heuristics.fit(problem, large) == large
    assert heuristics.fit(problem, small).rows == 16  # eight would begin every second block in the middle of a sector
    assert heuristics.fit(replace(problem, N=206, alignment=4), small).rows == 8
    assert heuristics.fit(replace(problem, N=211), large).rows == 16
    assert heuristics.fit(replace(problem, N=241), replace(large, tiles=5, rows=24)).rows == 16  # as many bytes as 24 rows of 160
    words = Plan("staged", 5, 8, 1, 2, 0, 4, rows=64)
    assert heuristics.fit(replace(problem, N=78, alignment=4), words).tiles == 5
    assert heuristics.fit(replace(problem, N=78), words) is None  # rows do not start at a word
    few = replace(problem, M=12_000)  # blocks of 16 rows would leave an SM fewer than eight
    assert heuristics.fit(few, large) == small
    assert heuristics.fit(replace(problem, M=10_000), large) is None  # less than 8 MiB


@pytest.mark.parametrize(
    ("N", "size", "alignment", "least"),
    [
        (5, 2, 2, 1 << 18),
        (77, 2, 2, 1 << 18),
        (50, 2, 4, 5 << 19),
        (9, 4, 4, 5 << 19),
        (77, 4, 4, 8 << 20),
        (150, 2, 4, 8 << 20),
        (151, 2, 2, 8 << 20),
    ],
)
@pytest.mark.parametrize("backward", [False, True])
def test_a_launch_is_staged_from_some_size_on(N, size, alignment, least, backward):
    rows = -(-least // (N * size * (2 if backward else 1)))
    large = Problem(backward, rows, N, size, alignment, True, 132, True, contiguous=True)
    assert heuristics.by_heuristics(large).tier == "staged"
    assert heuristics.by_heuristics(replace(large, M=rows - 1)).tier == "rows"
