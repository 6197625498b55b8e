"""Softmax with a scale and a float32 result: right kernels are accepted, wrong ones are not. The GPU has the same tests."""

import math

import pytest
import torch
from sampled import sampled
from scaled import HONEST, ROUNDED, WRONG_BACKWARD, WRONG_FORWARD, graded, wrong_ones

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops import error_terms, registry, softmax
from softbench.ops.registry import operation

CASES = (
    ("softmax(scale=0.7)", "fp32"),
    ("softmax(scale=30)", "fp16"),
    ("softmax(scale=row)", "bf16"),
    ("softmax(scale=0.7,out_dtype=fp32)", "bf16"),
    ("softmax(scale=row,out_dtype=fp32)", "fp16"),
)
ENDS = (("softmax(scale=0.0001)", "fp32"), ("softmax(scale=10000)", "fp16"), ("softmax(out_dtype=fp32)", "bf16"))


@pytest.mark.parametrize(("op", "dtype"), sampled(CASES + ENDS, lambda *case: case in (CASES[1], CASES[4])))
def test_right_kernels_pass(op, dtype):
    for direction in operation("softmax").directions:
        for name, make in HONEST.items():
            found = graded(make, op, dtype, direction)
            # a folded factor rounds the maximum's product: of low precision where y is float32 and rows are far from zero
            due = (Grade.PASS, Grade.LOW_PRECISION) if name == "folded" else (Grade.PASS,)
            assert found.grade in due, (name, direction, found.detail)


@pytest.mark.parametrize(("op", "dtype"), sampled(CASES, lambda *case: CASES.index(case) % 4 == 0))
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_wrong_kernels_are_found(op, dtype, direction):
    accepted = {
        name: found for name, make in wrong_ones(op, direction).items() if (found := graded(make, op, dtype, direction)).grade != "wrong"
    }
    assert accepted == {}


def test_wrong_kernels_of_both_passes_are_found():
    for name, make in wrong_ones("softmax(scale=row)", "forward").items() | {("no factor", WRONG_BACKWARD["no factor"])}:
        assert graded(make, "softmax(scale=row)", "fp32", "both").grade is Grade.WRONG, name


def test_a_product_in_16_bits_has_low_precision():
    for op in ("softmax(scale=0.7)", "softmax(scale=0.7,out_dtype=fp32)"):
        for dtype in ("bf16", "fp16"):
            found = graded(ROUNDED["product in 16 bits"], op, dtype, "forward")
            assert found.grade is Grade.LOW_PRECISION
            assert found.detail.startswith("rounds x * scale, or dx before its product with scale, to 16 bits: y[")
            assert graded(ROUNDED["quotient in 16 bits"], op, dtype, "forward").grade is Grade.LOW_PRECISION
            assert graded(ROUNDED["dx in 16 bits before its factor"], op, dtype, "backward").grade is Grade.LOW_PRECISION
    assert graded(ROUNDED["product in 16 bits"], "softmax(scale=row)", "bf16", "forward").grade is Grade.PASS


def test_a_scale_next_to_one_counts_in_float32():
    """In 16 bits x * 1.0001 rounds to x, so there the scale counts as rounded; y as its factor never does."""
    near = "softmax(scale=1.0001)"
    for name in ("ignores scale", "scale twice", "scale after softmax"):
        assert graded(WRONG_FORWARD[name], near, "fp32", "forward").grade is Grade.WRONG, name
    assert graded(WRONG_BACKWARD["no factor"], near, "fp32", "backward").grade is Grade.WRONG
    for name, make in HONEST.items():
        assert graded(make, near, "fp32", "forward").grade is Grade.PASS, name
    wide = "softmax(scale=1.0001,out_dtype=fp32)"
    assert graded(WRONG_FORWARD["ignores scale"], wide, "bf16", "forward").grade is Grade.LOW_PRECISION
    assert graded(WRONG_FORWARD["scale after softmax"], wide, "bf16", "forward").grade is Grade.WRONG


def test_the_extremes_are_those_of_all_errors():
    """Of each sign of the errors of five elements, one after the other."""
    z = torch.tensor([[0.3, -1.0, 4.0, 1e-3, -math.inf]], dtype=torch.float64)
    errors = torch.tensor([[0.2, 0.1, 0.5, 0.0, 0.0]], dtype=torch.float64)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 5)
    every = torch.softmax(z + signs * errors, dim=-1)
    assert torch.allclose(error_terms.extreme(z, errors, 1)[0], every.amin(dim=0), rtol=1e-12)
    assert torch.allclose(error_terms.extreme(z, errors, -1)[0], every.amax(dim=0), rtol=1e-12)
    far = torch.tensor([[3e38, 0.0]], dtype=torch.float64)
    assert error_terms.extreme(far, 2.0**-24 * far, 1).tolist() == [[1, 0]]


def test_rows_have_scales_of_their_own_and_inputs_their_dtypes():
    case = Case(64, 8, "bf16", Direction.BACKWARD, "cpu", "softmax(scale=row,out_dtype=fp32)")
    dy, y, scale = registry.numerics(case.op).make(case, 0, torch.device("cpu"))
    assert (dy.dtype, y.dtype, scale.dtype, scale.shape) == (torch.float32, torch.float32, torch.float32, (64,))
    assert (y.sum(dim=-1) - 1).abs().max() < 1e-6
    assert scale.max() / scale.min() > 16
    again = registry.numerics(case.op).make(case, 0, torch.device("cpu"))
    assert all(map(torch.equal, (dy, y, scale), again))


def test_a_replaced_product_does_not_replace_the_reference(monkeypatch):
    """numpy computes rows again, and it multiplies them itself."""
    monkeypatch.setattr(softmax, "times", lambda x, scale: x)
    found = graded(lambda case: lambda x: torch.softmax(x, -1), "softmax(scale=0.7)", "fp32", "forward")
    assert (found.grade, found.detail) == (
        Grade.UNVERIFIED,
        "torch computes the check otherwise than numpy: the plugin replaced operators that the check needs",
    )
