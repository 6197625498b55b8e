"""`linear_cross_entropy` and `linear_logprob` of `softbench.kernels` on the CPU, where torch computes: parts, gradients, errors."""

import math

import pytest
import torch
from softbench.kernels.common import linear_cross_entropy as parts
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from softbench.kernels import cross_entropy, linear_cross_entropy, linear_logprob, logprob

OPTIONS = {"label_smoothing": 0.1, "z_loss": 0.01, "softcap": 3.0}


@pytest.fixture
def given(monkeypatch):
    monkeypatch.setattr(parts, "MOST_BYTES", 0)  # parts of 128 rows
    parts.rows_of_part.cache_clear()
    torch.manual_seed(0)
    target = torch.randint(50, (2, 150))
    target[1, ::3] = -100
    yield torch.randn(2, 150, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True), target
    parts.rows_of_part.cache_clear()


def whole(x, w, target):
    z = 3 * torch.tanh(x @ w.T / 3)
    found = functional.cross_entropy(z.flatten(0, 1), target.flatten(), label_smoothing=0.1)
    return found + 0.01 * (z.logsumexp(-1).square() * (target != -100)).sum() / (target != -100).sum()


LOSSES = {
    "cross_entropy": (lambda *given: linear_cross_entropy(*given, **OPTIONS), whole),
    "logprob": (lambda *given: linear_logprob(*given, temperature=0.7), lambda x, w, target: logprob(x @ w.T, target, temperature=0.7)),
}


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LOSSES)
def test_parts_give_what_the_whole_logits_give(given, name, compiled):
    in_parts, of_all = LOSSES[name]
    call = torch.compile(in_parts, fullgraph=True, backend="aot_eager") if compiled else in_parts
    found, expected = tree_leaves(call(*given)), tree_leaves(of_all(*given))
    torch.testing.assert_close(found, expected)
    upstream = [torch.randn_like(one) for one in found]
    both = [torch.autograd.grad(results, given[:2], upstream) for results in (found, expected)]
    torch.testing.assert_close(*both, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(tree_leaves(in_parts(*given)), expected)


def test_logprob_has_gradients_of_one_result_and_one_tensor(given):
    x, w, target = given
    both = [torch.autograd.grad(found[0].sum(), x) for found in (linear_logprob(*given), logprob(x @ w.T, target))]
    torch.testing.assert_close(*both, rtol=1e-4, atol=1e-5)


def test_the_parts_of_torch_have_room_for_its_temporaries(given, monkeypatch):
    seen, of = [], parts._losses_of
    monkeypatch.setattr(parts, "_losses_of", lambda losses, logits, *others: seen.append(len(logits)) or of(losses, logits, *others))
    monkeypatch.setattr(parts, "MOST_BYTES", 256 * 50 * (4 + 20))
    linear_cross_entropy(*given)
    assert seen == [256, 44]


def test_a_second_backward_is_refused(given):
    loss = linear_cross_entropy(*given)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.autograd.graph.save_on_cpu():  # the version counter is that of a new tensor
        loss = 3 * linear_cross_entropy(*given)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="no second backward"):
        loss.backward()


