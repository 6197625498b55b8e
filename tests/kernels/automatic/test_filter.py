"""The filter in C++, and its launches of our kernels."""

import ctypes
from dataclasses import replace

import overridden
import pytest
import torch
from overridden import on_the_cpu
from softbench.kernels.automatic.override import OVERRIDES, Least, use
from softbench.kernels.common import extension
from timed import least_seconds


def test_a_call_that_keeps_torchs_kernel_costs_little(monkeypatch):
    calls = on_the_cpu(monkeypatch, "filter")
    x = torch.randn(1, 8)

    def cost():
        with torch.inference_mode():
            return least_seconds(lambda: torch.softmax(x, -1), number=500, repeat=60)

    without, kept = [], []
    while len(kept) < 10 and (not kept or min(kept) - min(without) >= 0.6e-6):  # a Python kernel costs 2 us
        without.append(cost())  # in turns, because other programs slow down some
        with use():
            kept.append(cost())
    assert min(kept) - min(without) < 0.6e-6
    assert calls == []


def test_an_unknown_operator_is_an_error():
    if (library := extension.load(build=True)) is None:
        pytest.skip("needs g++")
    with pytest.raises(RuntimeError, match="no filter for aten::no_such_operator"):
        replace(OVERRIDES[0], operator="no_such_operator").install(library, 0)


ANY = Least(1)


@pytest.fixture(autouse=True)
def undone():
    with overridden.undone():
        yield


@pytest.mark.parametrize("way", ("launcher", "filter"))
def test_the_result_may_be_float32_and_the_gradient_narrow(monkeypatch, way):
    """As torch calls its operators for float16 on CUDA, which no caller does on the CPU."""
    calls = on_the_cpu(monkeypatch, way, ANY)
    x = torch.randn(3, 8).half()
    with use():
        for _ in range(2):
            y = torch.ops.aten._softmax(x, -1, True)
            dx = torch.ops.aten._softmax_backward_data(torch.ones_like(y), y, -1, torch.float16)
    assert (y.dtype, dx.dtype, len(calls), len(calls.streams)) == (torch.float32, torch.float16, 4, 2 * (way == "launcher"))
    torch.testing.assert_close(y, torch.softmax(x.float(), -1))
    torch.testing.assert_close(dx, torch.zeros_like(dx), atol=1e-3, rtol=0)


