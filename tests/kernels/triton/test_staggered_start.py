"""The delays between the first rows of a launch."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st
from problems import problems
from softbench.kernels.triton import heuristics
from softbench.kernels.triton.launch_plan import LEAVE_FIRST, Plan, Problem
from softbench.kernels.triton.staggered_start import stagger

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


def test_large_forwards_of_one_wave_are_staggered_too():
    few = replace(PROBLEM, M=9)
    assert stagger(few, SPLIT) == stagger(PROBLEM, SPLIT)
    assert stagger(few, CLUSTER) == stagger(PROBLEM, CLUSTER)
    small = replace(PROBLEM, M=4)
    assert stagger(small, SPLIT) == (0, 0)
    assert stagger(small, CLUSTER) == stagger(PROBLEM, CLUSTER)


@pytest.mark.parametrize(("mebibytes", "share"), [(12.9, 0), (13, 1), (15.9, 1), (16, 4 / 3)])
def test_delays_of_forwards_of_one_wave_grow_with_bytes(mebibytes, share):
    few = replace(PROBLEM, M=8, N=math.floor(mebibytes * (1 << 20) / 32))
    cycles = int(few.N * 4 / 2500 * share)
    assert stagger(few, replace(SPLIT, split_ctas=66)) == ((8, cycles) if share else (0, 0))


@pytest.mark.parametrize(("ctas", "share"), [(26, 1), (27, 4 / 3)])
def test_forwards_that_leave_l2_first_are_staggered_by_a_row(ctas, share):
    """24 rows of 1994414 bytes. With 26 programs a row the launch has 1.18 waves, and with 27 it has 1.23."""
    forward = replace(PROBLEM, M=24, N=997207, element_size=2, hopper=True)
    plan = replace(SPLIT, vector_elements=8, base_alignment=128, split_ctas=ctas)
    assert stagger(forward, plan) == (528 // ctas, int(2 * 997207 / 2500 * share))


def test_gradients_that_leave_l2_first_keep_their_delay():
    """15 rows of 3.6 MB, of which the device holds 12 at once."""
    gradient = replace(PROBLEM, backward=True, M=15, N=900000, element_size=2, hopper=True)
    plan = Plan("split", 12, 128, 4, 8, 0, 4, 128, split_ctas=44, smem_tiles=10)
    assert gradient.policy(plan) == LEAVE_FIRST
    assert stagger(gradient, plan) == (12, int(4 * 900000 / 2500 * 4 / 3))


def test_large_gradients_of_one_wave_are_staggered_by_a_row():
    gradient, row = replace(PROBLEM, backward=True, M=8), 2 * (1 << 20) * 4
    plan = replace(SPLIT, threads=128, registers=96, smem_tiles=10)
    assert stagger(gradient, plan) == (5 * 132 // 56, int(row / 2500))
    assert stagger(replace(gradient, M=4), plan) == (5 * 132 // 56, int(row / 2500 / 3))
    assert stagger(replace(gradient, M=3), plan) == (0, 0)  # less than 30 MiB


@pytest.mark.parametrize(("columns", "share"), [(375000, 1), (375001, 4 / 3)])
def test_medium_gradients_are_staggered_by_a_row(columns, share):
    """375000 columns of two float32 tensors have 3 MB."""
    plan = replace(SPLIT, threads=128, registers=128, tiles=10)
    gradient = replace(PROBLEM, backward=True, N=columns, hopper=True)
    assert stagger(gradient, plan) == (4 * 132 // 56, int(8 * columns / 2500 * share))
    assert stagger(replace(gradient, hopper=False), plan) == (4 * 132 // 56, int(8 * columns / 2500 * 4 / 3))
    assert stagger(replace(gradient, backward=False), SPLIT) == (4 * 132 // 56, int(4 * columns / 2500 * 4 / 3))


@given(problems, st.floats(0, 1e5))
@settings(max_examples=200, deadline=None)
def test_delays_fit_the_kernels_arguments(problem, rate):
    problem = replace(problem, bytes_per_cycle=rate)
    for plan in heuristics.candidates(problem):
        if plan.tier in ("cluster", "split"):
            rows, cycles = stagger(problem, plan)
            assert 0 <= rows < 1 << 31 and 0 <= cycles < 1 << 31 and (rows > 0 or cycles == 0)
