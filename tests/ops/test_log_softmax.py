"""The bounds of log-softmax beside `test_ways.py`: what is said of results, references, and inputs."""

import math

import pytest
import torch
from log_softmaxes import (
    RIGHT_FORWARD,
    WRONG_FORWARD,
    in_float32,
    nan_beside_masks,
    online,
)
from ways import Way

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.dtypes import DTYPES
from softbench.ops.log_softmax import NUMERICS
from softbench.ops.registry import numerics, operation
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck

CPU = torch.device("cpu")
F, B, BOTH = Direction.FORWARD, Direction.BACKWARD, Direction.BOTH
dtypes = pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])


def case_of(M, N, dtype, direction):
    return Case(M, N, dtype, direction, "cpu", "log_softmax")


def pre_checked(function, case, seed=3):
    """The verdict of a run's check: structured rows, then normal ones."""
    return PreCheck(case, function, NUMERICS.make(case, seed, CPU), object(), None).run(seed)


@pytest.mark.parametrize("N", [2048, 20011])
@dtypes
def test_an_exp_in_16_bits_is_rejected(dtype, N):
    assert pre_checked(WRONG_FORWARD["exp in 16 bits"](), case_of(64, N, dtype, F)).grade is Grade.WRONG


@pytest.mark.parametrize("forward", [nan_beside_masks, in_float32(lambda x: online(x, guarded=False))], ids=["all masks", "online"])
def test_nan_beside_masks_is_finite_only_and_wrong_in_check(forward):
    assert pre_checked(forward, case_of(64, 4096, "fp32", F)).grade is Grade.FINITE_ONLY
    assert checked(forward, "long, -inf first", "fp32", F).grade is Grade.WRONG


def checked(function, name, dtype, direction):
    way = Way("user", "log_softmax", {direction: lambda: function})
    return CheckCaseRunner(way, "cpu", operation="log_softmax").run(name, direction, dtype, 0)


FINDS = {
    "zeros": "shape 37x256",
    "softmax": "shape 37x256",
    "log of softmax": "scale 100",
    "no maximum subtracted": "shifted",
    "sum without the last column": "mass in the last column",
}


@dtypes
@pytest.mark.parametrize("name", FINDS)
def test_check_finds_wrong_forwards(name, dtype):
    assert checked(WRONG_FORWARD[name](), FINDS[name], dtype, F).grade is Grade.WRONG


@dtypes
def test_inputs_are_a_forward_in_the_dtype_of_the_case(dtype):
    dy, y = NUMERICS.make(case_of(4, 512, dtype, B), 0, CPU)
    assert dy.dtype is y.dtype is DTYPES[dtype]
    assert torch.allclose(y.float().exp().sum(-1), torch.ones(4), atol=0.02)


def test_a_logarithm_rounded_at_the_maximum_says_where():
    x = NUMERICS.make(case_of(8, 512, "fp32", F), 0, CPU)[0] + 1e7
    found = NUMERICS.check(case_of(8, 512, "fp32", F), (x,), (RIGHT_FORWARD["minus logsumexp"](x),))
    assert found.grade is Grade.LOW_PRECISION
    assert found.detail.startswith("rounds max + log(sum) or max*log2(e): error ")
    assert "in a row whose maximum is 1e+07" in found.detail


def test_estimates_are_outputs_in_float32():
    for direction in operation("softmax").directions:
        case = case_of(6, 100, "fp32", direction)
        given = NUMERICS.make(case, 0, CPU)
        assert NUMERICS.check(case, given, numerics("log_softmax").estimate(case, given)).grade is Grade.PASS


def test_the_size_of_steps_does_not_matter():
    x = torch.full((4, 64), -3e4)
    x[:, 5] = math.log(2)
    case = case_of(4, 64, "fp32", F)
    assert NUMERICS.check(case, (x,), (torch.log_softmax(x, -1),)).grade is Grade.PASS


def test_a_gradient_in_float64_may_cancel_at_the_sum():
    dy, y = torch.ones(1, 1000), torch.full((1, 1000), -math.log(999))
    dy[0, 0], y[0, 0] = 1e-12, -80
    total = dy.double().sum(-1, keepdim=True)
    dx = ((dy.double() - total) - total * torch.expm1(y.double())).float()
    assert NUMERICS.check(case_of(1, 1000, "fp32", B), (dy, y), (dx,)).grade is Grade.PASS
    dx[0, 0] = 2e-12
    assert NUMERICS.check(case_of(1, 1000, "fp32", B), (dy, y), (dx,)).grade is Grade.WRONG
