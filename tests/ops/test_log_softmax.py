"""The bounds of log-softmax: right ways of computing it are accepted, and the check of a run rejects each wrong one."""

import math

import pytest
import torch
from log_softmaxes import (
    LIMITED,
    RIGHT_BACKWARD,
    RIGHT_BOTH,
    RIGHT_FORWARD,
    WRONG_BACKWARD,
    WRONG_BOTH,
    WRONG_FORWARD,
    in_float32,
    nan_beside_masks,
    online,
)
from sampled import with_dtypes

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.dtypes import DTYPES
from softbench.ops.log_softmax import NUMERICS
from softbench.ops.registry import numerics, operation
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck

CPU = torch.device("cpu")
F, B, BOTH = Direction.FORWARD, Direction.BACKWARD, Direction.BOTH
RIGHT = {F: RIGHT_FORWARD, B: RIGHT_BACKWARD, BOTH: RIGHT_BOTH}
dtypes = pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])


def case_of(M, N, dtype, direction):
    return Case(M, N, dtype, direction, "cpu", "log_softmax")


def pre_checked(function, case, seed=3):
    """The verdict of a run's check: structured rows, then normal ones."""
    return PreCheck(case, function, NUMERICS.make(case, seed, CPU), object(), None).run(seed)


def allowed(name, dtype):
    return {Grade.PASS, Grade.LOW_PRECISION} if name in LIMITED and (name, dtype) != ("torch", "fp32") else {Grade.PASS}


@with_dtypes("direction name", [(direction, name) for direction, ways in RIGHT.items() for name in ways], every=4)
def test_right_ways_are_accepted(direction, name, dtype):
    for M, N, seed in ((8, 1, 0), (8, 2, 1), (64, 33, 2), (64, 257, 3), (16, 4096, 4)):  # 16 kinds of structured rows
        found = pre_checked(RIGHT[direction][name], case_of(M, N, dtype, direction), seed)
        assert found.grade in allowed(name, dtype), (N, found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch", "two passes", "serial sum", "reversed serial sum", "online", "exp2 and log2"])
def test_float32_forwards_stay_below_half_of_the_bound(name):
    for N, seed in ((33, 1), (4096, 2), (20011, 3)):
        assert pre_checked(RIGHT_FORWARD[name], case_of(40, N, "fp32", F), seed).worst <= 0.5


@with_dtypes("name", WRONG_FORWARD, every=2)
def test_wrong_forwards_are_rejected(name, dtype):
    found = pre_checked(WRONG_FORWARD[name](), case_of(32, 4096, dtype, F))
    assert found.grade is Grade.WRONG
    assert "x the bound" in found.detail


@with_dtypes("name", WRONG_BACKWARD, every=2)
def test_wrong_backwards_are_rejected(name, dtype):
    found = pre_checked(WRONG_BACKWARD[name], case_of(32, 4096, dtype, B))
    assert found.grade is Grade.WRONG
    assert "x the bound" in found.detail


@pytest.mark.parametrize("N", [2048, 20011])
@dtypes
def test_an_exp_in_16_bits_is_rejected(dtype, N):
    assert pre_checked(WRONG_FORWARD["exp in 16 bits"](), case_of(64, N, dtype, F)).grade is Grade.WRONG


@pytest.mark.parametrize("name", WRONG_BOTH)
def test_a_wrong_result_of_both_is_named(name):
    found = pre_checked(WRONG_BOTH[name], case_of(32, 512, "fp32", BOTH))
    assert found.grade is Grade.WRONG
    assert found.detail.startswith("dx[" if "dx" in name or "gradient" in name else "y[")


@pytest.mark.parametrize("forward", [nan_beside_masks, in_float32(lambda x: online(x, guarded=False))], ids=["all masks", "online"])
def test_nan_beside_masks_is_finite_only_and_wrong_in_check(forward):
    assert pre_checked(forward, case_of(64, 4096, "fp32", F)).grade is Grade.FINITE_ONLY
    assert checked(forward, "long, -inf first", "fp32", F).grade is Grade.WRONG


class Backend:
    """One function of a direction, as a backend."""

    name = "user"
    operations = ("log_softmax",)

    def __init__(self, function, direction):
        self.function, self.direction = function, direction

    def supports(self, case):
        return None

    def prepare(self, case):
        return self.function

    def over_dim(self, direction, op):
        return lambda *given: self.function(*(tensor.movedim(given[-1], -1) for tensor in given[:-1])).movedim(-1, given[-1])


def checked(function, name, dtype, direction):
    return CheckCaseRunner(Backend(function, direction), "cpu", operation="log_softmax").run(name, direction, dtype, 0)


FUNCTIONS = {F: RIGHT_FORWARD["torch"], B: RIGHT_BACKWARD["float32"], BOTH: RIGHT_BOTH["torch"]}
LARGE = tuple(f"shape {size}" for size in ("65", "1310", "3x", "5x", "18", "1x13", "1x52"))
CASES = [item for item in numerics("log_softmax").check_cases("log_softmax") if not item.gpu_only and not item.name.startswith(LARGE)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_is_right_in_every_check_case(dtype):
    for item in CASES:
        found = checked(FUNCTIONS[item.direction], item.name, dtype, item.direction)
        assert found.grade in allowed("torch", dtype), (item.name, item.direction, found)


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
