"""The plans of long rows that fill the device, and when the tables decide instead. Which plan is the fastest, `tune` measures."""

import itertools
from dataclasses import replace

import pytest
from problems import covers
from softbench.kernels.triton import heuristics
from softbench.kernels.triton.candidates import SMEM_BYTES
from softbench.kernels.triton.launch_plan import SM_REGISTERS, VECTOR_BYTES, Plan, Problem, measured_plans, resident_programs
from softbench.kernels.triton.long_rows import long_forward_plan, unlisted_plan, waves

DEVICES = ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "")
ROWS = (1, 2, 5, 8, 16, 23, 38, 48, 66, 100, 132, 162, 250, 538, 1100, 1413, 4096)
COLUMNS = (
    16856,
    20480,
    40465,
    75443,
    82029,
    104438,
    133696,
    152005,
    179264,
    204416,
    250389,
    300005,
    356360,
    440001,
    440008,
    497512,
    660001,
)
LONGEST = (736741, 817928, 851976, 997207, 1026246, 1 << 20, 2_500_000, 4319596, 5_600_001, 9_900_001, 10_500_001)


def problem(backward, rows, columns, size, alignment=None, **fields):
    fields = {"sms": 132, "clusters": True, "bytes_per_cycle": 2.0, "hopper": True, "contiguous": True} | fields
    return Problem(backward, rows, columns, size, alignment or min(16, size * columns & -(size * columns)), True, **fields)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("backward", [False, True])
def test_long_rows_are_covered_and_their_programs_run(backward, size):
    """By registers and shared memory, and the programs of a row at once. Else each would poll in vain, and reduce the whole row."""
    rules = set()
    for rows, columns in itertools.product(ROWS, COLUMNS + LONGEST):
        for fields in ({}, {"hopper": False}, {"sms": 78}, {"loss": True}):
            given = problem(backward, rows, columns, size, **fields)
            for device in DEVICES if given.sms == 132 else [""]:
                plan = heuristics.choose(given, device)
                assert covers(given, plan), (given, plan)
                assert plan.registers is None or plan.registers * plan.threads <= SM_REGISTERS
                assert plan.smem_tiles * given.reads * plan.threads * VECTOR_BYTES <= SMEM_BYTES
                resident = resident_programs(plan.threads, plan.registers, plan.smem_tiles * given.reads)
                assert plan.split_ctas <= min(512, max(1, resident) * given.sms), (given, plan)
            rules.add(unlisted_plan(given) is not None)
    assert rules == {False, True}


def test_one_wave_of_many_tiles_is_not_preferred():
    """33 programs of 1.25 waves have 13 tiles; 26 of one wave would have 17, of which shared memory would hold nine."""
    given = problem(False, 20, 871744, 2)
    plan = Plan("split", 8, 256, 4, 8, warps=8, registers=64, split_ctas=33, smem_tiles=5)
    assert long_forward_plan(given, plan) is None
    found = long_forward_plan(replace(given, N=680000), plan)  # 13 tiles in one wave
    assert (found.split_ctas, found.tiles, found.smem_tiles) == (26, 8, 5)


def test_a_line_of_a_table_decides_for_its_own_rows():
    """It was measured with 32 rows. Nobody measured 31."""
    given = problem(False, 32, 524288, 4)
    lines = measured_plans("NVIDIA H200")[heuristics.bucket(given)[0]]
    (line,) = (plan for length, rows, plan in lines if (length, rows) == heuristics.bucket(given)[1:])
    assert heuristics.choose(given, "NVIDIA H200") == heuristics.fit(given, line)
    assert heuristics.choose(replace(given, M=31), "NVIDIA H200") != heuristics.fit(replace(given, M=31), line)


def test_one_row_has_no_more_programs_than_run_at_once(monkeypatch, tmp_path):
    table = tmp_path / "table.json"
    table.write_text('[["forward 4 16", 177, 0, {"tier": "split", "tiles": 8, "threads": 512, "registers": 64, "split_ctas": 400}]]')
    monkeypatch.setenv("SOFTBENCH_TRITON_TABLE", str(table))
    measured_plans.cache_clear()
    try:
        plan = heuristics.choose(problem(False, 1, 4319596, 4, sms=78), "a table")
    finally:
        measured_plans.cache_clear()
    assert plan.split_ctas <= 4 * 78


def test_long_forwards_after_hopper_have_a_tile_less():
    """ptxas spills 8 bytes of float32 rows for sm_100 with 8 tiles in registers and 9 to 11 in shared memory."""
    shapes = itertools.product((30, 90, 400), (400000, 400002))
    plans = [heuristics.choose(problem(False, *shape, 4, hopper=False)) for shape in shapes]
    assert {plan.tiles for plan in plans if plan.smem_tiles > 8} == {7}


def test_gradients_of_too_many_programs_have_other_plans():
    """A row has at most 512 programs, and at most as many as the device holds at once: 312 on 78 SMs."""
    for sms, columns in {132: 512 * 128 * 21 * 4, 78: 312 * 128 * 21 * 4}.items():
        fits, beyond = (heuristics.choose(problem(True, 2, columns + more, 4, 16, sms=sms)) for more in (0, 4))
        assert (fits.tiles, fits.smem_tiles, fits.split_ctas) == (10, 11, columns // (128 * 21 * 4))
        assert (beyond.tiles, beyond.smem_tiles) != (10, 11)


def test_losses_do_not_have_rules_of_softmax():
    """Their threads need more registers. With 80 registers of 256 threads, a loss spills 240 bytes."""
    for columns in (320576, 440001, 440008, 470016):
        plan = heuristics.choose(problem(False, 132, columns, 2, loss=True), "NVIDIA H200")
        assert (plan.tier, plan.threads) == ("cluster", 512)
    given = problem(False, 32, 524288, 2)
    assert unlisted_plan(given) is not None and unlisted_plan(replace(given, loss=True)) is None
    assert unlisted_plan(replace(given, clusters=False)) is None
    assert next(heuristics.candidates(given)) == unlisted_plan(given)


def test_a_line_for_these_rows_comes_before_rules_without_lines():
    """The H100's table has a line of 32 rows."""
    given = problem(False, 32, 524288, 2)
    assert heuristics.choose(given, "NVIDIA H100 80GB HBM3").tier == "cluster"
    assert heuristics.choose(replace(given, M=31), "NVIDIA H100 80GB HBM3") == unlisted_plan(replace(given, M=31))


def test_few_sms_do_not_have_programs_that_wait_forever():
    """17 programs share a row, and four SMs hold 16."""
    assert unlisted_plan(problem(True, 538, 312149, 2, sms=4)) is None


def test_one_wave_by_rule_precedes_a_line_of_two():
    given = problem(False, 16, 524288, 4)
    assert waves(given, heuristics.choose(given, "NVIDIA H200")) == 1
    assert waves(given, heuristics.choose(replace(given, hopper=False), "NVIDIA H200")) > 1.9  # the line
