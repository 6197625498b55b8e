"""The plans of long rows that fill the device, and when the tables decide instead."""

import math
from dataclasses import replace

import pytest
from problems import covers
from softbench.kernels.triton import heuristics
from softbench.kernels.triton.launch_plan import LEAVE_FIRST, Plan, Problem, measured_plans, vectors_in_row
from softbench.kernels.triton.long_rows import _forward_at_once, _measured_forward, long_forward_plan, unlisted_plan, waves
from softbench.kernels.triton.tier_candidates import vector_layouts


def problem(backward, rows, columns, size, alignment=16, **fields):
    fields = {"sms": 132, "clusters": True, "bytes_per_cycle": 2.0, "hopper": True, "contiguous": True} | fields
    return Problem(backward, rows, columns, size, alignment, True, **fields)


@pytest.mark.parametrize(
    ("rows", "columns", "size", "alignment", "ctas", "tiles"),
    [
        (30, 1026246, 4, 8, 96, (10, 11)),
        (23, 799748, 2, 8, 42, (8, 11)),
        (23, 799744, 2, 16, 45, (12, 6)),
        (22, 1000000, 2, 16, 45, (12, 10)),
        (93, 414696, 4, 16, 39, (10, 11)),
        (87, 254848, 4, 16, 24, (10, 11)),
        (5, 1046460, 4, 16, 105, (10, 10)),
        (12, 850432, 2, 16, 44, (12, 7)),
        (12, 407567, 4, 4, 44, (12, 7)),
        (2, 10_500_001, 2, 2, 467, (12, 10)),
        (2, 5_600_001, 4, 4, 498, (12, 10)),
        (2, 9_900_001, 2, 2, 509, (8, 11)),
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
        (problem(True, 250, 153328, 2), "cluster", 256, 5),
        (problem(True, 48, 179234, 2, 4), "split", 128, 8),
        (problem(True, 804, 40465, 4, 4), "cluster", 256, 10),
        (problem(True, 103, 133696, 2), "cluster", 128, 9),
        (problem(True, 484, 179264, 4), "split", 128, 10),
        (problem(False, 161, 356360, 2), "cluster", 256, 11),
        (problem(False, 160, 684768, 2), "cluster", 512, 11),
        (problem(False, 37, 282624, 4), "cluster", 512, 9),
        (problem(False, 273, 707136, 2), "cluster", 512, 11),
        (problem(False, 23, 349568, 2), "cluster", 256, 11),
        (problem(False, 24, 997207, 2, 2), "split", 256, 8),
        (problem(False, 71, 413824, 2), "cluster", 256, 13),
        (problem(False, 128, 524288, 2), "cluster", 512, 8),
        (problem(False, 40, 666752, 2), "cluster", 512, 11),
        (problem(False, 39, 666752, 2), "split", 256, 8),
        (problem(False, 64, 817928, 2), "cluster", 256, 25),
        (problem(False, 63, 817928, 2), "split", 256, 8),
        (problem(False, 100, 740000, 2), "cluster", 256, 23),
        (problem(False, 100, 660001, 2, 2), "cluster", 256, 21),
        (problem(False, 297, 817928, 2), "cluster", 256, 25),
        (problem(False, 298, 817928, 2), "split", 256, 8),
        (problem(False, 100, 400000, 4), "split", 256, 8),
        (problem(True, 26, 725496, 2, hopper=False), "split", 128, 8),
        (problem(True, 100, 300000, 4, hopper=False), "split", 128, 10),
        (problem(False, 100, 851968, 2), "cluster", 256, 26),
        (problem(False, 100, 851976, 2), "split", 256, 8),
        (problem(False, 150, 700001, 2, 2), "cluster", 256, 22),
        (problem(False, 150, 650001, 2, 2), "cluster", 512, 10),
        (problem(False, 15, 736741, 2, 2), "split", 256, 8),
        (problem(False, 768, 20768, 2), "cluster", 128, 11),
        (problem(False, 1400, 25600, 2), "cluster", 128, 13),
        (problem(False, 1500, 20768, 2), "cluster", 256, 6),
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


@pytest.mark.parametrize(
    ("given", "ctas"),
    [
        (problem(False, 10, 835392, 2), 52),
        (problem(False, 7, 952384, 4), 75),
        (problem(False, 5, 957536, 4), 105),  # by a table's line for other rows it had 128 programs, of 1.2 waves
        (problem(False, 13, 867008, 2), 40),
    ],
)
def test_few_rows_run_at_once(given, ctas):
    plan = heuristics.choose(given, "NVIDIA H200")
    assert (plan.split_ctas, waves(given, plan) <= 1, covers(given, plan)) == (ctas, True, True)


@pytest.mark.parametrize(
    ("given", "ctas"),
    [
        (problem(False, 176, 860000, 2), 23),
        (problem(False, 115, 733120, 4), 38),
        (problem(False, 83, 1037312, 2), 27),
        (problem(False, 39, 600000, 2), 16),
        (problem(False, 30, 1026246, 4, 8), 53),
    ],
)
def test_many_rows_have_the_fewest_programs(given, ctas):
    plan = heuristics.choose(given, "NVIDIA H200")
    assert (plan.tier, plan.threads, plan.tiles, plan.registers, plan.split_ctas) == ("split", 256, 8, 64, ctas)
    assert plan.smem_tiles > 8
    assert covers(given, plan)


@pytest.mark.parametrize(
    ("given", "ctas"), [(problem(False, 20, 871744, 2, hopper=False), 33), (problem(False, 19, 469760, 4, hopper=False), 34)]
)
def test_rows_between_run_in_little_more_than_a_wave(given, ctas):
    plan = heuristics.choose(given, "NVIDIA H200")
    assert (plan.split_ctas, 1 < waves(given, plan) <= 1.25, covers(given, plan)) == (ctas, True, True)


def test_one_wave_of_many_tiles_is_not_preferred():
    """33 programs of 1.25 waves have 13 tiles; 26 of one wave would have 17, of which shared memory would hold nine."""
    given = problem(False, 20, 871744, 2)
    plan = Plan("split", 8, 256, 4, 8, warps=8, registers=64, split_ctas=33, smem_tiles=5)
    assert long_forward_plan(given, plan) is None
    fewer = replace(given, N=680000)  # 13 tiles in one wave
    found = long_forward_plan(fewer, plan)
    assert (found.split_ctas, found.tiles, found.smem_tiles) == (26, 8, 5)


def test_a_line_of_a_table_decides_for_its_own_rows():
    """It was measured with 32 rows. Nobody measured 31."""
    own, other = (heuristics.choose(problem(False, rows, 524288, 4), "NVIDIA H200") for rows in (32, 31))
    assert (own.threads, own.split_ctas) == (128, 47)
    assert (other.threads, other.split_ctas) == (256, 27)


def test_one_row_has_no_more_programs_than_run_at_once(monkeypatch, tmp_path):
    table = tmp_path / "table.json"
    table.write_text('[["forward 4 16", 177, 0, {"tier": "split", "tiles": 8, "threads": 512, "registers": 64, "split_ctas": 400}]]')
    monkeypatch.setenv("SOFTBENCH_TRITON_TABLE", str(table))
    measured_plans.cache_clear()
    try:
        given = problem(False, 1, 4319596, 4, sms=78)
        plan = heuristics.choose(given, "a table")
    finally:
        measured_plans.cache_clear()
    assert plan.split_ctas <= 4 * 78


def test_long_forwards_after_hopper_have_a_tile_less():
    """ptxas spills 8 bytes of float32 rows for sm_100 with 8 tiles in registers and 9 to 11 in shared memory."""
    shapes = [(rows, columns) for rows in (30, 90, 400) for columns in (400000, 400002)]
    plans = [heuristics.choose(problem(False, *shape, 4, 16 - 8 * (shape[1] % 4 > 0), hopper=False)) for shape in shapes]
    assert {plan.tiles for plan in plans if plan.smem_tiles > 8} == {7}


def test_a_plan_of_one_wave_needs_one():
    """The nearest line is of 16 rows with 33 programs each. 792 programs run at once."""
    assert heuristics.choose(problem(False, 41, 250624, 2), "NVIDIA H200").tier == "cluster"


def test_gradients_of_too_many_programs_have_other_plans():
    """A row has at most 512 programs, and at most as many as the device holds at once: 312 on 78 SMs."""
    most = {132: 512 * 128 * 21 * 4, 78: 312 * 128 * 21 * 4}
    for sms, columns in most.items():
        fits, beyond = (heuristics.choose(problem(True, 2, columns + more, 4, sms=sms)) for more in (0, 4))
        assert (fits.tiles, fits.smem_tiles, fits.split_ctas) == (10, 11, columns // (128 * 21 * 4))
        assert (beyond.tiles, beyond.smem_tiles) != (10, 11)


@pytest.mark.parametrize(
    ("rows", "fewest", "ctas"),
    [
        *((24, 33, 33), (38, 21, 27), (30, 29, 35), (38, 23, 23)),  # 1.5 waves, 1.511, 1.648, 1.655
        *((36, 33, 33), (35, 34, 45), (40, 33, 39), (53, 25, 25)),  # 2.25 waves, 2.254, 2.5, 2.509
    ],
)
def test_gradients_of_half_a_last_wave_fill_it(rows, fewest, ctas):
    """An H200 holds 528 programs at once. Each holds 2816 vectors of a row."""
    given = problem(True, rows, fewest * 2816 * 8, 2)
    plan = heuristics.choose(given, "NVIDIA H200")
    assert (plan.tier, plan.split_ctas) == ("split", ctas)
    assert rows * ctas <= math.ceil(rows * fewest / 528) * 528
    other = heuristics.choose(replace(given, hopper=False), "")
    assert other.split_ctas == math.ceil(fewest * 2816 / (128 * 19))  # of the smaller programs


def test_one_row_has_at_most_512_programs():
    assert heuristics.choose(problem(True, 1, 1 << 22, 4), "").split_ctas == 512


@pytest.mark.parametrize(
    ("rows", "columns", "ctas"),
    [(19, 975000, (55, 44)), (36, 775000, (44, 35))],
)
def test_long_rows_do_not_fill_a_last_wave(rows, columns, ctas):
    """Rows of up to 3.9 MB fill two waves, and rows of up to 3.1 MB three."""
    plans = [heuristics.choose(problem(True, rows, columns + more, 2), "NVIDIA H200") for more in (0, 8)]
    assert tuple(plan.split_ctas for plan in plans) == ctas


def test_two_clusters_of_256_threads_share_an_sm():
    assert heuristics.choose(problem(False, 100, 817928, 2), "NVIDIA H200").registers == 128


def test_two_programs_of_a_gradient_share_an_sm():
    plan = heuristics.choose(problem(True, 34, 253152, 2), "NVIDIA H200")
    assert (plan.tier, plan.threads, plan.tiles, plan.registers) == ("cluster", 512, 4, 64)


@pytest.mark.parametrize(
    ("rows", "columns", "ctas", "threads", "tiles", "registers"),
    [
        (9495, 16856, 2, 128, 9, 64),
        (1413, 20480, 2, 128, 10, 64),
        (1413, 20488, 2, 256, 6, 48),
        (1413, 24584, 2, 256, 7, 56),
        (1413, 28672, 2, 256, 7, 56),
        (1412, 28672, 2, 128, 14, 96),
        (2922, 42009, 4, 128, 11, 72),
        (6000, 50003, 4, 128, 13, 80),
        (118, 88256, 8, 128, 11, 72),
        (186, 70500, 8, 128, 9, 64),
        (95, 233149, 16, 128, 15, 96),
        (66, 233149, 16, 128, 15, 96),
        (552, 250918, 16, 128, 16, 96),
        (299, 282490, 16, 256, 9, 64),
        (561, 291672, 16, 256, 9, 64),
    ],
)
def test_forwards_on_clusters_have_the_measured_plan(rows, columns, ctas, threads, tiles, registers):
    alignment = min(16, 2 * columns & -(2 * columns))
    given = problem(False, rows, columns, 2, alignment)
    plan = heuristics.choose(given, "NVIDIA H200")
    found = plan.tier, plan.cluster_ctas, plan.threads, plan.tiles, plan.registers
    assert found == ("cluster", ctas, threads, tiles, registers)
    assert covers(given, plan)
    assert heuristics.choose(replace(given, hopper=False), "NVIDIA H200") != plan


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (1413, 28680),  # 15 tiles of two programs.
        (1413, 40001),  # 10 tiles of four programs.
        (1412, 42009),  # fewer than MANY_ROWS.
        (112, 88256),  # .85 rows an SM.
        (192, 88256),  # 1.45.
        (130, 90120),  # 12 tiles of eight programs.
        (65, 233149),  # fewer than half the SMs.
        (1413, 57001),  # 14 tiles of four programs.
        (1413, 45000),  # 11 tiles of aligned rows.
        (130, 57000),  # 7 tiles of eight programs.
        (93, 571712),  # 18 tiles of 256 threads.
        (100, 540000),  # more than three quarters of the SMs.
        (65, 282490),
        (191, 278512),  # 17 tiles of aligned rows.
    ],
)
def test_other_forwards_keep_their_plan(rows, columns):
    given = problem(False, rows, columns, 2, min(16, 2 * columns & -(2 * columns)))
    assert _measured_forward(given, vector_layouts(given)[0], vectors_in_row(given, *vector_layouts(given)[0][1:])) is None


@pytest.mark.parametrize(
    ("rows", "columns", "size", "ctas"),
    [
        (62, 526550, 2, 15),  # one program more than the fewest.
        (49, 469696, 2, 14),
        (99, 469696, 2, 14),
        (100, 469696, 2, 13),  # beyond three quarters of the SMs, the fewest.
        (300, 470016, 2, 13),
        (114, 500001, 2, 13),
        (59, 440008, 2, 13),  # less than .45 rows an SM.
        (38, 540000, 2, 17),  # FULL waves.
    ],
)
def test_forwards_of_about_a_megabyte_share_programs(rows, columns, size, ctas):
    given = problem(False, rows, columns, size, min(16, size * columns & -(size * columns)))
    plan = heuristics.choose(given, "NVIDIA H200")
    assert (plan.tier, plan.threads, plan.split_ctas) == ("split", 256, ctas)
    assert covers(given, plan)


@pytest.mark.parametrize(
    ("rows", "columns", "size", "ctas"),
    [
        (17, 424000, 2, 31),  # 53000 vectors.
        (20, 300000, 4, 26),  # 75000.
        (16, 642048, 4, 33),  # 19 tiles.
        (38, 448884, 2, 13),
        (16, 679307, 2, 33),
        (20, 871744, 2, 26),
        (24, 321192, 4, 22),
        (9, 544992, 4, 58),
        (16, 606677, 4, 33),
    ],
)
def test_forwards_that_leave_l2_first_fill_the_device_once(rows, columns, size, ctas):
    given = problem(False, rows, columns, size, min(16, size * columns & -(size * columns)))
    plan = heuristics.choose(given, "NVIDIA H200")
    assert (plan.tier, plan.threads, plan.split_ctas, given.policy(plan)) == ("split", 256, ctas, LEAVE_FIRST)
    assert waves(given, plan) <= 1 and covers(given, plan)
    for other in (replace(given, hopper=False), replace(given, M=4)):
        assert other.policy(heuristics.choose(other, "NVIDIA H200")) != LEAVE_FIRST


@pytest.mark.parametrize(
    ("rows", "columns", "size"), [(17, 423992, 2), (20, 299996, 4), (16, 642080, 4), (600, 425000, 2), (4, 2_500_000, 2)]
)
def test_shorter_larger_and_fewer_rows_do_not_run_at_once(rows, columns, size):
    """These rows have one vector less, 20 tiles, more rows than programs, and fewer rows than were measured."""
    given = problem(False, rows, columns, size)
    assert _forward_at_once(given, vector_layouts(given)[0], vectors_in_row(given, *vector_layouts(given)[0][1:])) is None


def test_a_line_for_these_rows_comes_before_rules_without_lines():
    """The H100's table has a line of 32 rows. Losses, whose threads need more registers, do not have these rules."""
    given = problem(False, 32, 524288, 2)
    assert heuristics.choose(given, "NVIDIA H100 80GB HBM3").tier == "cluster"
    assert heuristics.choose(given, "NVIDIA H200") == unlisted_plan(given)  # its line has this plan.
    assert heuristics.choose(replace(given, M=31), "NVIDIA H100 80GB HBM3") == unlisted_plan(replace(given, M=31))
    assert unlisted_plan(given) is not None and unlisted_plan(replace(given, loss=True)) is None
    assert unlisted_plan(replace(given, clusters=False)) is None
    assert next(heuristics.candidates(given)) == unlisted_plan(given)


@pytest.mark.parametrize(
    ("rows", "columns", "size", "split"),
    [
        (162, 204416, 2, True),
        (234, 250389, 2, True),
        (924, 216400, 2, True),
        (66, 204416, 2, False),  # half a row an SM.
        (162, 196608, 2, False),  # six tiles.
        (162, 262152, 2, False),  # nine.
        (137, 104438, 4, True),
        (594, 104438, 4, True),
        (595, 104438, 4, False),  # more than 4.5 rows an SM.
        (137, 104440, 4, False),  # aligned.
    ],
)
def test_gradients_of_seven_or_eight_tiles_share_programs(rows, columns, size, split):
    given = problem(True, rows, columns, size, min(16, size * columns & -(size * columns)))
    plan = heuristics.choose(given, "NVIDIA H200")
    assert (plan.tier == "split") == split
    if split:
        assert (plan.threads, plan.tiles) == (128, 8) and covers(given, plan)
        assert heuristics.choose(replace(given, hopper=False), "NVIDIA H200").tier == "cluster"


def plan_of(backward, rows, columns, **fields):
    given = problem(backward, rows, columns, 2, min(16, 2 * columns & -(2 * columns)), **fields)
    plan = heuristics.choose(given, "NVIDIA H200")
    assert covers(given, plan)
    return plan.tier, max(plan.split_ctas, plan.cluster_ctas), plan.threads, plan.tiles, plan.registers


@pytest.mark.parametrize(
    ("rows", "columns", "found"),
    [
        (538, 312149, ("split", 17, 128, 8, 128)),  # ten tiles of 16 programs.
        (250, 320000, ("split", 17, 128, 8, 128)),
        (16, 300005, ("split", 33, 128, 8, 128)),  # all rows run at once.
        (1083, 149749, ("split", 8, 128, 8, 128)),  # five, unaligned.
        (199, 152005, ("split", 8, 128, 8, 128)),
        (198, 152005, ("cluster", 16, 256, 5, 80)),
        (1319, 151520, ("cluster", 16, 256, 5, 80)),
        (300, 147000, ("cluster", 16, 256, 5, 80)),
        (886, 147000, ("cluster", 16, 256, 5, 80)),  # nine tiles of eight programs, but nearly five of 16.
        (1100, 177005, ("split", 10, 128, 8, 128)),  # six.
        (48, 177005, ("split", 10, 128, 8, 128)),
        (1126, 177528, ("cluster", 16, 256, 6, 80)),
        (48, 177528, ("cluster", 16, 256, 6, 80)),
        (492, 75443, ("cluster", 16, 128, 5, 96)),
        (1193, 75512, ("cluster", 16, 128, 5, 96)),
        (132, 80008, ("cluster", 16, 128, 5, 96)),
        (200, 72712, ("cluster", 16, 128, 5, 96)),
        (1450, 138000, ("cluster", 8, 256, 9, 128)),
        (528, 138000, ("cluster", 8, 256, 9, 128)),
    ],
)
def test_gradients_that_were_slow_on_clusters_have_other_plans(rows, columns, found):
    assert plan_of(True, rows, columns) == found


@pytest.mark.parametrize(
    ("rows", "columns", "found"),
    [
        (15, 300005, ("split", 33, 256, 5, 96)),  # fewer rows than were measured.
        (131, 80008, ("cluster", 16, 128, 5, 72)),  # less than a row an SM.
        (527, 137240, ("cluster", 8, 256, 9, 128)),  # less than four: by a table's line.
        (60, 275005, ("cluster", 16, 256, 9, 128)),  # nine tiles of 16 programs.
        (1900, 82029, ("cluster", 16, 128, 6, 96)),
        (47, 177528, ("cluster", 16, 512, 3, 64)),  # fewer than 48 rows.
        (47, 177005, ("cluster", 16, 512, 3, 64)),
        (200, 72600, ("cluster", 8, 128, 9, 128)),
        (528, 131000, ("cluster", 16, 128, 8, 128)),
    ],
)
def test_gradients_beyond_the_limits_have_plans_of_tables(rows, columns, found):
    given = problem(True, rows, columns, 2, min(16, 2 * columns & -(2 * columns)))
    assert plan_of(True, rows, columns) == found
    assert unlisted_plan(given) is None


@pytest.mark.parametrize(
    ("rows", "columns", "found"),
    [
        (132, 432648, ("cluster", 16, 256, 14, 80)),
        (60, 440008, ("cluster", 16, 256, 14, 80)),
        (132, 440001, ("cluster", 16, 256, 14, 80)),
        (115, 320576, ("cluster", 16, 256, 10, 64)),
        (66, 320576, ("cluster", 16, 256, 10, 64)),
        (65, 320576, ("cluster", 16, 512, 5, 40)),  # less than half a row.
        (185, 320576, ("cluster", 8, 256, 20, 128)),  # more than 1.4.
        (114, 497512, ("cluster", 16, 512, 8, 56)),  # 16 tiles of aligned rows.
        (62, 380832, ("cluster", 16, 512, 6, 56)),  # 12 tiles.
    ],
)
def test_forwards_on_clusters_of_few_threads_have_their_limits(rows, columns, found):
    assert plan_of(False, rows, columns) == found


@pytest.mark.parametrize("columns", [440008, 440001, 320576, 470016])
def test_losses_and_other_cards_keep_clusters_of_512_threads(columns):
    """With 80 registers of 256 threads, a loss spills 240 bytes."""
    for fields in ({"loss": True}, {"hopper": False}):
        assert plan_of(False, 132, columns, **fields)[:3] == ("cluster", 16, 512)


def test_few_sms_do_not_have_programs_that_wait_forever():
    """17 programs share a row, and four SMs hold 16."""
    assert unlisted_plan(problem(True, 538, 312149, 2, 2, sms=4)) is None


@pytest.mark.parametrize(("rows", "columns", "ctas"), [(16, 524288, 33), (16, 502080, 33), (8, 1048576, 66)])
def test_one_wave_by_rule_precedes_a_line_of_two(rows, columns, ctas):
    given = problem(False, rows, columns, 4)
    plan = heuristics.choose(given, "NVIDIA H200")
    assert (plan.threads, plan.split_ctas, waves(given, plan)) == (256, ctas, 1)
    assert waves(given, heuristics.choose(replace(given, hopper=False), "NVIDIA H200")) > 1.9  # the line
