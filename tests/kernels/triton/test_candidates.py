"""The candidates of every tier cover their rows, and respect the hardware's limits."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from problems import covers, problems
from softbench.kernels.triton import heuristics
from softbench.kernels.triton.candidates import SMEM_BYTES, staged_plans
from softbench.kernels.triton.launch_plan import SM_REGISTERS, VECTOR_BYTES, Plan, Problem, resident_programs


@given(problems)
@settings(max_examples=400, deadline=None)
def test_every_problem_has_plans_and_each_covers_its_rows(problem):
    found = list(heuristics.candidates(problem))
    assert found
    for plan in found:
        assert covers(problem, plan), plan
        assert plan.tier in ("tile", "loop") or (problem.congruent and problem.element_size < 8)
        assert plan.tier != "cluster" or problem.clusters
        assert plan.smem_tiles * problem.reads * plan.threads * VECTOR_BYTES <= SMEM_BYTES
        assert plan.registers is None or plan.registers * plan.threads <= SM_REGISTERS
        if plan.tier in ("rows", "cluster", "split"):
            vector_bytes = 4 * plan.vector_words
            assert plan.vector_elements * problem.element_size == vector_bytes
            assert plan.base_alignment or (problem.N * problem.element_size) % vector_bytes == 0  # no element of a row is left out
            assert plan.base_alignment or problem.alignment % vector_bytes == 0


@given(problems)
@settings(max_examples=200, deadline=None)
def test_a_limit_leaves_no_registers_of_an_sm_idle(problem):
    """With eight registers more a thread, an SM would hold fewer programs."""
    for plan in heuristics.candidates(problem):
        if plan.registers is not None and plan.tier in ("rows", "cluster"):
            assert resident_programs(plan.threads, plan.registers) > SM_REGISTERS // ((plan.registers + 8) * plan.threads)


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
