"""The softmax operator beside its kernels: what PyTorch's own machinery asks of it, but for its compilers. Real tensors are the CPU's here,
where torch's softmax stands in."""

import itertools
import os
import subprocess
import sys

import pytest
import torch
from pairs import EVERY_TEST, OPS, PAIRS, both, run_and_differentiate
from softbench.kernels.triton import operator, plain
from subclass import Wrapped
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

from softbench.backends import torch_library as operators
from softbench.core.case import Case, Direction
from softbench.kernels import triton as kernels

pytestmark = pytest.mark.skipif(plain.INTERPRETED, reason="fake tensors and TRITON_INTERPRET=1 do not go together")

SHAPES = [
    ((5, 7), -1),
    ((5, 7), 0),
    ((2, 3, 4), 1),
    ((2, 3, 4), -3),
    ((6,), 0),
    ((), -1),
    ((), 0),
    ((1, 5), 0),
    ((4, 1, 1), 0),
    ((0, 3), 1),
    ((3, 0), 1),
]
LAYOUTS = [
    torch.randn(7, 5).t(),
    torch.randn(5, 14)[:, ::2],
    torch.randn(5, 1).expand(5, 7),
    torch.randn(1, 7).expand(5, 7),
    torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.randn(36)[1:].view(5, 7),
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


@both
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_opcheck_passes_with_all_its_tests(pair, shape, dim):
    forward, backward = pair
    x, dy, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
    opcheck(forward, (x, dim), test_utils=EVERY_TEST)
    opcheck(backward, (dy, y, dim), test_utils=EVERY_TEST)


@both
@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
def test_opcheck_passes_on_any_strides(pair, layout):
    forward, backward = pair
    x = LAYOUTS[layout]
    opcheck(forward, (x, 1), test_utils=EVERY_TEST)
    opcheck(backward, (x, torch.softmax(x, 1), 1), test_utils=EVERY_TEST)


@both
@pytest.mark.parametrize(("shape", "dim"), [((5, 7), -1), ((2, 3, 4), 1), ((), 0)])
def test_gradients_of_both_orders_are_those_of_finite_differences(pair, shape, dim):
    forward, backward = pair
    x, dy, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x: forward(x, dim), (x,), check_batched_grad=True)
        assert check(lambda dy, y: backward(dy, y, dim), (dy, y), check_batched_grad=True)
    assert torch.autograd.gradcheck(lambda y: backward(dy.detach(), y, dim), (y,))
    assert torch.autograd.gradcheck(lambda dy: backward(dy, y.detach(), dim), (dy,))


@pytest.mark.parametrize("dtype", operator.DTYPES)
def test_it_is_torchs_softmax_in_values_strides_and_memory_of_its_own(dtype):
    for x, dim in [*((torch.randn(shape), dim) for shape, dim in SHAPES), *itertools.product(LAYOUTS, (0, 1, -1))]:
        x = x.to(dtype)
        for forward, backward in PAIRS.values():
            y = forward(x, dim)
            expected = torch.softmax(x, dim)
            assert (y.dtype, y.shape, y.stride()) == (dtype, x.shape, expected.stride())
            assert torch.equal(y, expected)
            dx = backward(x, y, dim)
            assert (dx.dtype, dx.shape, dx.stride()) == (dtype, x.shape, expected.stride())
            storages = {tensor.untyped_storage().data_ptr() for tensor in (x, y, dx)}
            assert len(storages) == 3 or x.numel() == 0
            assert len({id(tensor) for tensor in (x, y, dx)}) == 3


def test_the_second_gradient_of_16_bits_is_computed_in_32():
    x = torch.randn(4, 50, dtype=torch.bfloat16, requires_grad=True)
    dy, g = torch.randn(2, 4, 50, dtype=torch.bfloat16).unbind()
    y = kernels.softmax(x).detach().requires_grad_()
    (of_y,) = torch.autograd.grad(OPS.triton_softmax_backward(dy, y, -1), y, g)
    wide_y = y.detach().double().requires_grad_()
    slope = wide_y * (dy.double() - (dy.double() * wide_y).sum(-1, keepdim=True))
    (expected,) = torch.autograd.grad(slope, wide_y, g.double())
    assert of_y.dtype is torch.bfloat16
    assert torch.allclose(of_y.double(), expected, rtol=2**-8, atol=1e-6)


