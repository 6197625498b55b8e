"""The backends on the operators of torch.library: what they need, and what they refuse."""

import pytest
import torch

from softbench.backends import torch_library
from softbench.core.case import Case, Direction


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_triton_backends_are_not_available():
    for backend in (torch_library.compiled, torch_library.op, torch_library.custom_op, torch_library.aoti):
        assert "no CUDA GPU" in backend.available()


def test_packages_refuse_autograd_and_empty_tensors():
    both, empty = Case(4, 8, "fp32", Direction.BOTH), Case(0, 8, "fp32", Direction.FORWARD)
    assert "no autograd" in torch_library.aoti.supports(both)
    assert "no elements" in torch_library.aoti.supports(empty)
    for backend in (torch_library.compiled, torch_library.op, torch_library.custom_op):
        assert backend.supports(both) is backend.supports(empty) is None


def test_operators_follow_the_operation_of_the_case():
    x, dy = torch.randn(2, 4, 8).unbind()
    for backend in (torch_library.op, torch_library.custom_op, torch_library.cuda_op):
        for op in ("softmax", "log_softmax"):
            x.requires_grad_()
            expected = getattr(torch, op)(x, 0)
            (slope,) = torch.autograd.grad(expected, x, dy)
            with torch.compiler.set_stance("force_eager"):  # on the CPU there is nothing to compile
                y = backend.over_dim(Direction.FORWARD, op)(x.detach(), 0)
                dx = backend.over_dim(Direction.BACKWARD, op)(dy, y, 0)
            assert torch.equal(y, expected)
            assert torch.allclose(dx, slope, atol=1e-6)
