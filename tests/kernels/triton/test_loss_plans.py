"""Launch plans of losses: every row has vectors for all its columns, and large launches have enough programs."""

import pytest
import torch
from softbench.kernels.triton import loss_launch, loss_plans
from softbench.kernels.triton.launch_plan import Problem, chunk_of, vectors_in_row

H200 = "NVIDIA H200"
PLAIN = loss_launch.Options()
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


def test_parts_of_a_row_fill_their_last_tiles():
    given = problem(64, 128256, 2)
    plan = loss_plans.reduction_plan(given)
    reads = chunk_of(given, plan) / (plan.tiles * plan.threads)
    assert 0.9 < reads / -(-reads // 1) <= 1
    assert 0.9 < 64 * plan.split_ctas / given.sms / loss_plans.LEAST_PROGRAMS <= 2


@pytest.mark.parametrize(("N", "tiles"), [(32000, 4), (50257, 5), (128256, 4), (9000, 5)])
def test_turns_have_another_tile_where_that_saves_reads(N, tiles):
    plan = loss_plans.reduction_plan(problem(4096, N, 2))
    assert (plan.tiles, plan.threads, plan.split_ctas) == (tiles, 256, 1)


def test_rows_beyond_the_counters_are_not_shared():
    given = problem(loss_plans.MOST_SHARED_ROWS + 1, 128256, 2, sms=1000)
    assert loss_plans.reduction_plan(given).split_ctas == 1


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


def test_a_program_with_its_own_sm_has_all_registers():
    """With softmax's limit of 80 registers the fused pass would spill 232 bytes a thread."""
    few, many = (loss_plans.fused_plan(problem(M, 12943, 2), "") for M in (132, 133))
    assert (few.tier, few.registers, many.tier, many.registers) == ("rows", None, "rows", 80)


def test_options_without_effect_are_no_arguments():
    assert loss_launch.Options().numbers(8) == (-100, 1.0, None, None, None, None)
    assert loss_launch.Options(5, 0.25, 0.5, 4.0).numbers(10) == (5, 0.75, 0.025, 0.5, 4.0, 0.25)


def test_counters_are_never_where_results_were():
    prepared = loss_launch.Prepared(None, 1, (), {}, floats=7, counters=3, places=2)
    floats, counters = prepared.scratch(torch.device("cpu"))
    assert floats.dtype == torch.float32 and len(floats) >= 7 and len(counters) >= loss_plans.MOST_SHARED_ROWS
    assert floats.data_ptr() - counters.data_ptr() == 8 * loss_plans.MOST_SHARED_ROWS


def test_a_launch_knows_the_addresses_of_its_scratch_memory(monkeypatch):
    words = torch.zeros(2 * loss_plans.MOST_SHARED_ROWS, dtype=torch.int64)
    monkeypatch.setattr(loss_launch, "workspace", lambda *_: (words[:1], words))
    for prepared in (loss_launch.Prepared(None, 1, (), {}, 8, 4, 2), loss_launch.Prepared(None, 1, (), {}, places=2)):
        tensors = prepared.scratch(torch.device("cpu"))
        assert prepared.addresses(torch.device("cpu")) == tuple(None if one is None else one.data_ptr() for one in tensors)


def test_launches_with_other_layouts_have_other_keys():
    x, target, dx = torch.zeros(4, 16), torch.zeros(4, dtype=torch.int64), torch.zeros(4, 16)
    lse = torch.zeros(4)

    def key(x=x, lse=lse, dx=dx, options=PLAIN):
        operands = x, target, lse, None, None, None, dx
        pointers = [None if one is None else one.data_ptr() for one in operands]
        return loss_launch._layout_key("gradient", operands, pointers, options)

    assert key() == key()
    others = (
        key(x=torch.zeros(65)[1:].view(4, 16)), key(x=torch.zeros(4, 32)[:, :16]), key(x=x.half()), key(dx=torch.zeros(4, 32)[:, :16]),
        key(lse=torch.zeros(5)[1:]), key(options=loss_launch.Options(z_loss=1.0)), key(x=torch.zeros(3, 16)),
    )  # fmt: skip
    assert key() not in others and len(set(others)) == len(others)
