"""PyTorch's samples of softmax and log_softmax (its OpInfo database), also in noncontiguous memory, for the operators on CPU and GPU."""

import functools

import pytest
import torch

NAMES = ("softmax", "log_softmax", "_softmax_backward_data")
FULL = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")


@functools.cache
def database():
    """The entries by name and variant. Importing them takes four seconds, which only the process of these tests needs.

    A test that asks for them is skipped without expecttest, which torch.testing._internal imports.
    """
    pytest.importorskip("expecttest", reason="torch.testing._internal needs it; pip install expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    return {(info.name, info.variant_test_name): info for info in op_db if info.name in NAMES}


def twins(info, device, dtype, *, requires_grad=False):
    """Every sample as `(tensor, other arguments, keywords)`, and the same values in noncontiguous memory."""
    found = []
    for sample in info.sample_inputs(device, dtype, requires_grad=requires_grad):
        for one in (sample, sample.noncontiguous()):
            found.append((one.input, one.args, one.kwargs))
    assert len(found) >= 6
    assert any(not tensor.is_contiguous() for tensor, *_ in found)
    return found


def close(got, expected):
    """torch's tolerances for the dtype. `softbench check` has the derived bound; this is the suite's tolerance."""
    torch.testing.assert_close(got, expected, equal_nan=True)


def gradient(dy, y, dim, name="softmax"):
    dy, y = dy.double(), y.double()
    return y * (dy - (dy * y).sum(dim, keepdim=True)) if name == "softmax" else dy - y.exp() * dy.sum(dim, keepdim=True)


def near(got, expected, roundings):
    """Within some roundings of the result and of its terms, which are between 1 and 10."""
    u = torch.finfo(got.dtype).eps
    torch.testing.assert_close(got.double(), expected, rtol=roundings * u, atol=10 * roundings * u, equal_nan=True)


def agree_with_torch(function, device, dtype, name="softmax"):
    """Value, dtype, shape, strides and gradient equal those of torch's function `name` on every sample."""
    torchs = getattr(torch, name)
    for x, (dim,), _ in twins(database()[name, ""], device, dtype, requires_grad=True):
        y, expected = function(x, dim), torchs(x, dim)
        assert (y.dtype, y.shape, y.stride()) == (expected.dtype, expected.shape, expected.stride())
        close(y, expected)
        dy = torch.randn_like(expected)
        (dx,) = torch.autograd.grad(y, x, dy)
        # not torch's gradient: it rounds intermediates of 16-bit tensors, and ours does not
        # log_softmax of 16 bits rounds y, which is up to some tens, before its exponential
        wide = torchs(x.detach().double(), dim) if name == "softmax" else y.detach()
        near(dx, gradient(dy, wide, dim, name), 8)


def widened_as_torch(function, device, dtype, name="softmax"):
    """The suite's second variant: with `dtype=torch.float32`."""
    for x, (dim,), _ in twins(database()[name, "with_dtype"], device, dtype, requires_grad=True):
        y, expected = function(x, dim, dtype=torch.float32), getattr(torch, name)(x, dim, dtype=torch.float32)
        assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
        close(y, expected)


def gradients(device, dtype, **options):
    """Samples of the backward, without torch's widening softmax (dy in float32, y in float16)."""
    found = [
        (dy, y, dim)
        for dy, (y, dim, _), _ in twins(database()["_softmax_backward_data", ""], device, dtype, **options)
        if dy.dtype == y.dtype
    ]
    assert len(found) >= 4
    return found


def backward_agrees_with_torch(backward, device, dtype):
    for dy, y, dim in gradients(device, dtype):
        near(backward(dy, y, dim), gradient(dy, y, dim), 2)


def opchecked(forward, backward, device, dtype, name="softmax"):
    """torch.library.opcheck with all its tests, on every sample. The suite has no samples of log_softmax's backward."""
    for x, (dim,), _ in twins(database()[name, ""], device, dtype, requires_grad=True):
        torch.library.opcheck(forward, (x, dim), test_utils=FULL)
    for dy, y, dim in gradients(device, dtype, requires_grad=True):
        nearly = (0.9 * y.detach()).requires_grad_()  # dx of an exact softmax sums to 0: see gpu/test_operators_gpu.py
        torch.library.opcheck(backward, (dy.detach().requires_grad_(), nearly, dim), test_utils=FULL)


def gradchecked(softmax, device, name="softmax"):
    """First and second gradients against finite differences in float64, on every sample."""
    for x, (dim,), _ in twins(database()[name, ""], device, torch.float64, requires_grad=True):
        fast = x.numel() > 30
        assert torch.autograd.gradcheck(lambda x, dim=dim: softmax(x, dim), (x,), check_batched_grad=not fast, fast_mode=fast)
        assert torch.autograd.gradgradcheck(lambda x, dim=dim: softmax(x, dim), (x,), check_batched_grad=not fast, fast_mode=fast)
