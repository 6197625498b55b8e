"""What the operators' tests share: the operators of both packages, operands on the CPU and on a GPU, and a tensor subclass."""

import itertools

import pytest
import torch
from softbench.kernels.cuda import log_softmax as cuda_log_softmax, softmax as cuda_softmax
from softbench.kernels.triton import log_softmax as triton_log_softmax, softmax as triton_softmax

OPS = torch.ops.softbench
PAIRS = {
    "triton_op": (OPS.triton_softmax.default, OPS.triton_softmax_backward.default),
    "custom_op": (OPS.triton_softmax_opaque.default, OPS.triton_softmax_opaque_backward.default),
}
LOG_PAIRS = {
    "triton_op": (OPS.triton_log_softmax.default, OPS.triton_log_softmax_backward.default),
    "custom_op": (OPS.triton_log_softmax_opaque.default, OPS.triton_log_softmax_opaque_backward.default),
}
EVERY_PAIR = {
    "triton": PAIRS["triton_op"],
    "opaque": PAIRS["custom_op"],
    "triton log": LOG_PAIRS["triton_op"],
    "opaque log": LOG_PAIRS["custom_op"],
    "cuda": (OPS.cuda_softmax.default, OPS.cuda_softmax_backward.default),
    "cuda log": (OPS.cuda_log_softmax.default, OPS.cuda_log_softmax_backward.default),
}
FUNCTIONS = {
    "triton": triton_softmax,
    "opaque": OPS.triton_softmax_opaque,
    "triton log": triton_log_softmax,
    "opaque log": OPS.triton_log_softmax_opaque,
    "cuda": cuda_softmax,
    "cuda log": cuda_log_softmax,
}
"""What a program calls, by the names of EVERY_PAIR."""
OF_FUNCTION = {"softmax": PAIRS, "log_softmax": LOG_PAIRS}
EVERY_TEST = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")

each = pytest.mark.parametrize("name", OF_FUNCTION)
"""The name of a function, which torch and the operators have."""
both = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())


def of(name):
    """The function of torch that an operator of EVERY_PAIR computes."""
    return "log_softmax" if name.endswith("log") else "softmax"


SHAPES = [((5, 7), -1), ((5, 7), 0), ((2, 3, 4), 1), ((2, 3, 4), -3), ((6,), 0), ((), -1), ((), 0), ((1, 5), 0), ((4, 1, 1), 0)]
SHAPES += [((0, 3), 1), ((3, 0), 1)]
ON_THE_CPU = [
    torch.randn(7, 5).t(),
    torch.randn(5, 14)[:, ::2],
    torch.randn(5, 1).expand(5, 7),
    torch.randn(1, 7).expand(5, 7),
    torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.randn(36)[1:].view(5, 7),
]
"""Tensors with any strides."""
INPUTS = [*((torch.randn(shape), dim) for shape, dim in SHAPES), *itertools.product(ON_THE_CPU, (0, 1, -1))]


def run_and_differentiate(function, x, dy):
    """The result and the gradient of x."""
    x = x.detach().requires_grad_()
    y = function(x)
    return y.detach(), *torch.autograd.grad(y, x, dy)


LONG = 20_000  # longer than every tile
SHAPES_AND_LONG = [*SHAPES, ((37, 781), 1), ((3, 10_000), 1), ((3, LONG), 1), ((LONG, 3), 0)]
LAYOUTS = {
    "transposed": lambda dtype: randn(7, 5, dtype=dtype).t(),
    "every second column": lambda dtype: randn(5, 14, dtype=dtype)[:, ::2],
    "expanded columns": lambda dtype: randn(5, 1, dtype=dtype).expand(5, 7),
    "expanded rows": lambda dtype: randn(1, 7, dtype=dtype).expand(5, 7),
    "row stride over N": lambda dtype: randn(12, 128, dtype=dtype)[:, :100],
    "offset by one element": lambda dtype: randn(12 * 128 + 1, dtype=dtype)[1:].view(12, 128),
    "channels-last": lambda dtype: randn(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last),
}
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, device="cuda", dtype=dtype)


def gradient(dy, y, dim=-1):
    return y.double() * (dy.double() - (dy.double() * y.double()).sum(dim, keepdim=True))


def close(got, expected, dtype=torch.float32):
    torch.testing.assert_close(got.double(), expected.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 1e-2)


def close_gradient(dx, dy, y, dim=-1, factor=1):
    """dx is within the rounding of its dtype and of float32 sums. The scale is that of the terms, since their difference may be small."""
    wide_dy, wide_y = dy.double(), y.double()
    expected = factor * wide_y * (wide_dy - (wide_dy * wide_y).sum(dim, keepdim=True))
    scale = factor * wide_y * (wide_dy.abs() + (wide_dy * wide_y).abs().sum(dim, keepdim=True))
    step = torch.finfo(dx.dtype).smallest_normal * torch.finfo(dx.dtype).eps  # between subnormals
    assert ((dx.double() - expected).abs() <= TOLERANCE[dx.dtype] * scale + step).all()


class Wrapped(torch.Tensor):
    """A tensor that wraps another tensor and records the operators called on it."""

    calls: list = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self, *, tensor_contents=None):  # torch logs the tensor while it traces
        return f"Wrapped({tuple(self.shape)})"

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(tensors, meta, size, stride):
        return Wrapped(tensors["inner"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.calls.append(function)
        unwrap = lambda value: value.inner if isinstance(value, Wrapped) else value  # noqa: E731
        wrap = lambda value: Wrapped(value) if isinstance(value, torch.Tensor) else value  # noqa: E731
        given = torch.utils._pytree.tree_map(unwrap, (args, kwargs or {}))
        return torch.utils._pytree.tree_map(wrap, function(*given[0], **given[1]))
