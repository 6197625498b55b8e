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


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("size", "N", "alignment"), [(2, 5, 2), (2, 13, 2), (2, 60, 8), (2, 231, 2), (4, 9, 4), (4, 77, 4), (4, 231, 4)])
def test_short_unaligned_rows_have_the_tier_staged(size, N, alignment, backward):
    problem = Problem(backward, 1 << 20, N, size, alignment, True, 132, True, contiguous=True)
    for device in ("NVIDIA H200", "another"):
        assert heuristics.choose(problem, device).tier == "staged"
        assert heuristics.choose(replace(problem, contiguous=False), device).tier == "rows"
        assert heuristics.choose(replace(problem, M=4096), device).tier == "rows"


@pytest.mark.parametrize("changed", [{"contiguous": False}, {"M": 4096}])
def test_short_rows_that_cannot_be_staged_follow_the_table(changed):
    problem = replace(Problem(False, 1 << 20, 77, 4, 4, True, 132, True, contiguous=True), **changed)
    assert heuristics.choose(problem, "NVIDIA H200") == Plan("rows", tiles=5, threads=16, vector_words=1, warps=4, rows=8)


def test_other_tiers_do_not_fit_where_rows_are_staged():
    problem = Problem(True, 1 << 18, 207, 2, 2, True, 132, True, contiguous=True)
    plan = Plan("rows", 4, 16, 2, 4, 8, 1, rows=2)
    assert heuristics.fit(problem, plan) is None
    assert heuristics.fit(replace(problem, contiguous=False), plan) == plan


def test_longer_rows_of_a_line_are_fewer_in_a_program():
    """A second vector of each lane and input would make 64 words a thread."""
    plan = Plan("rows", 1, 32, 4, 8, 0, 1, rows=4)
    problem = Problem(True, 1 << 18, 256, 2, 16, True, 132, True)
    assert heuristics.fit(problem, plan) == plan
    longer = replace(problem, N=264)
    assert heuristics.fit(longer, plan) == replace(plan, tiles=2, rows=2)
    assert heuristics.fit(longer, replace(plan, rows=3)).rows == 3  # 48 words
    assert heuristics.fit(longer, replace(plan, warps=4)) == replace(plan, tiles=2, warps=4)  # a row for each warp
    wide = Plan("rows", 6, 4, 4, 8, 0, 1, rows=16)  # 64 words as it was measured
    assert heuristics.fit(replace(problem, N=192), wide) == wide
    assert heuristics.fit(replace(problem, N=216), wide) == replace(wide, tiles=7, rows=8)  # all lanes have a part of a row


@pytest.mark.parametrize(("backward", "N", "rows"), [(False, 88, 8), (False, 80, 16), (True, 56, 8), (True, 48, 16)])
def test_programs_whose_rows_share_a_warp_move_2600_bytes(backward, N, rows):
    plan = heuristics.by_heuristics(Problem(backward, 1 << 20, N, 2, 16, True, 132, True))
    assert (plan.tier, plan.warps, plan.rows) == ("rows", 1, rows)


