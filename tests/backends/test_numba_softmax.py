"""The Numba kernels in Numba's simulator."""

import importlib.util

import pytest
from compiling import python

NUMBA = """
import torch
from numba import cuda
from softbench.backends import numba_softmax as n
for N in (1, 7, 300):
    x, dy = torch.randn(2, 2, N).unbind()
    y, dx = torch.empty_like(x), torch.empty_like(x)
    cuda.jit(n._forward)[2, n.THREADS](x.numpy(), y.numpy())
    torch.testing.assert_close(y, torch.softmax(x, -1))
    cuda.jit(n._backward)[2, n.THREADS](dy.numpy(), y.numpy(), dx.numpy())
    torch.testing.assert_close(dx, torch.ops.aten._softmax_backward_data(dy, y, -1, torch.float32))
"""


def test_kernels_pass_in_the_simulator():
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed: pip install 'numba-cuda[cu13]'")
    python(NUMBA, NUMBA_ENABLE_CUDASIM="1")