def test_what_it_does_not_take_is_said():
    softmax, backward = kernels.softmax, OPS.triton_softmax_backward
    for dtype in (torch.int32, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match=r"the kernels take float32, float16, bfloat16 and float64"):
            softmax(torch.ones(3, dtype=dtype))
    with pytest.raises(TypeError, match="strided"):
        softmax(torch.eye(3).to_sparse())
    for shape, dim in (((3,), 1), ((3, 4), -3), ((), 1), ((0, 3), 2)):
        with pytest.raises(IndexError, match="Dimension out of range"):
            softmax(torch.ones(shape), dim)
    x = torch.ones(2, 3)
    for dy in (torch.ones(3, 2), x.double()):
        with pytest.raises(TypeError, match="they must agree"):
            backward(dy, x, -1)


def test_fake_tensors_have_torchs_strides_dtype_and_device_on_cuda():
    with FakeTensorMode():
        for (shape, dim), dtype in itertools.product(SHAPES, operator.DTYPES):
            if torch.version.cuda is None and len(shape) > 1 and min(shape) > 1 and dim % len(shape) == 0:
                continue  # Tensor.contiguous() of a fake CUDA tensor needs a torch that was built for CUDA
            x = torch.empty(shape, dtype=dtype, device="cuda")
            expected = torch.softmax(x, dim)
            for forward, backward in PAIRS.values():
                for out in (forward(x, dim), backward(x, x, dim)):
                    assert (out.shape, out.stride(), out.dtype, out.device) == (x.shape, expected.stride(), dtype, x.device)


@both
def test_flops_are_counted_forward_and_backward(pair):
    forward, backward = pair
    x = torch.randn(3, 5, 7, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        forward(x, 1).sum().backward()
    counts = counter.get_flop_counts()["Global"]
    assert counts == {forward._overloadpacket: 5 * 3 * 5 * 7, backward._overloadpacket: 4 * 3 * 5 * 7}


@both
def test_tensor_subclasses_see_the_operators(pair):
    forward, backward = pair
    x, dy = torch.randn(2, 4, 6).unbind()
    Wrapped.calls.clear()
    wrapped = Wrapped(x).requires_grad_()
    y = forward(wrapped, -1)
    (dx,) = torch.autograd.grad(y, wrapped, Wrapped(dy))
    assert {forward, backward} <= set(Wrapped.calls)
    assert isinstance(y, Wrapped)
    assert isinstance(dx, Wrapped)
    expected = run_and_differentiate(lambda x: torch.softmax(x, -1), x, dy)
    assert torch.allclose(y.inner, expected[0])
    assert torch.allclose(dx.inner, expected[1], atol=1e-6)
    compiled = torch.compile(lambda x: forward(x, -1), fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(Wrapped(x)).inner, expected[0])


@both
def test_vmap_takes_any_batched_dimension(pair):
    forward, backward = pair
    for shape, dims in (((3, 4, 5), (0, 1, -1)), ((4, 5), (0, -1)), ((5,), (0, -1))):
        for at in range(len(shape)):
            x, dy = torch.randn(2, *shape).unbind()
            for dim in dims if len(shape) > 1 else (0, -1):
                if not -max(1, x.dim() - 1) <= dim < max(1, x.dim() - 1):
                    continue
                y = torch.vmap(lambda x, dim=dim: torch.softmax(x, dim), at)(x)
                assert torch.allclose(torch.vmap(lambda x, dim=dim: forward(x, dim), at)(x), y)
                one = dy.select(at, 0)
                got = torch.vmap(lambda dy, y, dim=dim: backward(dy, y, dim), (None, 0))(one, y)
                expected = torch.stack([backward(one, sample, dim) for sample in y])
                assert torch.allclose(got, expected, atol=1e-6)
    with pytest.raises(IndexError):
        torch.vmap(lambda x: forward(x, 1))(torch.ones(3, 4))


def test_the_rows_need_no_triton_and_the_operator_is_found_by_its_name():
    code = (
        "import sys; from softbench.kernels.common import rows; assert 'triton' not in sys.modules;"
        "from softbench.kernels.triton import softmax; import torch; assert callable(softmax);"
        "assert softmax(torch.zeros(2, 4))[0, 0] == 0.25; import softbench.kernels.triton as t; assert t.softmax is softmax;"
        "assert not hasattr(t, 'nothing')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TRITON_INTERPRET": "1"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_backends_on_it_say_why_they_are_not_run():
    for backend in (operators.compiled, operators.op, operators.custom_op, operators.aoti):
        assert "no CUDA GPU" in backend.available()


def test_the_backends_on_it_refuse_what_they_cannot_do():
    both, empty = Case(4, 8, "fp32", Direction.BOTH), Case(0, 8, "fp32", Direction.FORWARD)
    assert "no autograd" in operators.aoti.supports(both)
    assert "no elements" in operators.aoti.supports(empty)
    for backend in (operators.compiled, operators.op, operators.custom_op):
        assert backend.supports(both) is backend.supports(empty) is None
