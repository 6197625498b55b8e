"""PyTorch's own samples on the operators of both packages, on a GPU."""

import opinfos
import pytest
import torch
from softbench.kernels.cuda import build, log_softmax as cuda_log_softmax, softmax as cuda_softmax
from softbench.kernels.triton import log_softmax as triton_log_softmax, softmax as triton_softmax

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
needs_nvcc = pytest.mark.skipif(build.nvcc() is None, reason="no nvcc on this machine")

OPS = torch.ops.softbench
SOFTMAX = {
    "triton": triton_softmax,
    "triton log": triton_log_softmax,
    "opaque": OPS.triton_softmax_opaque,
    "opaque log": OPS.triton_log_softmax_opaque,
    "cuda": cuda_softmax,
    "cuda log": cuda_log_softmax,
}
PAIRS = {
    "triton": (OPS.triton_softmax.default, OPS.triton_softmax_backward.default),
    "opaque": (OPS.triton_softmax_opaque.default, OPS.triton_softmax_opaque_backward.default),
    "triton log": (OPS.triton_log_softmax.default, OPS.triton_log_softmax_backward.default),
    "opaque log": (OPS.triton_log_softmax_opaque.default, OPS.triton_log_softmax_opaque_backward.default),
    "cuda": (OPS.cuda_softmax.default, OPS.cuda_softmax_backward.default),
    "cuda log": (OPS.cuda_log_softmax.default, OPS.cuda_log_softmax_backward.default),
}
TRITON = ("triton", "triton log", "opaque", "opaque log")
each = pytest.mark.parametrize("name", [*TRITON, *(pytest.param(name, marks=needs_nvcc) for name in ("cuda", "cuda log"))])


def of(name):
    """The function of torch that an operator computes."""
    return "log_softmax" if name.endswith("log") else "softmax"


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    torch.manual_seed(0)


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_results_agree_with_torch_on_its_samples(name, dtype):
    opinfos.agree_with_torch(SOFTMAX[name], "cuda", dtype, of(name))
    if of(name) == "softmax":  # the suite has no samples of log_softmax's backward
        opinfos.backward_agrees_with_torch(lambda dy, y, dim: PAIRS[name][1](dy, y, dim), "cuda", dtype)


def test_float64_results_agree_with_torch():
    for name in TRITON:
        opinfos.agree_with_torch(SOFTMAX[name], "cuda", torch.float64, of(name))


@needs_nvcc
def test_results_with_a_dtype_agree_with_torch():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        opinfos.widened_as_torch(cuda_softmax, "cuda", dtype)
        opinfos.widened_as_torch(cuda_log_softmax, "cuda", dtype, "log_softmax")


@each
def test_opcheck_passes_on_torchs_samples(name):
    opinfos.opchecked(*PAIRS[name], "cuda", torch.float32, of(name))


@pytest.mark.parametrize("name", TRITON)
def test_gradients_of_both_orders_are_right_on_torchs_samples(name):
    opinfos.gradchecked(SOFTMAX[name], "cuda", of(name))
