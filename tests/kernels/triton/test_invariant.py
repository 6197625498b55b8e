"""Plans that follow from a row's length alone, and where such rows begin."""

from dataclasses import replace

import pytest
import torch
from softbench.kernels.common.invariance import placed
from softbench.kernels.triton.launch_plan import Problem
from softbench.kernels.triton.planner import invariant_plan


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("backward", [False, True])
def test_a_plan_does_not_depend_on_the_number_of_rows(backward, size):
    for N in (1, 7, 64, 197, 1000, 1024, 4096, 12289, 16384, 50257, 128256, 151936, 262144, 1 << 20):
        alignment = 16 if N * size % 16 == 0 else size
        one = Problem(backward, 1, N, size, alignment, True, 132, True, hopper=True, contiguous=True)
        plans = {invariant_plan(replace(one, M=M)) for M in (1, 2, 7, 64, 500, 4096, 1 << 20)}
        assert len(plans) == 1 and plans.pop().tier in ("tile", "rows", "cluster", "loop"), N


def test_rows_begin_where_their_length_says():
    memory = torch.randn(100_000)
    for N, unit in ((64, 128), (1000, 16), (781, 4)):
        for start, stride in ((0, N), (1, N), (32, N + 32), (32, N + 3)):
            x = memory[start:].as_strided((5, N), (stride, 1))
            found = placed(x)
            assert torch.equal(found, x) and found.data_ptr() % min(unit, 64) == 0
            assert found.stride(0) * 4 % unit == 0 if unit > 4 else found.stride(0) == N
        assert placed(memory.as_strided((1, N), (7, 1))).stride() == (N, 1)
    x = torch.randn(8, 1000)
    assert placed(x) is x


RESULTS = """
import torch
from torch.testing import assert_close
from softbench.kernels.triton import invariant
torch.manual_seed(0)
for N in (7, 1003):
    x, dy, target = torch.randn(2, N), torch.randn(2, N), torch.tensor([N - 1, 0])
    wide = x.double().requires_grad_()
    expected = torch.softmax(wide, -1)
    (gradient,) = torch.autograd.grad(expected, wide, dy.double())
    y = invariant.softmax.forward(x)
    assert_close(y, expected.detach().float())
    assert_close(invariant.softmax.backward(dy, y), gradient.float(), rtol=1e-4, atol=1e-6)
    loss, lse = invariant.cross_entropy_forward(x, target, label_smoothing=0.1)
    assert_close(loss, torch.nn.functional.cross_entropy(x, target, label_smoothing=0.1, reduction="none"))
    assert_close(lse, torch.logsumexp(x, 1))
    logprob, entropy, _ = invariant.logprob_forward(x, target)
    log_p = torch.log_softmax(x, 1)
    assert_close(logprob, log_p[[0, 1], target])
    assert_close(entropy, -(log_p.exp() * log_p).sum(1))
    _, dx = invariant.cross_entropy_fused(x, target)
    assert_close(dx, invariant.cross_entropy_backward(x, target, lse, torch.ones(2)), rtol=1e-4, atol=1e-6)
print("fine")
"""


def test_results_are_those_of_torch(run_interpreted):
    run_interpreted(RESULTS)