@pytest.mark.parametrize("N", [32, 64, 128, 256, 512])
def test_powers_of_two_need_a_line_of_their_own(N):
    """The H100's table has lines for lengths between these, and none for these."""
    problem = Problem(False, (1 << 26) // N, N, 2, 16, True, 132, True)
    assert heuristics.choose(problem, "NVIDIA H100 80GB HBM3") == heuristics.by_heuristics(problem)
    assert heuristics.by_heuristics(problem).tier == "tile"


def test_longer_rows_are_not_staged_by_a_neighbours_line():
    problem = Problem(True, 1 << 18, 243, 2, 2, True, 132, True, contiguous=True)
    assert heuristics.choose(problem, "NVIDIA H100 80GB HBM3").tier == "staged"
    assert heuristics.choose(replace(problem, N=261), "NVIDIA H100 80GB HBM3").tier == "rows"


@pytest.mark.parametrize("N", [40, 72])
def test_aligned_rows_of_tier_staged_fit_their_lines(N):
    problem = Problem(False, 1 << 20, N, 2, 16, True, 132, True, contiguous=True)
    plan = heuristics.by_heuristics(problem)
    assert plan.tier == "staged" and heuristics.fit(problem, plan) == plan


@pytest.mark.parametrize("N", [136, 152, 160, 176])
def test_short_gradients_share_a_warp_rather_than_fill_two(N):
    """Two warps for a row of 34 to 44 vectors moved 1.6 to 2.1 KB, and had .63 to .81 of a copy on an H200."""
    plan = heuristics.by_heuristics(Problem(True, (1 << 26) // N, N, 4, 16, True, 132, True))
    assert plan.threads <= 32 and plan.rows * N * 12 >= 2600


def words_of(problem, plan):
    """Words of inputs that a thread holds."""
    return plan.tiles * plan.vector_words * problem.reads * plan.rows * plan.threads // (32 * plan.warps)


def test_few_rows_keep_their_small_programs():
    plan = Plan("rows", 1, 1, 4, 8, 0, 1, rows=32)
    many = Problem(False, 1 << 20, 8, 2, 16, True, 132, True)
    assert heuristics.enlarged(many, plan) == replace(plan, rows=128, warps=4)
    assert heuristics.enlarged(replace(many, M=4096), plan) == plan
    assert heuristics.enlarged(replace(many, M=2 * 32 * 16 * 132), plan) == replace(plan, rows=64, warps=2)  # 16 programs an SM are left
    shared = replace(plan, threads=2, rows=16)
    assert heuristics.enlarged(many, shared) == replace(shared, rows=128)  # 4 KiB, in one warp
    assert heuristics.enlarged(many, replace(shared, tiles=4)) == replace(shared, tiles=4, rows=32)  # more would be 64 words a thread
    assert heuristics.enlarged(many, replace(plan, threads=64)).rows == 32  # two warps share a row


@pytest.mark.parametrize(
    ("backward", "M", "N", "size", "alignment", "threads", "rows", "words"),
    [
        (True, 289_292, 524, 2, 8, 32, 1, 4),  # the table's plan has 128 threads, each with a vector
        (True, 246_022, 294, 4, 8, 32, 1, 4),
        (False, 146_409, 822, 2, 4, 32, 1, 4),
        (False, 59_490, 1612, 2, 8, 64, 1, 4),
        (False, 326_094, 495, 2, 2, 32, 2, 2),  # the table's plan has a row a program
        (False, 322_039, 370, 2, 4, 16, 2, 4),  # not vectors of 4 bytes
        (False, 576_112, 274, 2, 4, 16, 4, 4),
    ],
)
def test_many_rows_have_few_threads_and_wide_vectors(backward, M, N, size, alignment, threads, rows, words):
    problem = Problem(backward, M, N, size, alignment, True, 132, True, 2.0, True, contiguous=True)
    plan = heuristics.choose(problem, "NVIDIA H200")
    assert (plan.tier, plan.threads, plan.rows, plan.vector_words) == ("rows", threads, rows, words)
    assert plan.warps == max(1, threads // 32)
    assert covers(problem, plan)


@pytest.mark.parametrize(
    ("size", "N", "staged"), [(4, 20, True), (4, 28, True), (4, 84, True), (4, 36, False), (2, 56, False), (2, 40, True)]
)
def test_aligned_rows_whose_lanes_would_idle_are_staged(size, N, staged):
    problem = Problem(False, 1 << 20, N, size, 16, True, 132, True, contiguous=True)
    assert (heuristics.choose(problem, "NVIDIA H200").tier == "staged") == staged
    assert heuristics.choose(replace(problem, backward=True), "NVIDIA H200").tier == "rows"


def test_a_lines_programs_of_one_row_are_for_few():
    few, many = (Problem(False, M, 495, 2, 2, True, 132, True, 2.0, True, contiguous=True) for M in (4096, 40_000))
    assert [heuristics.choose(problem, "NVIDIA H200").rows for problem in (few, many)] == [1, 2]


def test_a_row_of_a_word_has_no_edges():
    """Elements outside whole vectors move one by one. In vectors of 16 bytes, a row of 4 bytes has no others."""
    problem = Problem(False, 400_000, 2, 2, 4, True, 132, True, contiguous=True)
    plan = heuristics.choose(problem, "NVIDIA H200")
    assert (plan.tier, plan.tiles, plan.vector_words, plan.base_alignment) == ("rows", 1, 1, 0)
