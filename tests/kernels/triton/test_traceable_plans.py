"""Plans of the kernels that compilers trace. `test_traceable_split.py` looks at machine code, `test_traceable_rows.py` runs the kernels."""

import itertools
import math
from dataclasses import replace

from softbench.kernels.triton import traceable
from softbench.kernels.triton.launch_plan import Problem, chunk_of, vectors_in_row

COLUMNS = (9217, 20_000, 32_768, 50_257, 131_073, 262_144, 1 << 20, 1 << 22, 1 << 23)


def problems():
    for backward, size, sms, M, N in itertools.product((False, True), (2, 4), (20, 108, 132), (1, 8, 64, 132, 4096), COLUMNS):
        yield Problem(backward, M, N, size, math.gcd(16, N * size), True, sms, True)


def test_parts_cover_a_row_and_fit_registers():
    seen = set()
    for problem in problems():
        if (plan := traceable.shared_plan(problem)) is not None:
            seen.add((plan.tier, problem.backward))
            chunk = chunk_of(problem, plan)
            assert plan.split_ctas >= 2
            of_split = traceable.SPLIT_TILES[problem.backward]
            most = (of_split[1] if plan.base_alignment else max(of_split)) if plan.tier == "split" else 8 // problem.reads
            assert plan.tiles <= most
            assert plan.threads == 32 * plan.warps
            assert chunk <= plan.tiles * plan.threads
            assert chunk * plan.split_ctas >= vectors_in_row(problem, plan.vector_elements, plan.base_alignment)
    assert seen == set(itertools.product(("split", "passes"), (False, True)))


def test_programs_of_a_split_row_all_run_at_once():
    """An SM holds three programs of 128 threads, which have at most 168 registers each."""
    for problem in problems():
        if (plan := traceable.shared_plan(problem)) is not None and plan.tier == "split":
            assert plan.threads == 128
            assert plan.split_ctas <= min(problem.sms * 3, 256)


