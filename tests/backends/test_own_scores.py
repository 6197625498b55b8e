"""The kernels of attention scores as the backends `triton` and `cuda`: the check cases, and the rows that it refuses."""

import pytest
from masked_softmaxes import B, F, case_of

from softbench.backends import own_kernels, own_scores

CHECK_CASES = """
from softbench.backends.own_kernels import own
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.plugins.traits import operations
op = "masked_softmax(mask=boolean,causal=true,sink=true)"
assert any(one.startswith("masked_softmax(") for one in operations(own))
runner = CheckCaseRunner(own, "cpu", operation=op)
for name, direction in runner.items:
    if name not in {shapes} and not name.startswith(("shape", "structured")):
        found = runner.run(name, direction, "bf16", 0)
        assert isinstance(found, str) or found.grade.value == "pass", (name, direction, found)
    elif name in {shapes}:
        found = runner.run(name, direction, "fp32", 0)
        assert found.grade.value == "pass", (name, direction, found)
print("fine")
"""
SHAPES = ["shape 1x1x5x2", "shape 2x3x7x7", "structured 2x5x70x33", "shape 1x2x2x16384"]


@pytest.mark.slow
def test_check_cases_pass_under_the_interpreter(run_interpreted):
    run_interpreted(CHECK_CASES.format(shapes=SHAPES))


@pytest.mark.parametrize(
    ("text", "direction", "reason"),
    [
        ("scale=2", F, None),
        ("mask=boolean", B, None),
        ("mask=boolean", F, "with mask N is at most 16384"),
        ("causal=true,sink=true", B, "with causal and sink N is at most 16384"),
    ],
)
def test_longer_rows_are_refused_with_the_reason(text, direction, reason):
    for package in ("triton", "cuda"):
        assert own_scores.refused(package, case_of(text, "bf16", direction, (1, 1, 2, 16384))) is None
        assert own_scores.refused(package, case_of(text, "bf16", direction, (1, 1, 2, 16385))) == reason


LIBRARIES = (("scale=2", F), ("mask=boolean", B), ("mask=boolean", F), ("sink=true", B))


def test_the_library_of_a_case_is_the_one_it_calls():
    found = [own_kernels._library(case_of(text, "bf16", direction)) for text, direction in LIBRARIES]
    assert found == ["scaled_softmax", "scaled_softmax", "masked_softmax", "masked_softmax"]
