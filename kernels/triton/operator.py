"""Softmax as PyTorch operators: differentiable twice, and traced by torch.compile, torch.export and AOTInductor.

- `softbench::triton_softmax` and `softbench::triton_softmax_backward` (`torch.library.triton_op`): a compiler sees the kernels themselves.
- `softbench::triton_softmax_opaque` and its backward (`torch.library.custom_op`): a compiler sees opaque calls.

Both pairs compute the same, and differ only in what a compiler sees. On devices other than CUDA, the operators call torch's own softmax.
They do so by a branch in their bodies, because a kernel registered for the CPU would fail in AOT tracing.
"""

import contextlib

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton

from ..common import registration, rows
from ..common.rows import Launch, apply_to_rows, canonical_dim, check_same
from .dispatch import launch_backward, launch_forward
from .generic import INTERPRETED, forward_tile
from .traceable import launch_backward_traceable, launch_forward_traceable

DTYPES = (*rows.DTYPES, torch.float64)


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """softmax(x) over `dim`, by softbench's Triton kernels: exp(x - max(x)) / sum(exp(x - max(x))).

    - Shapes: any, also with 0 dimensions or 0 elements, and with more than 2^31 elements. The result has x's shape.
    - Dtypes: float32, float16, bfloat16, float64. The result has x's dtype. 16-bit rows are computed in float32 and rounded once.
      Autocast changes nothing.
    - Strides: any. Rows with adjacent elements are read in place, others are copied first. As in torch.softmax, the result is contiguous
      and never shares x's memory. A `dim` other than the last costs one more copy.
    - Gradients: of any order, by autograd; those of the first two orders run the kernels. torch.vmap is supported. Forward mode and
      torch.func's gradients are not supported, as for all custom operators of PyTorch.
    - Tracing: torch.compile (static and dynamic shapes, CUDA graphs), torch.export and AOTInductor see the kernels. Ranges guard a dynamic
      size of `dim` (see `softbench.kernels.triton.traceable.SYMBOLIC_BLOCKS`). For export, give a size within one range.
    - Devices: CUDA. On others, and under TRITON_INTERPRET=1, it is `torch.softmax`.

    Raises:
        TypeError: another dtype, or a layout that is not strided.
        IndexError: `dim` is out of range.

    Source: the online normaliser of Milakov and Gimelshein (arXiv:1805.02867) for rows longer than a tile. The gradient with respect to x
    is y * (dy - sum(dy * y)).
    """
    result: Tensor = torch.ops.softbench.triton_softmax.default(x, dim)
    return result


@triton_op("softbench::triton_softmax", mutates_args=())
def triton_softmax(x: Tensor, dim: int) -> Tensor:
    """The operator behind `softmax`."""
    launch = launch_forward_traceable if _tracing() else _eager_forward
    return _forward(launch, x, dim)


@triton_op("softbench::triton_softmax_backward", mutates_args=())
def triton_softmax_backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    """dx = y * (dy - sum(dy * y)) over `dim`, contiguous. `dy` and `y` have one shape, dtype and device. Raises as `softmax`."""
    launch = launch_backward_traceable if _tracing() else _eager_backward
    return _backward(launch, dy, y, dim)


@custom_op("softbench::triton_softmax_opaque", mutates_args=())
def triton_softmax_opaque(x: Tensor, dim: int) -> Tensor:
    """As `triton_softmax`, but opaque to compilers."""
    return _forward(_eager_forward, x, dim)


@custom_op("softbench::triton_softmax_opaque_backward", mutates_args=())
def triton_softmax_opaque_backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    """As `triton_softmax_backward`, but opaque to compilers."""
    return _backward(_eager_backward, dy, y, dim)


@triton_softmax_opaque.register_fake
def _(x: Tensor, dim: int) -> Tensor:
    _axis(x, dim)
    return x.new_empty(x.shape)


@triton_softmax_opaque_backward.register_fake
def _(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    check_same(dy, y)
    _axis(y, dim)
    return y.new_empty(y.shape)


def _tracing() -> bool:
    """Whether a compiler records the operator's body. False if the body runs on tensors with data.

    torch turns `wrap_triton` off for tensors with data. Modes, tensor types and `torch.compiler.is_compiling()` cannot tell: a compiled
    graph that falls back to the operator runs on real tensors.
    """
    return not INTERPRETED and _wrap_triton_enabled()


def _wrap_triton_enabled() -> bool:
    return wrap_triton(forward_tile) is not forward_tile


with contextlib.suppress(ImportError):  # newer torch: the same without the 4 us that wrapping a kernel takes
    from torch._library.triton import is_wrap_triton_enabled as _wrap_triton_enabled


def _eager_forward(x: Tensor, y: Tensor) -> None:
    with torch.cuda.device_of(y):  # Triton launches on the current device
        launch_forward(x, y)


def _eager_backward(dy: Tensor, y: Tensor, dx: Tensor) -> None:
    with torch.cuda.device_of(dx):
        launch_backward(dy, y, dx)


def _forward(launch: Launch, x: Tensor, dim: int) -> Tensor:
    axis = _axis(x, dim)
    if x.device.type != "cuda":
        return torch.softmax(x, axis)
    return apply_to_rows(launch, (x,), axis)


def _backward(launch: Launch, dy: Tensor, y: Tensor, dim: int) -> Tensor:
    check_same(dy, y)
    axis = _axis(y, dim)
    if y.device.type != "cuda":
        dx: Tensor = torch.ops.aten._softmax_backward_data(dy, y, axis, y.dtype)
        return dx
    return apply_to_rows(launch, (dy, y), axis)


def _axis(x: Tensor, dim: int) -> int:
    """`dim` as a non-negative index. Raises as `softmax`."""
    if x.dtype not in DTYPES:
        raise TypeError(f"softmax of {x.dtype}: the kernels take float32, float16, bfloat16 and float64")
    if x.layout is not torch.strided:
        raise TypeError(f"softmax of a tensor of layout {x.layout}: the kernels take strided ones")
    return canonical_dim(dim, x.dim())


def _register(name: str) -> None:
    """Registers autograd, vmap and flops of the operators `name` and `name`_backward."""
    forward, backward = (getattr(torch.ops.softbench, which) for which in (name, f"{name}_backward"))
    gradient, second = registration.gradient_of_forward(backward.default), registration.gradient_of_backward(backward.default)
    torch.library.register_autograd(f"softbench::{name}", gradient, setup_context=registration.save_output)
    torch.library.register_autograd(f"softbench::{name}_backward", second, setup_context=registration.save_inputs)
    registration.register_vmap_and_flops(forward, backward)


_register("triton_softmax")
_register("triton_softmax_opaque")
