"""Problems, plans and the tables of measured plans."""

import json
import math
from dataclasses import replace

import pytest
from problems import covers
from softbench.kernels.triton import launch_plan
from softbench.kernels.triton.launch_plan import Plan, Problem, plan_to_json

LARGE = Problem(False, 4096, 4096, 2, 16, True, 132, True, hopper=True)
SPLIT = Plan("split", 8, 256, 4, 8, 0, 8, 64, split_ctas=2, smem_tiles=11)


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


@pytest.mark.parametrize(
    ("mebibytes", "policy"),
    [(29, launch_plan.NO_POLICY), (30, launch_plan.LEAVE_FIRST), (59, launch_plan.LEAVE_FIRST), (60, launch_plan.KEEP)],
)
def test_gradients_that_fill_the_device_once_leave_l2_first(mebibytes, policy):
    """Each row of both tensors has one MiB."""
    gradient = replace(LARGE, backward=True, M=mebibytes, N=1 << 18)
    kept = launch_plan.KEEP if mebibytes >= 32 else launch_plan.NO_POLICY
    assert gradient.policy(SPLIT) == policy
    assert gradient.policy(Plan("cluster", cluster_ctas=16)) == kept
    assert replace(gradient, hopper=False).policy(SPLIT) == launch_plan.NO_POLICY
    assert replace(gradient, M=4, N=mebibytes << 16).policy(SPLIT) == kept
    assert replace(gradient, M=5, N=(mebibytes << 18) // 5).policy(SPLIT) == policy
    assert replace(gradient, sms=66).policy(SPLIT) == kept
    assert replace(gradient, sms=72).policy(SPLIT) == (launch_plan.LEAVE_FIRST if mebibytes == 30 else kept)


@pytest.mark.parametrize(
    ("mebibytes", "policy"),
    [
        (12, launch_plan.NO_POLICY),
        (13, launch_plan.LEAVE_FIRST),
        (45, launch_plan.LEAVE_FIRST),
        (47, launch_plan.LEAVE_FIRST),
        (48, launch_plan.KEEP),
    ],
)
def test_forwards_of_little_more_than_one_wave_leave_l2_first(mebibytes, policy):
    """Each row has one MiB. The device holds 528 programs of SPLIT."""
    forward = replace(LARGE, M=mebibytes, N=1 << 19)
    kept = launch_plan.KEEP if mebibytes >= 32 else launch_plan.NO_POLICY
    ctas = int(1.2 * 528 / mebibytes)
    tiles = math.ceil(65536 / ctas / 256)
    nearly = replace(SPLIT, tiles=tiles, split_ctas=ctas, smem_tiles=0)
    assert forward.policy(nearly) == policy
    assert forward.policy(replace(nearly, tiles=tiles - 1)) == kept  # reads part of a row twice
    assert forward.policy(replace(nearly, split_ctas=nearly.split_ctas + 1)) == kept
    assert forward.policy(replace(nearly, threads=128, warps=4)) == kept
    assert replace(forward, wide=True).policy(nearly) == replace(forward, hopper=True).policy(Plan("rows")) == kept
    assert replace(forward, hopper=False).policy(nearly) == launch_plan.NO_POLICY
    assert replace(forward, M=4, N=mebibytes << 17).policy(SPLIT) == kept
    assert replace(forward, sms=66).policy(nearly) == kept


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
