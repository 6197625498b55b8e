"""The choice of a plan: every problem gets one that covers its rows, by heuristics or by a measured table."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from problems import covers, problems
from softbench.kernels.triton import heuristics, launch_plan
from softbench.kernels.triton.launch_plan import Plan, Problem


@given(problems)
@example(Problem(True, 1 << 20, 2, 2, 2, True, 4, False, contiguous=True))
@example(Problem(False, 1000, 2, 2, 2, True, 132, True))
@settings(max_examples=400, deadline=None)
def test_a_neighbours_plan_from_the_table_is_fitted(problem):
    plan = heuristics.choose(problem, "NVIDIA H200")
    assert covers(problem, plan), plan
    # of tier staged a unit, which may be half of a word
    moved = plan.vector_elements * problem.element_size if plan.tier == "staged" else 4 * plan.vector_words
    assert plan.base_alignment or plan.tier in ("tile", "loop") or problem.alignment % moved == 0
    assert problem.congruent or plan.tier in ("tile", "loop")


def test_rows_just_above_a_power_of_two_cost_little_more():
    for N in (8193, 12289, 16385, 65537):
        problem = Problem(False, 4096, N, 2, 2, True, 132, True)
        plan = heuristics.by_heuristics(problem)
        in_registers = plan.tiles * plan.threads * max(plan.cluster_ctas, plan.split_ctas) * 8
        assert in_registers + plan.smem_tiles * plan.threads * plan.split_ctas * 8 < 1.3 * N, plan


def test_a_table_decides_for_its_device(monkeypatch, tmp_path):
    table = tmp_path / "mine.json"
    fields = '{"tier": "rows", "tiles": 2, "threads": 128, "vector_elements": 4, "warps": 4}'
    table.write_text(f'[["forward 4 16", 80, 12, {fields}]]')
    monkeypatch.setenv("SOFTBENCH_TRITON_TABLE", str(table))
    launch_plan.measured_plans.cache_clear()
    expected = Plan("rows", tiles=2, threads=128, vector_elements=4, warps=4)
    problem = Problem(False, 4096, 1024, 4, 16, True, 132, True)
    assert heuristics.choose(problem, "any") == expected
    far = replace(problem, N=8192)
    assert heuristics.choose(far, "any") == heuristics.by_heuristics(far)
    launch_plan.measured_plans.cache_clear()


@pytest.mark.parametrize("tier", ["rows", "cluster", "split"])
def test_a_plan_that_is_too_small_is_not_fitted(tier):
    problem = Problem(False, 4096, 1 << 20, 4, 16, True, 132, True)
    assert heuristics.fit(problem, Plan(tier, tiles=1, threads=128, vector_elements=4, warps=4, cluster_ctas=2, split_ctas=2)) is None


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("size", "N"), [(2, 8), (2, 24), (2, 160), (4, 4), (4, 60), (4, 100)])
def test_programs_of_many_short_rows_move_enough(size, N, backward):
    """An SM starts so few programs in a second that small ones keep memory waiting. Warps that share rows wait for each other."""
    many = Problem(backward, 1 << 20, N, size, 16, True, 132, True)
    moved = N * size * (3 if backward else 2)
    for device in ("NVIDIA H200", "another"):
        plan = heuristics.choose(many, device)
        assert covers(many, plan), plan
        assert plan.tier == "rows"
        least = 4096 if plan.threads == plan.tiles == 1 else 2600 if plan.threads < 32 else 3072
        assert plan.rows * moved >= least or plan.warps == 8 or words_of(many, plan) > 24
        assert plan.warps == 1 or plan.threads == 1 or device == "NVIDIA H200", plan
    plans = list(heuristics.candidates(many))
    assert {heuristics.enlarged(many, plan) for plan in plans} < {*plans}  # the small ones too, for `tune`


def test_other_tiers_do_not_fit_where_rows_are_staged():
    problem = Problem(True, 1 << 18, 207, 2, 2, True, 132, True, contiguous=True)
    plan = Plan("rows", 4, 16, 2, 4, 8, 1, rows=2)
    assert heuristics.fit(problem, plan) is None
    assert heuristics.fit(replace(problem, contiguous=False), plan) == plan


def test_longer_rows_are_not_staged_by_a_neighbours_line():
    problem = Problem(True, 1 << 18, 243, 2, 2, True, 132, True, contiguous=True)
    assert heuristics.choose(problem, "NVIDIA H100 80GB HBM3").tier == "staged"
    assert heuristics.choose(replace(problem, N=261), "NVIDIA H100 80GB HBM3").tier == "rows"


def words_of(problem, plan):
    """Words of inputs that a thread holds."""
    return plan.tiles * plan.vector_words * problem.reads * plan.rows * plan.threads // (32 * plan.warps)
