"""The Helion kernels in Helion's interpreter, and their generated code."""

import importlib.util

import pytest
from compiling import python

HELION = """
import torch
from softbench.backends import helion_softmax as h
for N in (1, 7, 1000):
    for dtype in (torch.float32, torch.bfloat16):
        forward, backward = h.kernels(N)
        x, dy = torch.randn(2, 5, N).to(dtype).unbind()
        y = forward(x)
        torch.testing.assert_close(y, torch.softmax(x.float(), -1).to(dtype))
        dx = torch.ops.aten._softmax_backward_data(dy.float(), y.float(), -1, torch.float32)
        torch.testing.assert_close(backward(dy, y), dx.to(dtype))
"""
HELION_CODE = """
import torch
from softbench.backends import helion_softmax as h
for N, warps, looped in ((1, 1, False), (2, 1, False), (1000, 2, False), (16384, 32, False), (50257, 32, True)):
    config = h.config(N)
    for kernel, given in zip(h.kernels(N), ((torch.randn(4, N),), (torch.randn(4, N), torch.randn(4, N)))):
        code = kernel.bind(given).to_triton_code(config)
        assert f"num_warps={warps}" in code, (N, code)
        assert ("tl.range(0, 50257" in code) == looped, (N, code)
"""


@pytest.mark.skipif(importlib.util.find_spec("helion") is None, reason="helion is not installed: pip install helion")
def test_kernels_pass_in_the_interpreter_and_compile_as_configured():
    python(HELION, HELION_INTERPRET="1")
    python(HELION_CODE)
