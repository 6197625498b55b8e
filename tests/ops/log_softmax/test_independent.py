"""The float64 reference of log-softmax agrees with extended precision, and numpy notices replaced operators."""

import math

import numpy
import pytest
import torch

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.log_softmax import independent, inputs, reference, tolerance
from softbench.ops.rowwise.independent import wide

CPU = torch.device("cpu")
SHAPES = ((5, 1), (5, 2), (16, 33), (4, 20011))


def extended(tensor):
    return wide(tensor).astype(numpy.longdouble)


@pytest.mark.parametrize(("M", "N"), SHAPES)
@pytest.mark.parametrize("scale", [0.1, 1, 30])
def test_the_reference_agrees_with_extended_precision(M, N, scale):
    assert numpy.finfo(numpy.longdouble).eps < numpy.finfo(numpy.float64).eps
    generator = torch.Generator().manual_seed(1)
    x, dy = scale * torch.randn((2, M, N), generator=generator)
    below = extended(x) - extended(x).max(-1, keepdims=True)
    y = below - numpy.log(numpy.exp(below).sum(-1, keepdims=True))
    numpy.testing.assert_allclose(reference.forward(x).numpy(), y.astype(float), rtol=1e-13, atol=1e-13)
    numpy.testing.assert_allclose(independent.forward(wide(x)), y.astype(float), rtol=1e-13, atol=1e-13)
    given = reference.forward(x).float()
    dx = extended(dy) - numpy.exp(extended(given)) * extended(dy).sum(-1, keepdims=True)
    numpy.testing.assert_allclose(reference.backward(dy, given).numpy(), dx.astype(float), rtol=1e-12, atol=1e-12 * scale)
    numpy.testing.assert_allclose(independent.backward(wide(dy), wide(given)), dx.astype(float), rtol=1e-12, atol=1e-12 * scale)


def test_special_rows_are_as_in_torch():
    nan, inf = math.nan, math.inf
    x = torch.tensor([[0, -inf, 1], [-inf, -inf, -inf], [0, inf, 1], [0, nan, -inf], [0, 0, 0]], dtype=torch.float64)
    y = torch.log_softmax(x, -1)
    assert y[0, 1] == -inf and y[0, 0].isfinite()
    assert y[1:4].isnan().all()
    numpy.testing.assert_allclose(independent.forward(x.numpy()), y.numpy(), rtol=1e-15)
    assert torch.equal(reference.forward(x)[0], y[0])


def zeros(x, dim, half_to_float):
    return torch.zeros_like(x)


def test_a_replaced_log_softmax_does_not_replace_the_reference():
    case = Case(16, 256, "fp32", Direction.FORWARD, "cpu", "log_softmax")
    given = inputs.make(case, 0, CPU)
    right = torch.log_softmax(*given, -1)
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("_log_softmax", zeros, "CPU", allow_override=True)
        assert tolerance.check(case, given, (torch.log_softmax(*given, -1),)).grade is Grade.WRONG
        assert tolerance.check(case, given, (right,)).grade is Grade.PASS
    finally:
        library._destroy()
