"""The operators of all kernels on the CPU, where they call torch's functions: gradients, vmap and flops."""

import itertools
import sys

import pytest
import torch
from operators import EVERY_PAIR as PAIRS, EVERY_TEST, FUNCTIONS, INPUTS, ON_THE_CPU, OPS, SHAPES, Wrapped, of, run_and_differentiate
from sampled import sampled
from softbench.kernels.common import registration
from softbench.kernels.triton import generic, softmax as triton_softmax
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

pytestmark = [pytest.mark.skipif(generic.INTERPRETED, reason="fake tensors are not interpreted"), pytest.mark.usefixtures("fresh_compiler")]

each = pytest.mark.parametrize("name", PAIRS)
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
NARROW = [torch.float16, torch.bfloat16]


def wider(name, dtypes=NARROW):
    """The arguments that operators of CUDA take more, for float32 results of these dtypes."""
    return [(dtype, (torch.float32,)) for dtype in dtypes] if name.startswith("cuda") else []


@each
@pytest.mark.parametrize("dtype", DTYPES)
def test_other_devices_get_torchs_function_in_fresh_memory(name, dtype):
    forward, backward = PAIRS[name]
    for (x, dim), more in itertools.product(INPUTS, [(), *(more for wide, more in wider(name) if wide is dtype)]):
        x = x.to(dtype)
        y, expected = forward(x, dim, *more), getattr(torch, of(name))(x, dim, *more)
        assert torch.equal(y, expected)
        assert (y.dtype, y.stride()) == (expected.dtype, expected.stride())
        dx = backward(y, y, dim, *((dtype,) if more else ()))
        assert (dx.dtype, dx.shape, dx.stride()) == (dtype, x.shape, expected.stride())
        assert len({tensor.untyped_storage().data_ptr() for tensor in (x, y, dx)}) == 3 or x.numel() == 0


@each
def test_fake_cuda_tensors_have_torchs_strides_dtype_and_device(name):
    forward, backward = PAIRS[name]
    with FakeTensorMode():
        for (shape, dim), dtype in itertools.product(SHAPES, DTYPES):
            if torch.version.cuda is None and len(shape) > 1 and min(shape) > 1 and dim % len(shape) == 0:
                continue  # Tensor.contiguous() of a fake CUDA tensor needs a torch that was built for CUDA
            x, strides = torch.empty(shape, dtype=dtype, device="cuda"), torch.softmax(torch.empty(shape), dim).stride()
            if name.startswith("cuda") and dtype is torch.float64:
                for call in (lambda x=x, dim=dim: forward(x, dim), lambda x=x, dim=dim: backward(x, x, dim)):
                    with pytest.raises(TypeError, match=rf"{of(name)} of torch\.float64 on cuda"):
                        call()
                continue
            for more in [(), *(more for wide, more in wider(name) if wide is dtype)]:
                y = forward(x, dim, *more)
                dx = backward(y, y, dim, *((dtype,) if more else ()))
                assert (y.shape, y.stride(), y.dtype, y.device) == (x.shape, strides, more[0] if more else dtype, x.device)
                assert (dx.shape, dx.stride(), dx.dtype, dx.device) == (x.shape, strides, dtype, x.device)


@pytest.mark.parametrize("name", ["triton", "cuda"])
def test_inductor_compiles_the_operators(name):
    compiled = torch.compile(FUNCTIONS[name], fullgraph=True, dynamic=True)
    for M, N in ((3, 5), (4, 60)):
        x = torch.randn(M, N)
        assert torch.allclose(compiled(x), torch.softmax(x, -1), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shape", "dim"),
    sampled(
        [(name, *one) for name in PAIRS for one in SHAPES],
        lambda name, shape, dim: (shape, dim) == (((2, 3, 4), 1), ((), -1), ((0, 3), 1))[[*PAIRS].index(name) % 3],
    ),
)
def test_opcheck_passes_with_all_its_tests(name, shape, dim):
    forward, backward = PAIRS[name]
    x, dy, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
    opcheck(forward, (x, dim), test_utils=EVERY_TEST)
    opcheck(backward, (dy, y, dim), test_utils=EVERY_TEST)


@pytest.mark.parametrize(
    ("name", "layout"),
    sampled(itertools.product(PAIRS, range(len(ON_THE_CPU))), lambda name, layout: layout == [*PAIRS].index(name) % len(ON_THE_CPU)),
)
def test_opcheck_passes_on_any_strides(name, layout):
    forward, backward = PAIRS[name]
    x = ON_THE_CPU[layout]
    opcheck(forward, (x, 1), test_utils=EVERY_TEST)
    opcheck(backward, (x, torch.softmax(x, 1), 1), test_utils=EVERY_TEST)


