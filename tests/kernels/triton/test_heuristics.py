"""The choice of a plan: every problem gets one that covers its rows and fits the device, by rules or by a measured table.

Which plan is the fastest, `tune` measures.
"""

import itertools
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from problems import covers, problems
from softbench.kernels.triton import heuristics, launch_plan
from softbench.kernels.triton.candidates import SMEM_BYTES, staged_plans
from softbench.kernels.triton.launch_plan import SM_REGISTERS, VECTOR_BYTES, Plan, Problem, measured_plans, resident_programs
from softbench.kernels.triton.long_rows import long_forward_plan, unlisted_plan, waves


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


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("backward", [False, True])
def test_blocks_of_many_rows_are_whole_sectors(backward, size):
    for N in range(3, heuristics.STAGED_COLUMNS, 2):
        plan = heuristics.by_heuristics(Problem(backward, 1 << 18, N, size, size, True, 132, True, contiguous=True))
        assert plan.tier == "staged"
        assert N * size * plan.rows % 32 == 0, (N, plan)


def test_blocks_of_long_rows_may_be_whole_vectors_only():
    """Sixteen rows of 399 columns have 25.5 KB of both inputs."""
    problem = Problem(True, 1 << 18, 399, 2, 2, True, 132, True, contiguous=True)
    assert {plan.rows for plan in staged_plans(problem)} == {8}
    assert {plan.rows for plan in staged_plans(replace(problem, N=383))} == {16}


def test_a_table_says_how_large_staged_blocks_are():
    """Sixteen rows of 207 columns have 6.6 KB of each input, and eight 3.3 KB."""
    problem = Problem(True, 1 << 18, 207, 2, 2, True, 132, True, contiguous=True)
    large, small = (Plan("staged", 7, 32, 0, 1, 0, 4, rows=rows) for rows in (16, 8))
    assert heuristics.fit(problem, large) == large
    assert heuristics.fit(problem, small).rows == 16  # eight would begin every second block in the middle of a sector
    assert heuristics.fit(replace(problem, N=206, alignment=4), small).rows == 8
    assert heuristics.fit(replace(problem, N=211), large).rows == 16
    assert heuristics.fit(replace(problem, N=241), replace(large, tiles=5, rows=24)).rows == 16  # as many bytes as 24 rows of 160
    words = Plan("staged", 5, 8, 1, 2, 0, 4, rows=64)
    assert heuristics.fit(replace(problem, N=78, alignment=4), words).tiles == 5
    assert heuristics.fit(replace(problem, N=78), words) is None  # rows do not start at a word
    few = replace(problem, M=12_000)  # blocks of 16 rows would leave an SM fewer than eight
    assert heuristics.fit(few, large) == small
    assert heuristics.fit(replace(problem, M=10_000), large) is None  # less than 8 MiB


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