def test_later_calls_are_launched_in_cpp(monkeypatch):
    calls = on_the_cpu(monkeypatch, "launcher", ANY)
    x = torch.randn(3, 4, 5, requires_grad=True)
    expected = torch.autograd.grad(torch.log_softmax(x.double(), -1), x, torch.ones(3, 4, 5).double())[0]
    with use():
        for launched in (1, 3, 5):
            y = torch.log_softmax(x, -1)
            (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
            assert calls.streams == [7] * launched
            assert y.is_contiguous() and y.shape == dx.shape == x.shape
            torch.testing.assert_close(y.double(), torch.log_softmax(x.double(), -1))
            torch.testing.assert_close(dx, expected.float(), atol=1e-6, rtol=1e-5)
    with use():
        torch.log_softmax(x, -1)  # a new block decides anew
    assert calls == [*["_log_softmax", "_log_softmax_backward_data"] * 3, "_log_softmax"]
    assert len(calls.streams) == 5 + 1


def decided(calls):
    """The first calls of float32, which decide. C++ launches later ones, which are recorded."""
    x = torch.randn(2, 3, requires_grad=True)
    for function in (torch.softmax, torch.log_softmax):
        y = function(x, -1)
        torch.autograd.grad(y, x, torch.ones_like(y))
    calls.streams.clear()


@pytest.mark.parametrize("way", overridden.WAYS)
def test_transforms_are_those_of_torch_and_reach_the_launcher_in_cpp(monkeypatch, way):
    calls = on_the_cpu(monkeypatch, way, ANY)
    x, tangent = torch.randn(4, 6), torch.randn(4, 6)
    transforms = (
        lambda: torch.func.jvp(lambda x: torch.softmax(x, -1), (x,), (tangent,))[1],
        lambda: torch.func.vmap(torch.func.vmap(lambda x: torch.softmax(x, -1)))(torch.stack([x, x])),
        lambda: torch.func.vmap(lambda x: torch.softmax(x, -1), in_dims=1)(x),
        lambda: torch.func.vmap(torch.func.grad(lambda x: torch.log_softmax(x, -1)[0]))(x),
        lambda: torch.func.hessian(lambda x: torch.softmax(x, -1).square().sum())(x),
        lambda: torch.func.functionalize(lambda x: torch.softmax(x, -1))(x),
    )
    expected = [transform() for transform in transforms]
    with use():
        decided(calls)
        for transform, result in zip(transforms, expected, strict=True):
            torch.testing.assert_close(transform(), result, atol=1e-5, rtol=1e-5)
    assert calls and (len(calls.streams) >= len(transforms)) == (way == "launcher")


def test_results_in_cpp_are_inference_tensors_only_in_inference_mode(monkeypatch):
    calls = on_the_cpu(monkeypatch, "launcher", ANY)
    x = torch.randn(4, 6, requires_grad=True)
    with use():
        decided(calls)
        with torch.inference_mode():
            assert torch.softmax(x, -1).is_inference()
            made = torch.randn(4, 6)
        for given, grad in ((made, False), (x, True), (x.detach(), False)):
            y = torch.softmax(given, -1)
            assert (y.is_inference(), y.requires_grad) == (False, grad)
        y = torch.softmax(x, -1)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    assert len(calls.streams) == 5


def test_unusual_tensors_are_launched_as_torch_does(monkeypatch):
    """Views that negate, zeros without memory, copies on write, and sizes of 1 with any strides."""
    calls = on_the_cpu(monkeypatch, "launcher", ANY)
    x = torch.randn(4, 6)
    images = torch.randn(2, 3, 1, 1).to(memory_format=torch.channels_last), torch.randn(2, 1, 5, 4).to(memory_format=torch.channels_last)
    strided = x.as_strided((1, 6), (1000, 1)), x.as_strided((4, 1), (1, 1)), torch.randn(25)[1:].view(4, 6)
    given = (torch._neg_view(x), torch._efficientzerotensor((4, 6)), *images, *strided)
    expected = [torch.softmax(one, -1) for one in given]
    with use():
        decided(calls)
        for one, result in zip(given, expected, strict=True):
            y = torch.softmax(one, -1)
            torch.testing.assert_close(y, result)
            assert y.stride() == result.stride()
        copied = torch._lazy_clone(x)
        y = torch.softmax(copied, -1)
        assert torch._C._is_cow_tensor(copied)  # reading makes no copy
        zeros = torch._efficientzerotensor((4, 6))
        assert not torch.ops.aten._softmax_backward_data(zeros, y, -1, torch.float32).any()
    assert len(calls.streams) == 7  # not the zeros, which torch expands


def test_python_launches_where_the_stream_is_unknown(monkeypatch):
    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)
    def failing(device, stream):
        return 1

    calls = on_the_cpu(monkeypatch, "launcher", ANY)
    extension.load().softbench_streams(overridden.address(failing), None)
    with use():
        for _ in range(2):
            torch.softmax(torch.randn(2, 3), -1)
    assert (calls, calls.streams) == (["_softmax"] * 2, [])


def test_python_launches_columns_and_other_dtypes(monkeypatch):
    calls = on_the_cpu(monkeypatch, "launcher", ANY)
    x = torch.randn(6, 8)
    given = (x[:, :4], x.t(), x.bfloat16(), x[:2])
    with use():
        torch.softmax(x, -1)
        for one in given:
            torch.testing.assert_close(torch.softmax(one, -1).double(), torch.softmax(one.double(), -1), atol=4e-3, rtol=0)
        y = torch.softmax(x.requires_grad_(), -1)
        for _ in range(2):
            torch.autograd.grad(y.sum(), x, retain_graph=True)  # the gradient of a sum has strides of 0
    assert len(calls) == 8
    assert len(calls.streams) == 3  # those of rows of float32 after the first


def test_python_launches_what_the_launcher_refuses(monkeypatch):
    """As a launch that needs a workspace."""
    calls = on_the_cpu(monkeypatch, "launcher", ANY, failing=True)
    x = torch.randn(6, 8)
    with use():
        for _ in range(2):
            torch.testing.assert_close(torch.softmax(x, -1), torch.softmax(x.double(), -1).float())
    assert (calls, calls.streams) == (["_softmax"] * 2, [])


def test_tensors_that_differ_are_not_launched_in_cpp(monkeypatch):
    calls = on_the_cpu(monkeypatch, "launcher", ANY)
    y = torch.softmax(torch.randn(3, 4), -1)
    with use():
        torch.ops.aten._softmax_backward_data(y, y, -1, torch.float32)
        with pytest.raises(RuntimeError):
            torch.ops.aten._softmax_backward_data(torch.ones(3, 5), y, -1, torch.float32)
        with pytest.raises(RuntimeError):
            torch.ops.aten._softmax_backward_data(y.double(), y, -1, torch.float32)
    assert (calls, calls.streams) == (["_softmax_backward_data"], [])
