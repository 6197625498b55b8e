"""Overrides of torch's functions on the CPU, with launchers that compute in float64 and record their calls."""

import contextlib
import ctypes

import opinfos
import pytest
import torch
from softbench.kernels.automatic import override
from softbench.kernels.automatic.choice import Choice
from softbench.kernels.common import extension

WAYS = ("launcher", "filter", "python")
"""Rule and launch in C++, the rule in C++, and the rule in Python for machines without g++."""
OPERATORS = [one.operator for one in override.OVERRIDES]


def softmax(x, y):
    e = (x.double() - x.double().amax(-1, keepdim=True)).exp()
    y.copy_(e / e.sum(-1, keepdim=True))


def log_softmax(x, y):
    y.copy_(x.double() - x.double().logsumexp(-1, keepdim=True))


def softmax_backward(dy, y, dx):
    dx.copy_(y.double() * (dy.double() - (dy.double() * y.double()).sum(-1, keepdim=True)))


def log_softmax_backward(dy, y, dx):
    dx.copy_(dy.double() - y.double().exp() * dy.double().sum(-1, keepdim=True))


LAUNCHERS = dict(zip(OPERATORS, (softmax, log_softmax, softmax_backward, log_softmax_backward), strict=True))


class Calls(list):
    """The operators that ran our kernels; `streams` has the streams of those that C++ launched."""

    def __init__(self):
        super().__init__()
        self.streams, self.direct = [], []


def signature(operator):
    """The type of softbench_forward or softbench_backward, by the operator."""
    tensors, pointer, number = tensors_of(operator), ctypes.c_void_p, ctypes.c_int64
    sizes = [number] * (tensors + 3) + [ctypes.c_int] * 2
    return ctypes.CFUNCTYPE(number, *[pointer] * (tensors + 1), *sizes, pointer, number, pointer, pointer)


def tensors_of(operator):
    return 2 if operator.endswith("backward_data") else 1


def launcher(operator, calls, failing=False):
    """softbench_forward or softbench_backward of an operator, for addresses in the CPU's memory. `failing`: it launches nothing."""
    tensors = tensors_of(operator)

    def at(address, stride, M, N, dtype):
        dtype = override.DTYPES[dtype]
        memory = (ctypes.c_char * ((stride * (M - 1) + N) * dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).as_strided((M, N), (stride, 1))

    def launch(*given):
        addresses, strides, (M, N, dtype, out) = given[: tensors + 1], given[tensors + 1 : -8], given[-8:-4]
        assert (*given[-4:-2], given[-1]) == (None, 0, None)  # no workspace, and no plan
        assert strides[-1] == N
        if failing:
            return -64
        calls.append(operator)
        calls.streams.append(given[-2])
        inputs = (at(*one, M, N, dtype) for one in zip(addresses[:-1], strides[:-1], strict=True))
        LAUNCHERS[operator](*inputs, at(addresses[-1], N, M, N, out))
        return 0

    return signature(operator)(launch)


@ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def seventh_stream(device, stream):
    stream[0] = 7
    return 0


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def on_the_cpu(monkeypatch, way, least=None, *, failing=False):
    """Prepare the overrides for the CPU; returns the list of the operators that ran our kernels. `least`: for all operators and dtypes.

    With `launcher`, the first call of a function and dtype is Python's, and others of rows are C++'s unless it is `failing`.
    """
    calls = Calls()

    def recorded(operator):
        def launch(*tensors):
            calls.append(operator)
            LAUNCHERS[operator](*tensors)

        def columns(*tensors, scale):
            launch(*(tensor.movedim(1, -1) for tensor in tensors))
            return True

        return lambda kernels: launch, lambda kernels: columns

    def which(x, dim=-1, function=""):
        if way == "launcher":
            extension.choose(function, 0, x.dtype)
        return Choice("cuda" if way == "launcher" else "triton", "a test")

    monkeypatch.setattr(override, "KEY", "CPU")
    monkeypatch.setattr(override, "which", which)
    for function in ("softmax", "log_softmax"):
        calls.direct += [launcher(one.operator, calls, failing) for one in override.OVERRIDES if one.function == function]
        extension.launchers(function, 0, [*map(address, calls.direct[-2:]), None])
    for one in override.OVERRIDES:
        launchers, columns = recorded(one.operator)
        monkeypatch.setattr(one, "launchers", launchers)
        monkeypatch.setattr(one, "columns", columns)
        if least:
            monkeypatch.setattr(one, "least", dict.fromkeys(override.DTYPES, least))
    if way == "python":
        monkeypatch.setattr(extension, "load", lambda build=False: None)
    elif (library := extension.load(build=True)) is None:
        pytest.skip("needs g++")
    else:
        library.softbench_streams(address(seventh_stream), None)
    return calls


def registered():
    """What the dispatcher has for the overridden operators."""
    return [torch._C._dispatch_dump(f"aten::{operator}") for operator in OPERATORS]


@contextlib.contextmanager
def undone():
    """At the end, the dispatcher has what it had before, C++ was told the same, and no block is left."""
    before, told = registered(), extension._told
    extension._told = {}
    yield
    extension.forget_choices()
    extension._told = told
    if (library := extension._loaded) is not None:
        for function in (0, 1):
            for which in (0, 1):
                library.softbench_launcher(function, which, 0, None)
        extension._tell_all(library)
    assert registered() == before
    assert override._depth == 0


@contextlib.contextmanager
def other_override(operator, kernel, key="CPU"):
    """Another override of an operator, as FlagGems has them."""
    library = torch.library.Library("aten", "IMPL")
    library.impl(operator, kernel, key)
    try:
        yield
    finally:
        library._destroy()


def agrees_on_torchs_samples(function, variant, device, dtype):
    """Inside `use`, torch's samples of softmax or log_softmax have torch's dtypes, shapes and strides, and right values and gradients."""
    name = function.__name__
    for x, given, keywords in opinfos.twins(opinfos.database()[name, variant], device, dtype, requires_grad=True):
        expected = function(x, *given, **keywords)
        dy = torch.randn_like(expected)
        with override.use():
            y = function(x, *given, **keywords)
            (dx,) = torch.autograd.grad(y, x, dy)
        assert (y.dtype, y.shape, y.stride()) == (expected.dtype, expected.shape, expected.stride())
        wide = function(x.detach().double(), given[0])
        opinfos.near(y.to(x.dtype), wide, 2)  # not torch's log_softmax of 16 bits on the CPU, which rounds intermediates
        assert (dx.dtype, dx.shape) == (x.dtype, x.shape)
        of_y = y.detach() if name == "log_softmax" else wide  # log_softmax of 16 bits rounds y before its exponential
        opinfos.near(dx, opinfos.gradient(dy, of_y, given[0], name), 8)
