"""A Hypothesis strategy for launch problems of the Triton kernels, and the check that a plan covers a problem's rows."""

from dataclasses import replace

from hypothesis import strategies as st
from softbench.kernels.triton.launch_plan import Plan, Problem, chunk_of, vectors_in_row

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
