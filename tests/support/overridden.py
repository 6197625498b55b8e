"""Overrides of torch's functions on the CPU, with launchers that compute in float64 and record their calls."""

import contextlib

import opinfos
import pytest
import torch
from softbench.kernels.common import filter as filters, override
from softbench.kernels.common.automatic import Choice

WAYS = ("filter", "python")
"""The rule in C++, and the rule in Python for machines without g++."""
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


def on_the_cpu(monkeypatch, way, least=None):
    """Prepare the overrides for the CPU; returns the list of the operators that ran our kernels. `least`: for all operators and dtypes."""
    calls = []

    def recorded(operator):
        def launch(*tensors):
            calls.append(operator)
            LAUNCHERS[operator](*tensors)

        return lambda kernels: launch

    monkeypatch.setattr(override, "KEY", "CPU")
    monkeypatch.setattr(override, "which", lambda x, function: Choice("triton", "a test"))
    for one in override.OVERRIDES:
        monkeypatch.setattr(one, "launchers", recorded(one.operator))
        if least:
            monkeypatch.setattr(one, "least", dict.fromkeys(override.DTYPES, least))
    if way == "python":
        monkeypatch.setattr(filters, "load", lambda: None)
    elif filters.load() is None:
        pytest.skip("needs g++")
    return calls


def registered():
    """What the dispatcher has for the overridden operators."""
    return [torch._C._dispatch_dump(f"aten::{operator}") for operator in OPERATORS]


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