def test_few_rows_occupy_the_whole_device():
    for M, N in itertools.product((1, 8, 64), (32_768, 128_256)):
        plan = traceable.shared_plan(Problem(False, M, N, 2, 16, True, 132, True))
        assert plan.tier == ("passes" if M * N * 2 <= traceable.PASS_BYTES else "split")
        assert plan.split_ctas * M >= min(132, M * N // 1024)


def test_rows_are_shared_as_their_bytes_demand():
    for problem in problems():
        row = problem.N * problem.element_size * problem.reads
        short = row <= traceable.LONG_ROW or (row <= traceable.PROGRAM_ROW[problem.element_size] and problem.sms < problem.M)
        plan = traceable.shared_plan(problem)
        assert (plan is None) == short, problem
        programs = min(problem.sms * 3, 256)
        if row * problem.M <= traceable.PASS_BYTES or row > programs * (44 << 10):
            assert short or plan.tier == "passes" or (not problem.backward and problem.alignment == 16 and row <= programs * (48 << 10))
        elif row <= programs * (40 << 10) - 256:
            assert short or plan.tier == "split"
    assert traceable.shared_plan(Problem(False, 1, 1 << 20, 4, 16, False, 132, True)) is None  # operands with unlike alignments
    assert traceable.shared_plan(Problem(False, 1, 1 << 20, 8, 16, False, 132, True)) is None
    for N, shared in ((2**31 - 2**14, True), (2**31 - 2**14 + 1, False), (2**31 + 4096, False), (2**32, False)):
        assert (traceable.shared_plan(Problem(False, 1, N, 2, 2, True, 132, True)) is not None) == shared


def test_parts_of_long_rows_depend_on_bytes_and_programs():
    """(M, N, element size) of aligned forwards, then tiles and programs. A program has 128 threads."""
    forwards = (
        ((64, 128_256, 2), (8, 16)),
        ((32, 262_144, 2), (8, 32)),
        ((100, 65_536, 4), (8, 16)),
        ((68, 262_144, 2), (8, 32)),  # 34 MiB
        ((69, 262_144, 2), (16, 16)),
        ((31, 270_336, 2), (16, 17)),  # 33 programs of 8 tiles
        ((16, 1 << 20, 4), (16, 128)),
        ((15, 1_048_832, 4), (24, 86)),  # 129 programs of 16 tiles
        ((62, 270_336, 4), (16, 33)),  # 63.9 MiB
        ((63, 270_336, 4), (24, 22)),
        ((4096, 1 << 18, 4), (16, 32)),
        ((4096, 262_400, 4), (24, 22)),  # 33 programs of 16 tiles
        ((128, 1 << 19, 4), (24, 43)),
        ((16, 1 << 22, 2), (24, 171)),
    )
    for (M, N, size), expected in forwards:
        plan = traceable.shared_plan(Problem(False, M, N, size, 16, True, 132, True))
        assert (plan.tier, plan.tiles, plan.split_ctas) == ("split", *expected), (M, N)


def test_unaligned_rows_and_gradients_have_parts_of_their_own():
    for problem, expected in (
        (Problem(False, 64, 128_257, 2, 2, True, 132, True), (21, 6)),
        (Problem(False, 64, 140_801, 2, 2, True, 132, True), (20, 7)),
        (Problem(True, 64, 65_536, 2, 16, True, 132, True), (8, 8)),  # 8 MiB in each input
        (Problem(True, 16, 1 << 19, 2, 16, True, 132, True), (10, 52)),
        (Problem(True, 16, 1 << 19, 2, 2, True, 132, True), (10, 52)),
    ):
        plan = traceable.shared_plan(problem)
        assert (plan.tier, plan.tiles, plan.split_ctas) == ("split", *expected), problem


def test_few_processors_keep_rows_in_one_kernel():
    """With 4 SMs, 12 programs run at once: 17 parts of 8 tiles would not."""
    plan = traceable.shared_plan(Problem(False, 64, 66_000, 4, 16, True, 4, True))
    assert (plan.tier, plan.split_ctas) == ("split", 9)


def test_rows_that_a_package_shares_start_apart():
    H200 = Problem(False, 128, 262_144, 2, 16, True, 132, True, 2500.0, True)

    def start(problem):
        return traceable.split_stagger(problem, traceable.shared_plan(problem))

    row = 2 * 262_144 / 2500
    assert start(H200) == (5 * 132 // 16, int(row * 4 / 3))
    few = replace(H200, M=32)  # all rows at once, 8 programs an SM
    assert start(few) == (8 * 132 // 32, int(row))
    assert start(replace(few, sms=66)) == (8 * 66 // 32, int(row))
    assert start(replace(few, bytes_per_cycle=0.0)) == (0, 0)
    assert start(replace(few, M=72)) == (5 * 132 // 16, int(row * 4 / 3))  # 16 tiles
    assert start(replace(H200, M=16, N=1 << 22)) == (3, int(16 * row * 4 / 3))
    assert start(replace(H200, M=16, N=5 << 20)) == (0, 0)  # two rows at once
    gradient = replace(H200, backward=True, M=64, N=65_536)
    assert start(gradient) == (0, 0)  # all rows at once, and less than 30 MiB
    assert start(replace(gradient, N=1_400_000)) == (0, 0)  # three rows at once


def test_no_lane_has_parts_of_two_short_rows():
    for N, backward in itertools.product((36, 60, 77, 100, 197, 230, 333), (False, True)):
        problem = Problem(backward, 262_144, N, 2, math.gcd(16, 2 * N), True, 132, True, 2500.0, True)
        plan = traceable.plan_for(problem, "NVIDIA H200")
        assert plan.tier == "rows"
        assert plan.threads > 32 or plan.rows * plan.threads <= 32 * plan.warps
        assert plan.warps <= 8
    fewer = traceable.plan_for(Problem(False, 262_144, 36, 2, 8, True, 132, True, 2500.0, True), "NVIDIA H200")
    assert (fewer.threads, fewer.rows, fewer.warps) == (2, 16, 1)  # 32 rows a program by rule
    more = traceable.plan_for(Problem(False, 262_144, 230, 2, 4, True, 132, True, 2500.0, True), "NVIDIA H200")
    assert (more.threads, more.rows, more.warps) == (16, 4, 2)  # one warp by rule: two rows would be less than 2 KiB
