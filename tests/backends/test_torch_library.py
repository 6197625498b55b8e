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
