"""PyTorch's own samples on the operators of both packages. On the CPU they call torch's softmax."""

import itertools

import opinfos
import pytest
import torch
from sampled import sampled
from softbench.kernels.triton import generic

pytestmark = [
    pytest.mark.skipif(generic.INTERPRETED, reason="fake tensors and TRITON_INTERPRET=1 do not go together"),
    pytest.mark.slow,  # the operators' own tests have fewer samples
]

from softbench.kernels.cuda import log_softmax as cuda_log_softmax, softmax as cuda_softmax  # noqa: E402
from softbench.kernels.triton import log_softmax as triton_log_softmax, softmax as triton_softmax  # noqa: E402

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
each = pytest.mark.parametrize("name", SOFTMAX)
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def of(name):
    """The function of torch that an operator computes."""
    return "log_softmax" if name.endswith("log") else "softmax"


@pytest.mark.parametrize(
    ("name", "dtype"),
    sampled(itertools.product(SOFTMAX, DTYPES), lambda name, dtype: DTYPES.index(dtype) == [*SOFTMAX].index(name) % 4),
)
def test_results_agree_with_torch_on_its_samples(name, dtype):
    opinfos.agree_with_torch(SOFTMAX[name], "cpu", dtype, of(name))
    if of(name) == "softmax":  # the suite has no samples of log_softmax's backward
        opinfos.backward_agrees_with_torch(lambda dy, y, dim: PAIRS[name][1](dy, y, dim), "cpu", dtype)


def test_results_with_a_dtype_agree_with_torch():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        opinfos.widened_as_torch(cuda_softmax, "cpu", dtype)
        opinfos.widened_as_torch(cuda_log_softmax, "cpu", dtype, "log_softmax")


@pytest.mark.slow  # test_operator.py has them with own operands
@each
def test_opcheck_passes_on_torchs_samples(name):
    opinfos.opchecked(*PAIRS[name], "cpu", torch.float32, of(name))


@pytest.mark.parametrize("name", sampled(SOFTMAX, lambda name: name in ("opaque log", "cuda log")))
def test_gradients_of_both_orders_are_right_on_torchs_samples(name):
    opinfos.gradchecked(SOFTMAX[name], "cpu", of(name))
