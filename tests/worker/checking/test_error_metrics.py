"""Units in the last place of outputs whose reference is zero, infinite, or not float64."""

import math

import pytest
import torch

from softbench.worker.checking.error_metrics import MetricsAccumulator


def ulp(out, expected, dtype=torch.float32, of_reference=torch.float64):
    found = MetricsAccumulator()
    found(torch.tensor([out], dtype=dtype), torch.tensor([expected], dtype=of_reference))
    return found.ulp


@pytest.mark.parametrize("of_reference", [torch.float64, torch.float32], ids=str)
def test_units_are_those_of_the_reference(of_reference):
    assert ulp([1.0, 2 + 2.0**-21, 0.75], [1.0, 2.0, 0.75], of_reference=of_reference) == 2
    assert ulp([2.0**-24 * 3], [2.0**-24 * 2], torch.float16, of_reference) == 1  # subnormal


def test_a_reference_of_zero_has_the_unit_of_a_half():
    assert ulp([2.0**-24, 1.0], [0.0, 1.0]) == 1


def test_elements_without_a_finite_reference_do_not_count():
    assert ulp([1.0, 1.0, math.inf], [math.nan, math.inf, math.inf]) == 0
    assert math.isnan(ulp([1.0, math.nan], [math.nan, 1.0]))