def test_a_gradient_of_a_gradient_is_refused(given):
    x = given[0]
    for of in (x, given[:2]):
        loss = linear_cross_entropy(*given)
        loss /= 2  # nothing that is kept for the gradient
        (dx, *_) = torch.autograd.grad(loss, of, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiable once"):
            torch.autograd.grad(dx.square().sum() + x.sum(), x)


@pytest.mark.parametrize(("M", "H"), [(100, 64), (8192, 4096), (8192, 1024), (65536, 4096)])
def test_parts_keep_the_logits_below_a_gigabyte(M, H):
    rows = parts.rows_of_part(M, 128256, H, 2, 132)
    assert 2 * rows * 128256 <= parts.MOST_BYTES
    assert -(-M // rows) <= 1.5 * M * 2 * 128256 / parts.MOST_BYTES + 1


@pytest.mark.parametrize("call", [linear_cross_entropy, linear_logprob])
def test_tensors_that_do_not_fit_are_refused(given, call):
    x, w, target = given
    with pytest.raises(ValueError, match=r"hidden is \(300, 8\) and weight \(50, 7\)"):
        call(x, w[:, 1:], target)
    with pytest.raises(TypeError, match=r"one dtype .*: weight.to\(hidden.dtype\)"):
        call(x, w.half(), target)
    with pytest.raises(ValueError, match=r"target is \(2, 149\)"):
        call(x, w, target[:, 1:])
    with pytest.raises(TypeError, match=r"int64 on cpu"):
        call(x, w, target.to("meta"))
    with pytest.raises(ValueError, match="a row for each class"):
        call(x, w[:0], target)
    with pytest.raises(TypeError, match="weight is a NoneType"):
        call(x, None, target)
    with pytest.raises(NotImplementedError, match=r"no torch.func transforms"):
        torch.func.grad(lambda x: tree_leaves(call(x, w, target))[0].sum())(x)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward mode"):
        call(torch.autograd.forward_ad.make_dual(x.detach(), x.detach()), w, target)


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"softcap": math.nan}, "softcap nan: must be finite"),
        ({"z_loss": math.inf}, "z_loss inf: must be finite"),
        ({"label_smoothing": 2}, "label_smoothing 2: must be 0 to 1"),
        ({"softcap": None}, "softcap None: must be a number"),
        ({"ignore_index": 1.5}, "ignore_index 1.5: must be a whole number"),
        ({"ignore_index": None}, "ignore_index None: must be a whole number"),
    ],
)
def test_options_that_are_no_numbers_or_out_of_range_are_refused(given, option, error):
    with pytest.raises((TypeError, ValueError), match=error):
        linear_cross_entropy(*given, **option)


def test_a_temperature_of_zero_is_refused(given):
    with pytest.raises(ValueError, match=r"temperature 0: must be finite and positive"):
        linear_logprob(*given, temperature=0)


def test_logits_without_classes_and_rows_have_an_empty_gradient():
    logits = torch.zeros(0, 0, requires_grad=True)
    cross_entropy(logits, torch.zeros(0, dtype=torch.int64), reduction="sum").backward()
    assert logits.grad.shape == (0, 0)


def test_states_without_columns_have_the_loss_of_equal_logits():
    found = linear_cross_entropy(torch.zeros(3, 0), torch.zeros(50, 0), torch.arange(3))
    torch.testing.assert_close(found, torch.tensor(50.0).log())


def relative(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("large", [False, True])
def test_float16_keeps_small_gradients_for_a_loss_scale_and_large_ones_finite(given, large):
    """Small: 8 rare words, whose gradients of the mean are below float16. Large: all rows predict one wrong word, with states of 50."""
    M, V, scale = (1100, 50, 1) if large else (300, 600, 4096)
    x, w, target = torch.randn(M, 8), torch.randn(V, 8) / 4, torch.randint(8, V, (M,))
    x[:, 0], w[:8, 0] = 3, -2
    if large:
        x[:, 0], w[:, 0], w[7, 0] = 50, 0, 1
    narrow = [one.half().requires_grad_() for one in (x, w)]
    wide = [one.detach().double().requires_grad_() for one in narrow]
    exact = torch.autograd.grad(scale * functional.cross_entropy(functional.linear(*wide), target), wide)
    found = torch.autograd.grad(scale * linear_cross_entropy(*narrow, target), narrow)
    for one, expected in ((found[0], exact[0]), (found[1], exact[1]), (found[1][:8], exact[1][:8])):
        assert one.dtype is torch.float16 and (one.double() - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_tensor_costs_no_gradient(given, dtype, frozen):
    both = [one.detach().to(dtype) for one in given[:2]]
    other = both[1 - frozen].requires_grad_()
    loss = linear_cross_entropy(*both, given[2])
    assert [one.numel() for one in loss.grad_fn.saved_tensors][frozen] == 0
    loss.backward()
    expected = [one.detach().clone().requires_grad_() for one in both]
    linear_cross_entropy(*expected, given[2]).backward()
    assert both[frozen].grad is None and torch.equal(other.grad, expected[1 - frozen].grad)


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.float32)])
def test_autocast_casts_as_for_a_linear_layer(given, dtypes):
    x, w = (one.detach().to(dtype).requires_grad_() for one, dtype in zip(given, dtypes, strict=False))
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_cross_entropy(x, w, given[2])
        expected = functional.cross_entropy(functional.linear(x, w).flatten(0, 1).float(), given[2].flatten())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)
    for one, other in zip(torch.autograd.grad(found, (x, w)), torch.autograd.grad(expected, (x, w)), strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other, rtol=0.05, atol=1e-3)
