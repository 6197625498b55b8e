"""The bounds of log-probability and entropy beside `test_ways.py`: what is said of results, references, and inputs."""

import math

import pytest
import torch
from logprobs import MASKED, OF_TAILS, float64, minus_mean

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.registry import numerics, operation
from softbench.worker.checking.pre_check import PreCheck

CPU = torch.device("cpu")
OP = "logprob"
F, B = Direction.FORWARD, Direction.BACKWARD


def case_of(M, N, dtype, direction):
    return Case(M, N, dtype, direction, "cpu", OP)


def graded(function, case, seed=3):
    """The verdict of a run's check: structured rows, then normal ones."""
    return PreCheck(case, function, numerics(OP).make(case, seed, CPU), object(), None).run(seed)


@pytest.mark.parametrize("name", OF_TAILS)
def test_a_changed_logarithm_of_small_probabilities_is_rejected(name):
    assert graded(OF_TAILS[name], case_of(64, 1024, "fp32", F)).grade is Grade.WRONG


def test_an_entropy_with_a_floor_is_rejected():
    def floored(x, target):
        logprob, entropy = float64(x, target)
        return logprob, entropy.clamp(min=1e-6)

    assert graded(floored, case_of(64, 1024, "fp32", F)).grade is Grade.WRONG


def test_an_entropy_that_cancels_says_so():
    found = graded(minus_mean, case_of(64, 1024, "fp32", F))
    assert found.grade is Grade.LOW_PRECISION
    assert found.detail.startswith(("computes entropy from sums of the size", "computes logprob from sums of the size"))


@pytest.mark.parametrize("name", MASKED)
def test_nan_beside_masks_is_finite_only(name):
    assert graded(MASKED[name], case_of(64, 1024, "fp32", F)).grade is Grade.FINITE_ONLY


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
