"""What the operators' tests share: the Triton operators of both torch.library interfaces, and opcheck's tests."""

import pytest
import torch
from softbench.kernels.triton import operator  # noqa: F401 - registers the operators

OPS = torch.ops.softbench
PAIRS = {
    "triton_op": (OPS.triton_softmax.default, OPS.triton_softmax_backward.default),
    "custom_op": (OPS.triton_softmax_opaque.default, OPS.triton_softmax_opaque_backward.default),
}
LOG_PAIRS = {
    "triton_op": (OPS.triton_log_softmax.default, OPS.triton_log_softmax_backward.default),
    "custom_op": (OPS.triton_log_softmax_opaque.default, OPS.triton_log_softmax_opaque_backward.default),
}
OF_FUNCTION = {"softmax": PAIRS, "log_softmax": LOG_PAIRS}
EVERY_TEST = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")

each = pytest.mark.parametrize("name", OF_FUNCTION)
"""The name of a function, which torch and the operators have."""
both = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())


def run_and_differentiate(function, x, dy):
    """The result and the gradient of x."""
    x = x.detach().requires_grad_()
    y = function(x)
    return y.detach(), *torch.autograd.grad(y, x, dy)
