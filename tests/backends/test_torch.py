"""The backends of torch's functions: eager, by TorchScript and torch.fx, and through operators of torch.library."""

import warnings

import pytest
import torch
from compiling import case, grade
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from softbench.backends import torch_eager, torch_library, torchscript_fx
from softbench.backends.calls import EMPTY
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.dtypes import DTYPES
from softbench.ops.registry import operation


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


@pytest.mark.parametrize("op", torchscript_fx.PAIRS)
@pytest.mark.parametrize("direction", operation("softmax").directions)
@pytest.mark.parametrize("backend", [torchscript_fx.trace, torchscript_fx.script, torchscript_fx.fx], ids=lambda backend: backend.name)
def test_results_pass_without_deprecation_warnings(backend, direction, op):
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        assert backend.available() is None
        assert grade(backend, case(direction=direction, op=op)) == (Grade.PASS, "")
    assert backend.extra
    assert backend.supports(case(0)) == EMPTY


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
