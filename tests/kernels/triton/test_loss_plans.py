"""Launch plans of losses: every row has vectors for all its columns, and large launches have enough programs."""

import pytest
from softbench.kernels.triton import loss_launch, loss_plans
from softbench.kernels.triton.launch_plan import Problem, chunk_of, vectors_in_row

H200 = "NVIDIA H200"
COLUMNS = (129, 600, 1000, 1001, 4096, 5003, 32000, 50257, 128256, 151936, 201088, 262144)


def problem(M, N, size, sms=132):
    line = N * size % 128
    alignment = min(16, line & -line) if line else 16
    return Problem(False, M, N, size, alignment, True, sms, sms > 4, 2.7, sms > 4)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("sms", [4, 132])
def test_stream_plans_cover_each_row_once(size, sms):
    for N in COLUMNS:
        for M in (1, 7, 64, 1024, 65536):
            given = problem(M, N, size, sms)
            plan = loss_plans.reduction_plan(given)
            vectors = vectors_in_row(given, plan.vector_elements, plan.base_alignment)
            chunk = chunk_of(given, plan)
            assert (plan.split_ctas - 1) * chunk < vectors <= plan.split_ctas * chunk and plan.split_ctas <= loss_plans.MAX_PARTS
            plan = loss_plans.gradient_plan(given)
            reach = plan.tiles * plan.threads
            assert (plan.split_ctas - 1) * reach < vectors <= plan.split_ctas * reach and plan.threads == 32 * plan.warps


def test_few_rows_use_many_sms():
    assert loss_plans.gradient_plan(problem(1, 128256, 2)).split_ctas > 120
    for M in (1, 8, 64):
        plan = loss_plans.reduction_plan(problem(M, 128256, 2))
        assert M * plan.split_ctas >= 60  # a program has at least 4 KiB
    assert loss_plans.reduction_plan(problem(4096, 128256, 2)).split_ctas == 1


@pytest.mark.parametrize("size", [2, 4])
def test_vocabularies_have_a_fused_plan_on_an_h200(size):
    for N in COLUMNS:
        for M in (1, 64, 1024, 4096):
            given = problem(M, N, size)
            if not loss_plans.is_short(given):
                for additions in (0, 1, 2):
                    plan = loss_plans.fused_plan(given, H200, additions)
                    assert plan is not None and plan.tier in ("rows", "cluster"), (M, N)
                    assert plan.tier == "rows" or plan.tiles <= loss_plans.MOST_TILES_OF_CLUSTER[size][additions]


def test_options_without_effect_are_no_arguments():
    assert loss_launch.Options().numbers(8) == (-100, 1.0, None, None, None, None)
    assert loss_launch.Options(5, 0.25, 0.5, 4.0).numbers(10) == (5, 0.75, 0.025, 0.5, 4.0, 0.25)
