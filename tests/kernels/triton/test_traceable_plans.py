"""Plans of the kernels that compilers trace. `test_traceable_split.py` looks at machine code, `test_traceable_rows.py` runs the kernels."""

import itertools
import math
from dataclasses import replace

from softbench.kernels.triton import traceable_plans as plans
from softbench.kernels.triton.launch_plan import Problem, chunk_of, vectors_in_row

COLUMNS = (9217, 20_000, 32_768, 50_257, 131_073, 262_144, 1 << 20, 1 << 22, 1 << 23)


def problems():
    for backward, size, sms, M, N in itertools.product((False, True), (2, 4), (20, 108, 132), (1, 8, 64, 132, 4096), COLUMNS):
        yield Problem(backward, M, N, size, math.gcd(16, N * size), True, sms, True)


def test_parts_cover_a_row_and_fit_registers():
    seen = set()
    for problem in problems():
        if (plan := plans.shared_plan(problem)) is not None:
            seen.add((plan.tier, problem.backward))
            chunk = chunk_of(problem, plan)
            assert plan.split_ctas >= 2
            most = max(plans.SPLIT_TILES[problem.backward]) if plan.tier == "split" else 8 // problem.reads
            assert plan.tiles <= most
            assert plan.threads == 32 * plan.warps
            assert chunk <= plan.tiles * plan.threads
            assert chunk * plan.split_ctas >= vectors_in_row(problem, plan.vector_elements, plan.base_alignment)
    assert seen == set(itertools.product(("split", "passes"), (False, True)))


def test_programs_of_a_split_row_all_run_at_once():
    """An SM holds four programs of 128 threads, which have at most 128 registers each."""
    for problem in problems():
        if (plan := plans.shared_plan(problem)) is not None and plan.tier == "split":
            assert plan.threads == 128
            assert plan.split_ctas <= min(problem.sms * 4, 256)


def test_few_rows_occupy_the_whole_device():
    for M, N in itertools.product((1, 8, 64), (32_768, 128_256)):
        plan = plans.shared_plan(Problem(False, M, N, 2, 16, True, 132, True))
        assert plan.tier == ("passes" if M * N * 2 <= plans.PASS_BYTES else "split")
        assert plan.split_ctas * M >= min(132, M * N // 1024)


def test_rows_are_shared_as_their_bytes_demand():
    for problem in problems():
        row = problem.N * problem.element_size * problem.reads
        short = row <= plans.LONG_ROW or (row <= plans.PROGRAM_ROW[problem.element_size] and problem.sms < problem.M)
        plan = plans.shared_plan(problem)
        assert (plan is None) == short, problem
        programs = min(problem.sms * 4, 256)
        if row * problem.M <= plans.PASS_BYTES or row > programs * (44 << 10):
            assert short or plan.tier == "passes" or (not problem.backward and row <= programs * (48 << 10))
        elif row <= programs * (40 << 10) - 256:
            assert short or plan.tier == "split"
    assert plans.shared_plan(Problem(False, 1, 1 << 20, 4, 16, False, 132, True)) is None  # operands with unlike alignments
    assert plans.shared_plan(Problem(False, 1, 1 << 20, 8, 16, False, 132, True)) is None
    for N, shared in ((2**31 - 2**14, True), (2**31 - 2**14 + 1, False), (2**31 + 4096, False), (2**32, False)):
        assert (plans.shared_plan(Problem(False, 1, N, 2, 2, True, 132, True)) is not None) == shared


def test_parts_of_long_rows_depend_on_bytes_and_programs():
    """Aligned forwards of 12 to 34 MiB have parts of 16 KiB, unless that is more than 32 programs a row. Tiles are of 128 vectors."""
    forwards = (
        ((64, 128_256, 2), (8, 16)),
        ((32, 262_144, 2), (8, 32)),
        ((64, 262_144, 2), (8, 32)),
        ((100, 65_536, 4), (8, 16)),
        ((72, 262_144, 2), (16, 16)),  # 36 MiB
        ((31, 270_336, 2), (16, 17)),  # 33 programs of 8 tiles
        ((16, 1 << 20, 4), (16, 128)),
        ((17, 1 << 20, 4), (24, 86)),
        ((128, 1 << 19, 4), (24, 43)),
        ((16, 1 << 22, 2), (24, 171)),
    )
    for (M, N, size), expected in forwards:
        plan = plans.shared_plan(Problem(False, M, N, size, 16, True, 132, True))
        assert (plan.tier, plan.tiles, plan.split_ctas) == ("split", *expected), (M, N)
    for M, N, expected in ((64, 128_257, (21, 6)), (16, 1 << 19, (10, 52))):  # unaligned, and a gradient
        backward = N == 1 << 19
        plan = plans.shared_plan(Problem(backward, M, N, 2, 16 if backward else 2, True, 132, True))
        assert (plan.tiles, plan.split_ctas) == expected


def test_rows_that_a_package_shares_start_apart():
    H200 = Problem(False, 128, 262_144, 2, 16, True, 132, True, 2500.0, True)

    def start(problem):
        return plans.split_stagger(problem, plans.shared_plan(problem))

    assert start(H200) == (5 * 132 // 16, int(2 * 262_144 / 2500 * 4 / 3))
    few = replace(H200, M=32)  # all rows at once, 8 programs an SM
    assert start(few) == (8 * 132 // 32, int(2 * 262_144 / 2500))
    assert start(replace(few, bytes_per_cycle=0.0)) == (0, 0)
    assert start(replace(H200, M=16, N=1 << 22)) == (3, int(2 * (1 << 22) / 2500 * 4 / 3))
    assert start(replace(H200, M=16, N=5 << 20)) == (0, 0)  # two rows at once


def test_no_lane_has_parts_of_two_short_rows():
    for N, backward in itertools.product((36, 60, 77, 100, 197, 230, 333), (False, True)):
        problem = Problem(backward, 262_144, N, 2, math.gcd(16, 2 * N), True, 132, True, 2500.0, True)
        plan = plans.plan_for(problem, "NVIDIA H200")
        assert plan.tier == "rows"
        assert plan.threads > 32 or plan.rows * plan.threads <= 32 * plan.warps
        assert plan.warps <= 8
    fewer = plans.plan_for(Problem(False, 262_144, 36, 2, 8, True, 132, True, 2500.0, True), "NVIDIA H200")
    assert (fewer.threads, fewer.rows, fewer.warps) == (2, 16, 1)  # 32 rows a program by rule
    more = plans.plan_for(Problem(False, 262_144, 230, 2, 4, True, 132, True, 2500.0, True), "NVIDIA H200")
    assert (more.threads, more.rows, more.warps) == (16, 4, 2)  # one warp by rule: two rows would be less than 2 KiB
