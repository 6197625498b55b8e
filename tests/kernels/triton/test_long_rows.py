"""The plans of long rows that fill the device, and when the tables decide instead."""

import pytest
from problems import covers
from softbench.kernels.triton import heuristics
from softbench.kernels.triton.launch_plan import Problem


def problem(backward, rows, columns, size, alignment=16, **fields):
    return Problem(backward, rows, columns, size, alignment, True, 132, True, 2.0, True, **({"contiguous": True} | fields))


@pytest.mark.parametrize(
    ("rows", "columns", "size", "alignment", "ctas", "tiles"),
    [
        (30, 1026246, 4, 8, 92, (12, 10)),
        (23, 799748, 2, 8, 36, (12, 10)),
        (93, 414696, 4, 16, 43, (8, 11)),
        (87, 254848, 4, 16, 27, (8, 11)),
        (5, 1046460, 4, 16, 108, (8, 11)),
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
