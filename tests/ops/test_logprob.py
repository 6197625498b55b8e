"""The bounds of log-probability and entropy: right ways of computing them are accepted, and the check of a run rejects each wrong one."""

import math

import pytest
import torch
from logprobs import LIMITED, LIMITED_BACKWARD, MASKED, OF_TAILS, RIGHT, RIGHT_BACKWARD, WRONG, WRONG_BACKWARD, minus_mean
from sampled import with_dtypes

from softbench.backends import naive, torch_eager
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.registry import numerics, operation
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck

CPU = torch.device("cpu")
OP = "logprob"
F, B = Direction.FORWARD, Direction.BACKWARD


def case_of(M, N, dtype, direction):
    return Case(M, N, dtype, direction, "cpu", OP)


def graded(function, case, seed=3):
    """The verdict of a run's check: structured rows, then normal ones."""
    return PreCheck(case, function, numerics(OP).make(case, seed, CPU), object(), None).run(seed)


@with_dtypes("direction name", [*((F, name) for name in RIGHT), *((B, name) for name in RIGHT_BACKWARD)], every=3)
def test_right_ways_are_accepted(direction, name, dtype):
    function = RIGHT[name] if direction is F else RIGHT_BACKWARD[name]
    due = {Grade.PASS, Grade.LOW_PRECISION} if name in LIMITED | LIMITED_BACKWARD else {Grade.PASS}
    for M, N in ((8, 1), (40, 2), (64, 257), (40, 4099)):
        found = graded(function, case_of(M, N, dtype, direction))
        assert found.grade in due, (N, found)
        assert found.worst <= 0.6 or dtype != "fp32" or found.grade is Grade.LOW_PRECISION or name == "subnormal p as 0"


@with_dtypes("name", WRONG, every=2)
def test_wrong_forwards_are_rejected(name, dtype):
    found = graded(WRONG[name], case_of(64, 1024, dtype, F))
    assert found.grade is Grade.WRONG, found
    assert "x the bound" in found.detail


@pytest.mark.parametrize("name", OF_TAILS)
def test_a_changed_logarithm_of_small_probabilities_is_rejected(name):
    assert graded(OF_TAILS[name], case_of(64, 1024, "fp32", F)).grade is Grade.WRONG


@with_dtypes("name", WRONG_BACKWARD, every=2)
def test_wrong_backwards_are_rejected(name, dtype):
    found = graded(WRONG_BACKWARD[name], case_of(64, 1024, dtype, B))
    assert found.grade is Grade.WRONG, found


def test_an_entropy_that_cancels_says_so():
    found = graded(minus_mean, case_of(64, 1024, "fp32", F))
    assert found.grade is Grade.LOW_PRECISION
    assert found.detail.startswith(("computes entropy from sums of the size", "computes logprob from sums of the size"))


@pytest.mark.parametrize("name", MASKED)
def test_nan_beside_masks_is_finite_only(name):
    assert graded(MASKED[name], case_of(64, 1024, "fp32", F)).grade is Grade.FINITE_ONLY


LARGE = ("32000", "50257", "128256", "151936", "201088", "262144", "65537", "1823")


@pytest.mark.parametrize(("backend", "dtype"), [(naive.backend, "bf16"), pytest.param(torch_eager.backend, "fp32", marks=pytest.mark.slow)])
def test_backends_are_right_in_check_cases(backend, dtype):
    for item in numerics(OP).check_cases(OP):
        if not item.gpu_only and not any(large in item.name for large in LARGE):
            found = CheckCaseRunner(backend, "cpu", operation=OP).run(item.name, item.direction, dtype, 0)
            assert found.grade is Grade.PASS, (item.name, item.direction, found)


def test_the_reference_is_that_of_torch():
    x, target = numerics(OP).make(case_of(40, 33, "fp32", F), 0, CPU)
    wide = x.double()
    logprob, entropy = numerics(OP).reference(case_of(40, 33, "fp32", F), wide, target)
    same = torch.distributions.Categorical(logits=wide)
    torch.testing.assert_close(logprob, same.log_prob(target))
    torch.testing.assert_close(entropy, same.entropy())


def test_the_gradient_is_that_of_autograd():
    case = case_of(12, 17, "fp32", B)
    x, target, _, entropy, dlogprob, dentropy = (t.double() if t.is_floating_point() else t for t in numerics(OP).make(case, 0, CPU))
    leaf = x.clone().requires_grad_()
    outputs = numerics(OP).reference(case_of(12, 17, "fp32", F), leaf, target)
    (expected,) = torch.autograd.grad((outputs[0] * dlogprob + outputs[1] * dentropy).sum(), leaf)
    found = numerics(OP).reference(case, x, target, torch.logsumexp(x, -1), outputs[1].detach(), dlogprob, dentropy)[0]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(entropy, outputs[1].detach(), rtol=1e-6, atol=1e-6)


def test_a_one_hot_row_has_no_entropy():
    x = torch.full((2, 50), -math.inf)
    x[:, 7] = 3
    logprob, entropy = numerics(OP).reference(case_of(2, 50, "fp32", F), x.double(), torch.tensor([7, 8]))
    assert (logprob.tolist(), entropy.tolist()) == ([0.0, -math.inf], [0.0, 0.0])


def test_the_forward_reads_the_logits_only():
    moved = {way: operation(OP).bytes_moved(case_of(8, 1000, "bf16", way)) for way in (F, B)}
    assert moved == {F: 16000 + 8 * 16, B: 32000 + 8 * 24}
