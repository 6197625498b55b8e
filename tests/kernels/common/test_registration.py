"""Gradients, vmap and flops of operators, tested on the Triton operators. On the CPU they call torch's softmax."""

import sys

import pytest
import torch
from operators import OPS, both
from softbench.kernels.common import registration
from softbench.kernels.triton import generic, softmax
from torch.utils.flop_counter import FlopCounterMode

pytestmark = pytest.mark.skipif(generic.INTERPRETED, reason="fake tensors and TRITON_INTERPRET=1 do not go together")


@both
@pytest.mark.parametrize(("shape", "dim"), [((5, 7), -1), ((2, 3, 4), 1), ((), 0)])
def test_gradients_of_both_orders_are_those_of_finite_differences(pair, shape, dim):
    forward, backward = pair
    x, dy, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x: forward(x, dim), (x,), check_batched_grad=True)
        assert check(lambda dy, y: backward(dy, y, dim), (dy, y), check_batched_grad=True)
    assert torch.autograd.gradcheck(lambda y: backward(dy.detach(), y, dim), (y,))
    assert torch.autograd.gradcheck(lambda dy: backward(dy, y.detach(), dim), (dy,))


def test_second_gradient_of_16_bits_is_computed_in_32():
    x = torch.randn(4, 50, dtype=torch.bfloat16, requires_grad=True)
    dy, g = torch.randn(2, 4, 50, dtype=torch.bfloat16).unbind()
    y = softmax(x).detach().requires_grad_()
    (of_y,) = torch.autograd.grad(OPS.triton_softmax_backward(dy, y, -1), y, g)
    wide_y = y.detach().double().requires_grad_()
    slope = wide_y * (dy.double() - (dy.double() * wide_y).sum(-1, keepdim=True))
    (expected,) = torch.autograd.grad(slope, wide_y, g.double())
    assert of_y.dtype is torch.bfloat16
    assert torch.allclose(of_y.double(), expected, rtol=2**-8, atol=1e-6)


@both
def test_flops_are_counted_forward_and_backward(pair):
    forward, backward = pair
    x = torch.randn(3, 5, 7, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        forward(x, 1).sum().backward()
    counts = counter.get_flop_counts()["Global"]
    assert counts == {forward._overloadpacket: 5 * 3 * 5 * 7, backward._overloadpacket: 4 * 3 * 5 * 7}


@both
def test_vmap_takes_any_batched_dimension(pair):
    forward, backward = pair
    for shape, dims in (((3, 4, 5), (0, 1, -1)), ((4, 5), (0, -1)), ((5,), (0, -1))):
        for at in range(len(shape)):
            x, dy = torch.randn(2, *shape).unbind()
            for dim in dims if len(shape) > 1 else (0, -1):
                if not -max(1, x.dim() - 1) <= dim < max(1, x.dim() - 1):
                    continue
                y = torch.vmap(lambda x, dim=dim: torch.softmax(x, dim), at)(x)
                assert torch.allclose(torch.vmap(lambda x, dim=dim: forward(x, dim), at)(x), y)
                one = dy.select(at, 0)
                got = torch.vmap(lambda dy, y, dim=dim: backward(dy, y, dim), (None, 0))(one, y)
                expected = torch.stack([backward(one, sample, dim) for sample in y])
                assert torch.allclose(got, expected, atol=1e-6)
    with pytest.raises(IndexError):
        torch.vmap(lambda x: forward(x, 1))(torch.ones(3, 4))


def test_a_call_waits_for_the_import_of_its_module(tmp_path, monkeypatch):
    (tmp_path / "softbench_test_late.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    finders = list(sys.meta_path)
    registration._on_import("softbench_test_late", lambda: seen.append(sys.modules["softbench_test_late"].value))
    assert not seen and len(sys.meta_path) == len(finders) + 1
    import softbench_test_late  # noqa: F401

    assert seen == [1] and sys.meta_path == finders
    registration._on_import("softbench_test_late", lambda: seen.append(2))
    assert seen == [1, 2]
