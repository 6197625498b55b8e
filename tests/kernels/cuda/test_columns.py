"""The CUDA kernel along other dimensions than the last, on a simulated GPU: what one CTA computes, without clusters."""

import ctypes
import itertools

import pytest
import torch
from simulated import compiled, needs_nvcc
from softbench.kernels.cuda import build, launch

F, H, B = torch.float32, torch.float16, torch.bfloat16
SHAPES = (((2, 21, 64), 0), ((3, 9, 24), 0), ((2, 5, 7), 0), ((1, 130, 16), 4), ((1, 300, 16), 2), ((4, 1, 8), 0), ((2, 33, 40), 4))
"""Shapes (outer, R, inner), and the lanes of a plan with one CTA; 0 for the rule."""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    options = "-shared", "-Xcompiler", "-fPIC", "-include", "simulated_gpu.h"
    found = ctypes.CDLL(str(compiled(tmp_path_factory.mktemp("columns"), "columns.cu", "columns.so", *options)))
    (types,) = build._arguments("columns").values()
    found.softbench_columns.argtypes, found.softbench_columns.restype = types, ctypes.c_int64
    found.softbench_error.restype = ctypes.c_char_p
    return found


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "result"), [(F, F), (H, H), (B, B), (H, F), (B, F)])
def test_columns_on_a_simulated_gpu(library, monkeypatch, dtype, result):
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(launch, "_library", lambda function, index: library)
    units = {F: 1e-6, H: 2**-10, B: 2**-7}
    for (shape, lanes), log, scale in itertools.product(SHAPES, (False, True), (None, 0.5)):
        plan = {"log": log, "scale": scale, "lanes": lanes, "ctas": 1 if lanes else 0}
        x = torch.randn(shape).to(dtype)
        x[0, 1:, 0], x[-1, :, -1] = -torch.inf, -torch.inf if shape[1] > 1 else 1.0
        y = torch.empty(shape, dtype=result)
        assert launch.launch_columns(x, y, **plan)
        expected = (torch.log_softmax if log else torch.softmax)(x.double() * (scale or 1), 1)
        assert torch.allclose(y.double(), expected, rtol=units[result], atol=4 * units[result], equal_nan=True), plan
        y = torch.log_softmax(torch.randn(shape), 1).to(result)
        y, dy = y if log else y.exp(), torch.randn(shape).to(result)
        dx = torch.empty(shape, dtype=dtype)
        assert launch.launch_columns(dy, y, dx, **plan)
        a, b = y.double(), dy.double()
        expected = b - a.exp() * b.sum(1, keepdim=True) if log else a * (b - (a * b).sum(1, keepdim=True))
        assert torch.allclose(dx.double(), expected * (scale or 1), rtol=units[dtype], atol=8 * units[dtype]), plan


def test_what_the_kernel_does_not_take_is_left_to_copies():
    x = torch.zeros(2, 3, 4)
    assert launch.launch_columns(x, x, scale=torch.ones(8)) is False
    assert launch.launch_columns(x.transpose(1, 2), x.transpose(1, 2)) is False
    long = x[:1, :1].expand(1, 2**31, 4)
    assert launch.launch_columns(long, long) is False
