"""Launch plans: every problem gets one that covers its rows and fits the device. Which family is the fastest, tables say."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings, strategies as st
from softbench.kernels.plans import table as tables
from softbench.kernels.triton import launch_plan, planner
from softbench.kernels.triton.launch_plan import (
    SM_REGISTERS,
    VECTOR_BYTES,
    Plan,
    Problem,
    chunk_of,
    resident_programs,
    vectors_in_row,
)
from softbench.kernels.triton.planner import SMEM_BYTES
from softbench.kernels.triton.staggered_start import stagger
from softbench.kernels.tuning.shapes import FAMILIES

problems = st.builds(
    Problem,
    backward=st.booleans(),
    M=st.one_of(st.integers(1, 200), st.sampled_from([4096, 65537, 1 << 20])),
    N=st.one_of(st.integers(1, 3000), st.integers(1, 1 << 23)),
    element_size=st.sampled_from([2, 4, 8]),
    alignment=st.sampled_from([1, 2, 4, 8, 16]),
    congruent=st.booleans(),
    sms=st.sampled_from([4, 20, 108, 132]),
    clusters=st.booleans(),
    bytes_per_cycle=st.sampled_from([0.0, 2.4]),
    hopper=st.booleans(),
    contiguous=st.booleans(),
).map(
    lambda problem: replace(
        problem,
        hopper=problem.hopper and problem.clusters,
        alignment=max(
            min(problem.element_size, 8),
            min(16, (problem.N * problem.element_size) & -(problem.N * problem.element_size), problem.alignment),
        ),
    )
)


def covers(problem: Problem, plan: Plan) -> bool:
    """Whether the plan's programs cover every vector of a row."""
    if plan.tier in ("tile", "loop"):
        return True
    if plan.tier == "staged":
        whole_blocks = plan.rows * plan.threads % (32 * plan.warps) == 0 and plan.rows * problem.N * problem.element_size % 16 == 0
        return problem.contiguous and whole_blocks and plan.tiles * plan.threads * plan.vector_elements >= problem.N
    vectors = vectors_in_row(problem, plan.vector_elements, plan.base_alignment)
    if plan.tier == "rows":
        return vectors <= plan.tiles * plan.threads
    chunk = chunk_of(problem, plan)
    whole = chunk * max(plan.cluster_ctas, plan.split_ctas) >= vectors
    return whole and (plan.tier == "split" or chunk <= plan.tiles * plan.threads)


LARGE = Problem(False, 4096, 4096, 2, 16, True, 132, True, hopper=True)
CARDS = [("NVIDIA H200", 90), ("a card without a table", 86), ("", 90)]


def fits(problem: Problem, plan: Plan) -> bool:
    """Whether the plan's programs fit the device, and the vectors of rows that are counted from a vector leave out no element."""
    if plan.tier in ("tile", "loop"):
        return True
    # of tier staged a unit, which may be half of a word
    moved = plan.vector_elements * problem.element_size if plan.tier == "staged" else 4 * plan.vector_words
    whole = plan.base_alignment or (problem.alignment % moved == 0 and problem.N * problem.element_size % moved == 0)
    by_registers = plan.registers is None or plan.registers * plan.threads <= SM_REGISTERS
    resident = resident_programs(plan.threads, plan.registers, plan.smem_tiles * problem.reads)
    at_once = plan.split_ctas <= min(512, max(1, resident) * problem.sms)  # else each would poll in vain, and reduce the whole row
    in_smem = plan.smem_tiles * problem.reads * plan.threads * VECTOR_BYTES <= SMEM_BYTES
    fast = problem.congruent and problem.element_size < 8 and (plan.tier != "cluster" or problem.clusters)
    return bool(whole and by_registers and at_once and in_smem and fast)


@given(problems, st.sampled_from(CARDS))
@example(Problem(True, 1 << 20, 2, 2, 2, True, 4, False, contiguous=True), CARDS[0])
@example(Problem(False, 1000, 2, 2, 2, True, 132, True), CARDS[0])
@example(Problem(False, 300, 1 << 23, 4, 16, True, 4, True), CARDS[0])
@settings(max_examples=1000, deadline=None)
def test_every_problem_has_a_plan_that_covers_its_rows_and_fits(problem, card):
    plan = planner.choose(problem, card)
    assert covers(problem, plan) and fits(problem, plan), plan


@given(problems)
@settings(max_examples=400, deadline=None)
def test_what_a_family_makes_covers_the_rows_and_fits(problem):
    if problem.congruent and problem.element_size < 8:
        for family in FAMILIES["triton"]:
            plan = planner.make_plan(problem, family)
            assert plan is None or (covers(problem, plan) and fits(problem, plan)), (family, plan)


