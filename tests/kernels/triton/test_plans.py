"""Launch plans: every problem gets one that covers its rows and fits the device. Which plan is the fastest, `tune` measures."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given, settings, strategies as st
from softbench.kernels.triton import heuristics, launch_plan
from softbench.kernels.triton.candidates import SMEM_BYTES
from softbench.kernels.triton.launch_plan import (
    SM_REGISTERS,
    VECTOR_BYTES,
    Plan,
    Problem,
    chunk_of,
    measured_plans,
    plan_to_json,
    resident_programs,
    vectors_in_row,
)
from softbench.kernels.triton.staggered_start import stagger

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


@pytest.fixture
def table(monkeypatch, tmp_path):
    """A function that makes a table of one line, which decides for all devices."""

    def made(line):
        (tmp_path / "mine.json").write_text(f"[{line}]")
        monkeypatch.setenv("SOFTBENCH_TRITON_TABLE", str(tmp_path / "mine.json"))
        measured_plans.cache_clear()

    yield made
    measured_plans.cache_clear()


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


def test_a_table_decides_for_its_device(table):
    assert measured_plans("NVIDIA H200") and not measured_plans("a device of another name")
    table('["forward 4 16", 80, 12, {"tier": "rows", "tiles": 2, "threads": 128, "vector_elements": 4, "warps": 4}]')
    expected = Plan("rows", tiles=2, threads=128, vector_elements=4, warps=4)
    assert measured_plans("any") == {"forward 4 16": [(80, 12, expected)]}
    problem = Problem(False, 4096, 1024, 4, 16, True, 132, True)
    assert heuristics.choose(problem, "any") == expected
    far = replace(problem, N=8192)
    assert heuristics.choose(far, "any") == heuristics.by_heuristics(far)


@pytest.mark.parametrize("tier", ["rows", "cluster", "split"])
def test_a_plan_that_is_too_small_is_not_fitted(tier):
    problem = Problem(False, 4096, 1 << 20, 4, 16, True, 132, True)
    assert heuristics.fit(problem, Plan(tier, tiles=1, threads=128, vector_elements=4, warps=4, cluster_ctas=2, split_ctas=2)) is None


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


def long_rows(backward, rows, columns, size, **fields):
    """The problem of rows without a gap between them."""
    fields = {"sms": 132, "clusters": True, "bytes_per_cycle": 2.0, "hopper": True, "contiguous": True} | fields
    return Problem(backward, rows, columns, size, min(16, size * columns & -(size * columns)), True, **fields)


@given(
    st.builds(
        lambda fields, **shape: long_rows(**shape, **fields),
        backward=st.booleans(),
        rows=st.one_of(st.integers(1, 600), st.sampled_from([1100, 1413, 4096])),
        columns=st.one_of(st.integers(16_000, 700_000), st.integers(700_000, 11_000_000)),
        size=st.sampled_from([2, 4]),
        fields=st.sampled_from([{}, {"hopper": False}, {"sms": 78}, {"sms": 4}, {"loss": True}]),
    ),
    st.sampled_from(["NVIDIA H200", "NVIDIA H100 80GB HBM3", ""]),
)
@example(long_rows(True, 538, 312149, 2, sms=4), "")
@example(long_rows(True, 2, 312 * 128 * 21 * 4 + 4, 4, sms=78), "")
@settings(max_examples=200, deadline=None)
def test_long_rows_are_covered_and_their_programs_run(problem, device):
    """By registers and shared memory, and the programs of a row at once. Else each would poll in vain, and reduce the whole row."""
    plan = heuristics.choose(problem, device if problem.sms == 132 else "")
    assert covers(problem, plan), plan
    assert plan.registers is None or plan.registers * plan.threads <= SM_REGISTERS
    assert plan.smem_tiles * problem.reads * plan.threads * VECTOR_BYTES <= SMEM_BYTES
    resident = resident_programs(plan.threads, plan.registers, plan.smem_tiles * problem.reads)
    assert plan.split_ctas <= min(512, max(1, resident) * problem.sms), plan


def test_a_line_of_a_table_decides_for_its_own_rows():
    """It was measured with 32 rows. Nobody measured 31."""
    given = long_rows(False, 32, 524288, 4)
    lines = measured_plans("NVIDIA H200")[heuristics.bucket(given)[0]]
    (line,) = (plan for length, rows, plan in lines if (length, rows) == heuristics.bucket(given)[1:])
    assert heuristics.choose(given, "NVIDIA H200") == heuristics.fit(given, line)
    assert heuristics.choose(replace(given, M=31), "NVIDIA H200") != heuristics.fit(replace(given, M=31), line)


def test_a_plan_survives_json():
    for plan in (Plan("split", 8, 256, 2, 8, 128, 8, 64, 2, 4, 3, 11), Plan("tile")):
        assert Plan(**json.loads(json.dumps(plan_to_json(plan)))) == plan
    assert plan_to_json(Plan("tile")) == {"tier": "tile"}


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
    for plan in heuristics.candidates(problem):
        if plan.tier in ("cluster", "split"):
            rows, cycles = stagger(problem, plan)
            assert 0 <= rows < 1 << 31 and 0 <= cycles < 1 << 31 and (rows > 0 or cycles == 0)
