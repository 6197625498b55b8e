"""`softbench.kernels.linear_logprob` on the CPU, where torch computes: parts of rows, gradients and errors."""

import pytest
import torch
from softbench.kernels.common import linear_cross_entropy as parts

from softbench.kernels import linear_logprob, logprob


@pytest.fixture
def given(monkeypatch):
    monkeypatch.setattr(parts, "MOST_BYTES", 0)  # parts of 128 rows
    parts.rows_of_part.cache_clear()
    torch.manual_seed(0)
    target = torch.randint(50, (2, 150))
    target[1, ::3] = -100
    yield torch.randn(2, 150, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True), target
    parts.rows_of_part.cache_clear()


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_parts_give_what_the_whole_logits_give(given, compiled):
    x, w, target = given
    call = torch.compile(linear_logprob, fullgraph=True, backend="aot_eager") if compiled else linear_logprob
    found, expected = call(x, w, target, temperature=0.7), logprob(x @ w.T, target, temperature=0.7)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn(2, 150), torch.randn(2, 150)
    both = [torch.autograd.grad(results, (x, w), upstream, retain_graph=True) for results in (found, expected)]
    torch.testing.assert_close(*both, rtol=1e-4, atol=1e-5)
    (dx,) = torch.autograd.grad(found[0].sum(), x)  # the weight needs none, and the entropy has none
    torch.testing.assert_close(dx, torch.autograd.grad(expected[0].sum(), x)[0], rtol=1e-4, atol=1e-5)


def test_arguments_that_do_not_fit_are_refused_in_one_line(given):
    x, w, target = given
    with pytest.raises(ValueError, match="without the last"):
        linear_logprob(x, w, target[0])
    with pytest.raises(ValueError, match=r"temperature 0: must be finite and positive"):
        linear_logprob(x, w, target, temperature=0)
    with pytest.raises(TypeError, match="weight is a int; it must be a tensor"):
        linear_logprob(x, 3, target)
    with pytest.raises(NotImplementedError, match=r"linear_logprob has no torch\.func transforms"):
        torch.func.grad(lambda x: linear_logprob(x, w, target)[0].sum())(x)