@given(problems, st.data())
@settings(max_examples=400, deadline=None)
def test_every_family_that_a_table_may_have_makes_plans_that_a_kernel_takes(problem, data):
    tier, allowed = data.draw(st.sampled_from(sorted(tables.NUMBERS["triton"].items())))
    typical = (-100, 0, 1, 2, 3, 4, 8, 10, 16, 32, 64, 100, 256, 1024, 12288)
    numbers = [data.draw(st.sampled_from([one for one in typical if one in of])) for of in allowed]
    plan = planner.make_plan(problem, (tier, *numbers)) if problem.congruent and problem.element_size < 8 else None
    if plan:
        assert covers(problem, plan) and fits(problem, plan), (tier, numbers, plan)
        assert plan.warps in (1, 2, 4, 8, 16, 32) and plan.cluster_ctas in ((2, 4, 8, 16) if tier == "cluster" else (1,)), plan
        assert tier == "staged" or plan.rows & (plan.rows - 1) == 0, plan


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_rows_that_no_device_holds_are_shared_too(backward, clusters):
    for M, N in ((1, 1 << 26), (3, 50_000_001)):
        given = Problem(backward, M, N, 2, 16 if N % 8 == 0 else 2, True, 132, clusters, contiguous=True)
        plan = planner.choose(given, CARDS[0])
        assert plan.tier == "split" and plan.split_ctas > 300 and covers(given, plan) and fits(given, plan), plan


def test_a_table_decides_for_its_card(monkeypatch, tmp_path):
    kind = "forward", 4, 16
    inf = float("inf")
    short = (tables.Cell(4096, most, ("rows", vectors, 1, 1, 16)) for most, vectors in ((64, 2), (inf, 4)))
    cells = {kind: [*short, tables.Cell(inf, inf, ("cluster", 256, 8, 0))]}
    (tmp_path / "mine.json").write_text(tables.written("mine", 90, {"triton": cells}, ""))
    monkeypatch.setenv(tables.VARIABLE, str(tmp_path / "mine.json"))
    tables.table.cache_clear()
    given = Problem(False, 4096, 1024, 4, 16, True, 132, True)
    assert planner.choose(given, ("mine", 90)) == planner.make_plan(given, ("rows", 4, 1, 1, 16))
    assert planner.choose(replace(given, M=100), ("mine", 90)) == planner.make_plan(given, ("rows", 2, 1, 1, 16))
    assert planner.choose(replace(given, N=1 << 16), ("mine", 90)).tier == "cluster"
    with pytest.raises(tables.TableError, match="has the plans of mine, and this card is another"):
        planner.choose(given, ("another", 90))
    tables.table.cache_clear()


def test_rows_fill_the_lanes_and_half_of_the_threads_where_clusters_have_the_longer_ones():
    whole, idle = (Problem(True, 4096, N, 2, VECTOR_BYTES, True, 132, True) for N in (256, 144))
    assert planner.make_plan(whole, ("rows", 1, 1, 2, 16)) and not planner.make_plan(idle, ("rows", 1, 1, 2, 16))
    long = replace(whole, N=8192)
    assert planner.make_plan(long, ("rows", 2, 1, 1, 16)) and not planner.make_plan(long, ("rows", 1, 1, 1, 16))
    assert planner.make_plan(replace(long, clusters=False), ("rows", 1, 1, 1, 16))


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("unit", [2, 4])
def test_a_free_distance_is_the_least_of_one_turn(unit, lanes):
    distances = [1 << i for i in range(8)]
    for row in range(unit * lanes, 700, unit):
        least = next((distance for distance in distances if launch_plan.bank_turns(row, unit, lanes, distance) == 1), 0)
        assert launch_plan.free_distance(row, unit, lanes, 32 // lanes * distances[-1]) == least, row


def test_plans_of_wide_results_cover_rows_with_shorter_vectors():
    for N, plan in ((4099, Plan("rows", 9, 64, 4, 8, 128, 2)), (50257, Plan("cluster", 7, 128, 4, 8, 128, 4, cluster_ctas=8))):
        problem, wide = replace(LARGE, N=N, wide=True), launch_plan.for_wide_results(plan)
        assert (wide.vector_words, wide.vector_elements) == (2, 4)
        assert covers(problem, plan) and covers(problem, wide)
    short = Plan("rows", 5, 16, 1, 2)
    assert launch_plan.for_wide_results(short) == short


PROBLEM = Problem(False, 64, 1 << 20, 4, 16, True, 132, True, bytes_per_cycle=2500.0)
SPLIT = Plan("split", 8, 256, 4, 4, 0, 8, 64, split_ctas=56, smem_tiles=11)
CLUSTER = Plan("cluster", 8, 256, 4, 4, 0, 8, 64, cluster_ctas=16)


def test_rows_that_exceed_the_device_are_staggered():
    assert min(*stagger(PROBLEM, SPLIT), *stagger(PROBLEM, CLUSTER)) > 0
    for alone in (replace(PROBLEM, M=1), replace(PROBLEM, N=1024), replace(PROBLEM, bytes_per_cycle=0.0)):
        assert stagger(alone, SPLIT) == stagger(alone, CLUSTER) == (0, 0)


@given(problems, st.floats(0, 1e5))
@settings(max_examples=200, deadline=None)
def test_delays_fit_the_kernels_arguments(problem, rate):
    problem = replace(problem, bytes_per_cycle=rate)
    for plan in filter(None, (planner.make_plan(problem, family) for family in FAMILIES["triton"])):
        if plan.tier in ("cluster", "split"):
            rows, cycles = stagger(problem, plan)
            assert 0 <= rows < 1 << 31 and 0 <= cycles < 1 << 31 and (rows > 0 or cycles == 0)
