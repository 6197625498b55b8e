"""Softmax and cross entropy over other dimensions than the last on a GPU, by the library, Triton and CUDA, beside torch in float64."""

import pytest
import torch
from softbench.kernels.automatic import losses
from softbench.kernels.cuda import launch
from softbench.kernels.triton import dispatch
from torch.nn import functional

from softbench.kernels import cross_entropy

pytestmark = pytest.mark.gpu

SHAPES = [((2, 21, 64, 40), 1), ((3, 150, 7), 1), ((2, 1030, 24), 1), ((4096, 72), 0), ((40000, 16), 0), ((2, 5, 3, 3), -2)]
UNITS = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-9}


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_softmax_and_its_gradient(shape, dim, dtype):
    x = torch.randn(shape, device="cuda").to(dtype)
    x.movedim(dim, -1)[..., 0, 1:] = -torch.inf
    x.movedim(dim, -1)[..., 1, 0] = torch.finfo(dtype).max
    dy = torch.randn(shape, device="cuda").to(dtype)
    for module in (launch, dispatch):
        for name in ("softmax", "log_softmax"):
            function, log = getattr(module, name), name == "log_softmax"
            y, wide = function.forward(x, dim), getattr(torch, name)(x.double(), dim)
            assert torch.allclose(y.double(), wide, rtol=UNITS[dtype], atol=4 * UNITS[dtype]), (module, name)
            dx, a, b = function.backward(dy, y, dim), y.double(), dy.double()
            expected = b - a.exp() * b.sum(dim, keepdim=True) if log else a * (b - (a * b).sum(dim, keepdim=True))
            terms = b.abs() + (a.exp() if log else a.abs()) * b.abs().sum(dim, keepdim=True)
            assert ((dx.double() - expected).abs() <= UNITS[dtype] * terms + 1e-7).all(), (module, name)


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_cross_entropy_and_its_gradient(shape, dim, dtype, monkeypatch):
    monkeypatch.setattr(losses, "LEAST_OVER_COLUMNS", 0)
    x = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
    target = torch.randint(shape[dim], [size for axis, size in enumerate(shape) if axis != dim % len(shape)], device="cuda")
    target.view(-1)[::5] = -100
    wide = x.detach().double().requires_grad_()
    for given in ({}, {"reduction": "none"}, {"label_smoothing": 0.1}):
        ours = cross_entropy(x, target, dim=dim, dtype=torch.float32, **given)
        theirs = functional.cross_entropy(wide.movedim(dim, 1), target, **given)
        assert torch.allclose(ours.double(), theirs, rtol=1e-5, atol=1e-5)
        (dx,), (expected,) = torch.autograd.grad(ours.sum(), x), torch.autograd.grad(theirs.sum(), wide)
        assert torch.allclose(dx.double(), expected, rtol=UNITS[dtype], atol=UNITS[dtype] * expected.abs().max().item())