@each
@pytest.mark.parametrize(("shape", "dim"), [((2, 3, 2), 1), ((), 0)])
def test_gradients_of_both_orders_are_those_of_finite_differences(name, shape, dim):
    forward, backward = PAIRS[name]
    x, dy, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x: forward(x, dim), (x,), check_batched_grad=True)
        assert check(lambda dy, y: backward(dy, y, dim), (dy, y), check_batched_grad=True)
    assert torch.autograd.gradcheck(lambda y: backward(dy.detach(), y, dim), (y,))
    assert torch.autograd.gradcheck(lambda dy: backward(dy, y.detach(), dim), (dy,))


@each
def test_flops_are_counted_forward_and_backward(name):
    forward, backward = PAIRS[name]
    x = torch.randn(3, 5, 7, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        forward(x, 1).sum().backward()
    counts = counter.get_flop_counts()["Global"]
    assert counts == {forward._overloadpacket: 5 * 3 * 5 * 7, backward._overloadpacket: 4 * 3 * 5 * 7}


@each
def test_vmap_takes_any_batched_dimension(name):
    (forward, backward), torchs = PAIRS[name], getattr(torch, of(name))
    for shape, dims in (((3, 4, 5), (0, 1, -1)), ((4, 5), (0, -1)), ((5,), (0, -1))):
        for at, dim in itertools.product(range(len(shape)), dims):
            if not -max(1, len(shape) - 1) <= dim < max(1, len(shape) - 1):
                continue
            for dtype, more in [(torch.float32, ()), *wider(name, NARROW[1:])]:
                x, dy = torch.randn(2, *shape).to(dtype).unbind()
                y = torch.vmap(lambda x, dim=dim, more=more: torchs(x, dim, *more), at)(x)
                assert torch.allclose(torch.vmap(lambda x, dim=dim, more=more: forward(x, dim, *more), at)(x), y)
                one, narrow = dy.select(at, 0).float(), (dtype,) if more else ()
                got = torch.vmap(lambda dy, y, dim=dim, narrow=narrow: backward(dy, y, dim, *narrow), (None, 0))(one, y)
                assert torch.allclose(got, torch.stack([backward(one, sample, dim, *narrow) for sample in y]), atol=1e-6)
    with pytest.raises(IndexError):
        torch.vmap(lambda x: forward(x, 1))(torch.ones(3, 4))


@each
def test_tensor_subclasses_see_the_operators(name):
    (forward, backward), torchs = PAIRS[name], getattr(torch, of(name))
    x, dy = torch.randn(2, 4, 6).unbind()
    Wrapped.calls.clear()
    wrapped = Wrapped(x).requires_grad_()
    y = forward(wrapped, -1)
    (dx,) = torch.autograd.grad(y, wrapped, Wrapped(dy))
    assert {forward, backward} <= set(Wrapped.calls)
    assert isinstance(y, Wrapped) and isinstance(dx, Wrapped)
    expected = run_and_differentiate(lambda x: torchs(x, -1), x, dy)
    for got, want in zip((y.inner, dx.inner), expected, strict=True):
        assert torch.allclose(got, want, atol=1e-6)
    if not name.startswith("cuda"):
        compiled = torch.compile(lambda x: forward(x, -1), fullgraph=True, backend="aot_eager")
        assert torch.allclose(compiled(Wrapped(x)).inner, expected[0])


def test_second_gradient_of_16_bits_is_computed_in_32():
    x = torch.randn(4, 50, dtype=torch.bfloat16, requires_grad=True)
    dy, g = torch.randn(2, 4, 50, dtype=torch.bfloat16).unbind()
    y = triton_softmax(x).detach().requires_grad_()
    (of_y,) = torch.autograd.grad(OPS.triton_softmax_backward(dy, y, -1), y, g)
    wide_y = y.detach().double().requires_grad_()
    slope = wide_y * (dy.double() - (dy.double() * wide_y).sum(-1, keepdim=True))
    (expected,) = torch.autograd.grad(slope, wide_y, g.double())
    assert of_y.dtype is torch.bfloat16
    assert torch.allclose(of_y.double(), expected, rtol=2**-8, atol=1e-6)


def test_a_call_waits_for_the_import_of_its_module(tmp_path, monkeypatch):
    (tmp_path / "softbench_test_late.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    finders = list(sys.meta_path)
    registration._on_import("softbench_test_late", lambda: seen.append(sys.modules["softbench_test_late"].value))
    assert not seen and len(sys.meta_path) == len(finders) + 1
    import softbench_test_late  # noqa: F401

    assert seen == [1] and sys.meta_path == finders
    registration._on_import("softbench_test_late", lambda: seen.append(2))
    assert seen == [1, 2]
