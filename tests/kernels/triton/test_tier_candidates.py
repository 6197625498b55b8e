"""The candidates of every tier cover their rows, and respect the hardware's limits."""

import pytest
from hypothesis import given, settings
from problems import covers, problems
from softbench.kernels.triton import heuristics
from softbench.kernels.triton.launch_plan import SM_REGISTERS, VECTOR_BYTES, Problem, resident_programs
from softbench.kernels.triton.tier_candidates import SMEM_BYTES, split_plans


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


@pytest.mark.parametrize(("rows", "registers"), [(1, 64), (49, 32)])
def test_few_programs_may_have_more_registers(rows, registers):
    """132 programs are one on each SM, and 490 are four, which have all registers."""
    columns = 153664 if rows == 1 else 4917248
    plan = next(split_plans(Problem(True, rows, columns, 4, 16, True, 132, True)))  # long rows have a rule of their own
    assert (plan.tier, plan.threads, plan.registers) == ("split", 512, registers)
