"""The plans of long rows that fill the device, and when the tables decide instead."""

import pytest
from problems import covers
from softbench.kernels.triton import heuristics
from softbench.kernels.triton.launch_plan import Problem
from softbench.kernels.triton.long_rows import waves


def problem(backward, rows, columns, size, alignment=16, **fields):
    return Problem(backward, rows, columns, size, alignment, True, 132, True, 2.0, True, **({"contiguous": True} | fields))


@pytest.mark.parametrize(
    ("rows", "columns", "size", "alignment", "ctas", "tiles"),
    [
        (30, 1026246, 4, 8, 92, (12, 10)),
        (23, 799748, 2, 8, 36, (12, 10)),
        (93, 414696, 4, 16, 39, (10, 11)),
        (87, 254848, 4, 16, 24, (10, 11)),
        (5, 1046460, 4, 16, 105, (10, 10)),
    ],
)
def test_long_gradients_have_tiles_in_shared_memory(rows, columns, size, alignment, ctas, tiles):
    given = problem(True, rows, columns, size, alignment)
    plan = heuristics.choose(given, "NVIDIA H200")
    assert (plan.tier, plan.threads, plan.tiles, plan.smem_tiles) == ("split", 128, *tiles)
    assert plan.split_ctas in range(ctas - 3, ctas + 1)
    assert covers(given, plan)


@pytest.mark.parametrize(
    ("given", "tier", "threads", "tiles"),
    [
        (problem(True, 139, 271160, 2), "cluster", 256, 9),
        (problem(True, 599, 134164, 4), "cluster", 512, 5),
        (problem(True, 251, 163029, 4, 4), "cluster", 256, 10),
        (problem(True, 45, 189760, 4), "cluster", 256, 12),
        (problem(True, 484, 179264, 4), "split", 128, 10),
        (problem(False, 161, 356360, 2), "cluster", 256, 11),
        (problem(False, 160, 684768, 2), "cluster", 512, 11),
        (problem(False, 37, 282624, 4), "cluster", 512, 9),
        (problem(False, 24, 997207, 2, 2), "split", 256, 8),
        (problem(False, 71, 413824, 2), "cluster", 256, 13),
        (problem(False, 128, 524288, 2), "cluster", 512, 8),
        (problem(False, 15, 736741, 2, 2), "split", 128, 16),
        (problem(False, 2264113, 40, 2), "staged", 4, 5),
        (problem(False, 627941, 80, 2), "rows", 4, 3),
        (problem(True, 26452, 3264, 2), "rows", 128, 4),
        (problem(True, 33786, 2976, 2), "rows", 64, 6),
    ],
)
def test_the_h200_has_the_plan_that_was_fastest(given, tier, threads, tiles):
    plan = heuristics.choose(given, "NVIDIA H200")
    assert (plan.tier, plan.threads, plan.tiles) == (tier, threads, tiles)
    assert covers(given, plan)


@pytest.mark.parametrize(("given", "ctas"), [(problem(False, 10, 835392, 2), 52), (problem(False, 7, 952384, 4), 75)])
def test_few_rows_run_at_once(given, ctas):
    plan = heuristics.choose(given, "NVIDIA H200")
    assert (plan.split_ctas, waves(given, plan) <= 1, covers(given, plan)) == (ctas, True, True)


def test_a_plan_of_one_wave_needs_one():
    """The nearest line is of 16 rows with 33 programs each. 792 programs run at once."""
    assert heuristics.choose(problem(False, 41, 250624, 2), "NVIDIA H200").tier == "cluster"


def test_two_programs_of_a_gradient_share_an_sm():
    plan = heuristics.choose(problem(True, 76, 214016, 2), "NVIDIA H200")
    assert (plan.tier, plan.threads, plan.tiles, plan.registers) == ("cluster", 512, 4, 64)
