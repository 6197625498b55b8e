"""Problems, plans, the tables of measured plans, and the delays between the first rows of a launch."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st
from problems import covers, problems
from softbench.kernels.triton import heuristics, launch_plan
from softbench.kernels.triton.launch_plan import Plan, Problem, plan_to_json
from softbench.kernels.triton.staggered_start import stagger

LARGE = Problem(False, 4096, 4096, 2, 16, True, 132, True, hopper=True)


@pytest.fixture(autouse=True)
def fresh_tables():
    launch_plan.measured_plans.cache_clear()
    yield
    launch_plan.measured_plans.cache_clear()


def test_only_large_inputs_on_hopper_are_kept_in_l2():
    """A flush would leave smaller inputs in L2. Other GPUs have not been measured."""
    assert LARGE.keep_in_l2
    assert replace(LARGE, backward=True, N=2048).keep_in_l2
    assert not replace(LARGE, N=2048).keep_in_l2
    assert not replace(LARGE, hopper=False).keep_in_l2


def test_tables_are_read_by_device_name(monkeypatch, tmp_path):
    assert launch_plan.measured_plans("NVIDIA H200") and not launch_plan.measured_plans("a device of another name")
    table = tmp_path / "mine.json"
    table.write_text('[["forward 4 16", 80, 12, {"tier": "rows", "tiles": 2}]]')
    monkeypatch.setenv("SOFTBENCH_TRITON_TABLE", str(table))
    launch_plan.measured_plans.cache_clear()
    assert launch_plan.measured_plans("any") == {"forward 4 16": [(80, 12, Plan("rows", tiles=2))]}


def test_a_plan_survives_json():
    for plan in (Plan("split", 8, 256, 2, 8, 128, 8, 64, 2, 4, 3, 11), Plan("tile")):
        assert Plan(**json.loads(json.dumps(plan_to_json(plan)))) == plan
    assert plan_to_json(Plan("tile")) == {"tier": "tile"}


@pytest.mark.parametrize(("limits", "programs"), [((512, 32), 4), ((512, 128), 1), ((256, 64, 11), 4), ((1024, 128), 0)])
def test_resident_programs_follow_from_registers_and_shared_memory(limits, programs):
    assert launch_plan.resident_programs(*limits) == programs


def test_plans_of_wide_results_cover_rows_with_shorter_vectors():
    for N, plan in ((4099, Plan("rows", 9, 64, 4, 8, 128, 2)), (50257, Plan("cluster", 7, 128, 4, 8, 128, 4, cluster_ctas=8))):
        problem, wide = replace(LARGE, N=N, wide=True), launch_plan.for_wide_results(plan)
        assert (wide.vector_words, wide.vector_elements) == (2, 4)
        assert covers(problem, plan) and covers(problem, wide)
    short = Plan("rows", 5, 16, 1, 2)
    assert launch_plan.for_wide_results(short) == short


@pytest.mark.parametrize(
    ("N", "size", "lanes", "rows", "turns", "distance"),
    [
        (63, 2, 8, 4, 4.0, 1),  # four rows begin in one bank
        (63, 2, 8, 64, 1.0, 16),
        (129, 2, 16, 8, 2.0, 1),
        (129, 2, 16, 32, 1.5, 16),  # the second row begins behind the first: in its last bank where the first begins in half a word
        (197, 2, 16, 8, 1.0, 4),
        (5, 2, 1, 128, 1.0, 2),
        (33, 4, 4, 32, 1.0, 4),
        (255, 2, 32, 4, 1.0, 1),
    ],
)
def test_rows_of_a_warp_are_where_they_share_banks_least(N, size, lanes, rows, turns, distance):
    assert launch_plan.row_distance(N * size, size, lanes, rows) == (turns, distance)


PROBLEM = Problem(False, 64, 1 << 20, 4, 16, True, 132, True, bytes_per_cycle=2500.0)
SPLIT = Plan("split", 8, 256, 4, 4, 0, 8, 64, split_ctas=56, smem_tiles=11)
CLUSTER = Plan("cluster", 8, 256, 4, 4, 0, 8, 64, cluster_ctas=16)


def test_rows_that_exceed_the_device_are_staggered():
    row = (1 << 20) * 4
    assert stagger(PROBLEM, SPLIT) == (4 * 132 // 56, int(row / 2500 * 4 / 3))
    assert stagger(PROBLEM, CLUSTER) == (4 * 18 // 16 * 7, int(row / 2500))
    for alone in (replace(PROBLEM, M=1), replace(PROBLEM, N=1024), replace(PROBLEM, bytes_per_cycle=0.0)):
        assert stagger(alone, SPLIT) == stagger(alone, CLUSTER) == (0, 0)
    backward = replace(PROBLEM, backward=True)  # five programs of an SM have ten tiles of each of two tensors
    assert stagger(backward, replace(SPLIT, threads=128, registers=96, smem_tiles=10)) == (5 * 132 // 56, int(2 * row / 2500 * 4 / 3))


@given(problems, st.floats(0, 1e5))
@settings(max_examples=200, deadline=None)
def test_delays_fit_the_kernels_arguments(problem, rate):
    problem = replace(problem, bytes_per_cycle=rate)
    for plan in heuristics.candidates(problem):
        if plan.tier in ("cluster", "split"):
            rows, cycles = stagger(problem, plan)
            assert 0 <= rows < 1 << 31 and 0 <= cycles < 1 << 31 and (rows > 0 or cycles == 0)
