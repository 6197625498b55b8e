"""The backward of `torch` calls the operators that autograd calls on a GPU."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from softbench.backends import torch_eager
from softbench.ops.dtypes import DTYPES


class Operators(TorchDispatchMode):
    """The names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "aten":
            self.called.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        ("softmax", "fp16", ["_softmax_backward_data"]),
        ("softmax(out_dtype=fp32)", "fp16", ["_softmax_backward_data"]),
        ("softmax(out_dtype=fp32)", "bf16", ["_softmax_backward_data", "_to_copy"]),
        ("softmax(scale=0.7,out_dtype=fp32)", "fp16", ["_softmax_backward_data", "mul"]),
        ("softmax(scale=0.7)", "bf16", ["_softmax_backward_data", "mul"]),
    ],
)
def test_a_gradient_is_narrowed_as_autograd_narrows_it(op, dtype, expected):
    with FakeTensorMode(), Operators() as operators:
        y = torch.empty(8, 32, device="cuda", dtype=torch.float32 if "fp32" in op else DTYPES[dtype])
        operators.called.clear()
        dx = torch_eager.backend.pair(op, dtype)[1](torch.empty_like(y), y)
    assert operators.called[1:] == expected  # without empty_like
    assert dx.dtype == DTYPES[dtype]


def test_a_wider_result_is_differentiated_on_the_cpu():
    y, dy = torch.rand(4, 9), torch.randn(4, 9)
    expected = torch.ops.aten._softmax_backward_data(dy, y, -1, torch.float32)
    assert torch.equal(torch_eager.backend.pair("softmax(out_dtype=fp32)", "fp16")[1](dy, y), expected.half())
