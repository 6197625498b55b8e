"""The operators of all kernels on the CPU, where they call torch's functions: gradients, vmap, flops, and PyTorch's own samples."""

import itertools
import sys

import opinfos
import pytest
import torch
from operators import EVERY_TEST, LOG_PAIRS, OPS, PAIRS as TRITONS, Wrapped, run_and_differentiate
from sampled import sampled
from softbench.kernels.common import registration
from softbench.kernels.cuda import log_softmax as cuda_log_softmax, softmax as cuda_softmax
from softbench.kernels.triton import generic, log_softmax as triton_log_softmax, softmax as triton_softmax
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

pytestmark = pytest.mark.skipif(generic.INTERPRETED, reason="fake tensors and TRITON_INTERPRET=1 do not go together")

SOFTMAX = {
    "triton": triton_softmax,
    "triton log": triton_log_softmax,
    "opaque": OPS.triton_softmax_opaque,
    "opaque log": OPS.triton_log_softmax_opaque,
    "cuda": cuda_softmax,
    "cuda log": cuda_log_softmax,
}
PAIRS = {
    "triton": TRITONS["triton_op"],
    "opaque": TRITONS["custom_op"],
    "triton log": LOG_PAIRS["triton_op"],
    "opaque log": LOG_PAIRS["custom_op"],
    "cuda": (OPS.cuda_softmax.default, OPS.cuda_softmax_backward.default),
    "cuda log": (OPS.cuda_log_softmax.default, OPS.cuda_log_softmax_backward.default),
}
each = pytest.mark.parametrize("name", PAIRS)
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
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


def of(name):
    """The function of torch that an operator computes."""
    return "log_softmax" if name.endswith("log") else "softmax"


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("name", "shape", "dim"),
    sampled(
        [(name, *one) for name in PAIRS for one in SHAPES], lambda name, shape, dim: (shape, dim) in (((2, 3, 4), 1), ((), -1), ((0, 3), 1))
    ),
)
def test_opcheck_passes_with_all_its_tests(name, shape, dim):
    forward, backward = PAIRS[name]
    x, dy, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
    opcheck(forward, (x, dim), test_utils=EVERY_TEST)
    opcheck(backward, (dy, y, dim), test_utils=EVERY_TEST)


@pytest.mark.parametrize(
    ("name", "layout"), sampled(itertools.product(PAIRS, range(len(LAYOUTS))), lambda name, layout: layout % 3 == [*PAIRS].index(name) % 3)
)
def test_opcheck_passes_on_any_strides(name, layout):
    forward, backward = PAIRS[name]
    x = LAYOUTS[layout]
    opcheck(forward, (x, 1), test_utils=EVERY_TEST)
    opcheck(backward, (x, torch.softmax(x, 1), 1), test_utils=EVERY_TEST)


@each
@pytest.mark.parametrize(("shape", "dim"), [((3, 5), -1), ((2, 3, 2), 1), ((), 0)])
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
            x, dy = torch.randn(2, *shape).unbind()
            y = torch.vmap(lambda x, dim=dim: torchs(x, dim), at)(x)
            assert torch.allclose(torch.vmap(lambda x, dim=dim: forward(x, dim), at)(x), y)
            one = dy.select(at, 0)
            got = torch.vmap(lambda dy, y, dim=dim: backward(dy, y, dim), (None, 0))(one, y)
            assert torch.allclose(got, torch.stack([backward(one, sample, dim) for sample in y]), atol=1e-6)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    sampled(itertools.product(SOFTMAX, DTYPES), lambda name, dtype: DTYPES.index(dtype) == [*SOFTMAX].index(name) % 4),
)
def test_results_agree_with_torch_on_its_samples(name, dtype):
    opinfos.agree_with_torch(SOFTMAX[name], "cpu", dtype, of(name))
    if of(name) == "softmax":  # the suite has no samples of log_softmax's backward
        opinfos.backward_agrees_with_torch(lambda dy, y, dim: PAIRS[name][1](dy, y, dim), "cpu", dtype)


@pytest.mark.slow
def test_results_with_a_dtype_agree_with_torch():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        opinfos.widened_as_torch(cuda_softmax, "cpu", dtype)
        opinfos.widened_as_torch(cuda_log_softmax, "cpu", dtype, "log_softmax")


@pytest.mark.slow
@each
def test_opcheck_passes_on_torchs_samples(name):
    opinfos.opchecked(*PAIRS[name], "cpu", torch.float32, of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(SOFTMAX, lambda name: name in ("opaque log", "cuda log")))
def test_gradients_of_both_orders_are_right_on_torchs_samples(name):
    opinfos.gradchecked(SOFTMAX[name], "cpu", of(name))
