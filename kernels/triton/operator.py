"""Softmax as PyTorch operators: differentiable twice, and traced by torch.compile, torch.export and AOTInductor.

- `softbench::triton_softmax` and `softbench::triton_softmax_backward` (`torch.library.triton_op`): a compiler sees the kernels themselves.
- `softbench::triton_softmax_opaque` and its backward (`torch.library.custom_op`): to a compiler they are calls of unknown content.

Each pair is functional and of one meaning; they differ in what a compiler makes of them. Elsewhere than on CUDA the operators are
torch's own softmax: a branch inside their bodies, as a kernel registered for the CPU beside them would fail in AOT tracing.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton
from torch.utils.flop_counter import register_flop_formula

from . import rows
from .plain import INTERPRETED, forward_tile
from .rows import Launch, as_rows, from_rows
from .tiers import launch_backward, launch_forward
from .traced import traced_backward, traced_forward

DTYPES = (*rows.DTYPES, torch.float64)
FORWARD_FLOPS = 5  # an element: maximum, subtraction, exponential, sum, division
BACKWARD_FLOPS = 4  # an element: product, sum, subtraction, product


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """softmax(x) over `dim`, by softbench's Triton kernels: exp(x - max(x)) / sum(exp(x - max(x))).

    - Shapes: any, of 0 dimensions and of 0 elements, too; the result has x's. More than 2^31 elements are fine.
    - Dtypes: float32, float16, bfloat16, float64; the result has x's. 16-bit rows are computed in float32 and rounded once. Autocast
      changes nothing.
    - Strides: any. Rows whose elements are adjacent are read where they are, others are copied first. The result is contiguous and never
      shares x's memory, as torch.softmax has it; a `dim` that is not the last costs a copy to get there.
    - Gradients: twice through kernels and beyond, by autograd. torch.vmap is supported; forward mode and torch.func's gradients are not
      (of PyTorch's custom operators at large).
    - Tracing: torch.compile (static and dynamic shapes, CUDA graphs), torch.export and AOTInductor see the kernels. A dynamic size of
      `dim` is guarded by ranges (see `softbench.kernels.triton.traced.RUNGS`); for export, give its range within one.
    - Devices: CUDA. On any other it is `torch.softmax`, under TRITON_INTERPRET=1 as well.

    Raises:
        TypeError: another dtype, or a layout other than strided.
        IndexError: `dim` is out of range.

    Source: the online normaliser of Milakov and Gimelshein (arXiv:1805.02867) for rows beyond a tile; the gradient with respect to x is
    y * (dy - sum(dy * y)).
    """
    result: Tensor = torch.ops.softbench.triton_softmax.default(x, dim)
    return result


@triton_op("softbench::triton_softmax", mutates_args=())
def triton_softmax(x: Tensor, dim: int) -> Tensor:
    """The operator behind `softmax`."""
    launch = traced_forward if _tracing() else _eager_forward
    return _forward(launch, x, dim)


@triton_op("softbench::triton_softmax_backward", mutates_args=())
def triton_softmax_backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    """dx = y * (dy - sum(dy * y)) over `dim`, contiguous; `dy` and `y` are of one shape, dtype and device. Raises as `softmax`."""
    launch = traced_backward if _tracing() else _eager_backward
    return _backward(launch, dy, y, dim)


@custom_op("softbench::triton_softmax_opaque", mutates_args=())
def triton_softmax_opaque(x: Tensor, dim: int) -> Tensor:
    """As `triton_softmax`, but no compiler looks inside."""
    return _forward(_eager_forward, x, dim)


@custom_op("softbench::triton_softmax_opaque_backward", mutates_args=())
def triton_softmax_opaque_backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    """As `triton_softmax_backward`, but no compiler looks inside."""
    return _backward(_eager_backward, dy, y, dim)


@triton_softmax_opaque.register_fake
def _(x: Tensor, dim: int) -> Tensor:
    _axis(x, dim)
    return x.new_empty(x.shape)


@triton_softmax_opaque_backward.register_fake
def _(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    _agree(dy, y)
    _axis(y, dim)
    return y.new_empty(y.shape)


def _tracing() -> bool:
    """True while a compiler records the operator's body, False when the body runs on tensors that hold data.

    torch itself tells the two apart: for the latter it turns `wrap_triton` off. Modes, tensor types and `torch.compiler.is_compiling()`
    say less: a compiled graph that falls back to the operator runs on real tensors.
    """
    return not INTERPRETED and _wrap_triton_enabled()


def _wrap_triton_enabled() -> bool:
    return wrap_triton(forward_tile) is not forward_tile


with contextlib.suppress(ImportError):  # the same without the 4 us that it takes to wrap a kernel, where this torch has it
    from torch._library.triton import is_wrap_triton_enabled as _wrap_triton_enabled


def _eager_forward(x: Tensor, y: Tensor) -> None:
    with torch.cuda.device_of(y):  # Triton launches on the current device, wherever the tensors are
        launch_forward(x, y)


def _eager_backward(dy: Tensor, y: Tensor, dx: Tensor) -> None:
    with torch.cuda.device_of(dx):
        launch_backward(dy, y, dx)


def _forward(launch: Launch, x: Tensor, dim: int) -> Tensor:
    axis = _axis(x, dim)
    if x.device.type != "cuda":
        return torch.softmax(x, axis)
    return _over_rows(launch, (x,), axis)


def _backward(launch: Launch, dy: Tensor, y: Tensor, dim: int) -> Tensor:
    _agree(dy, y)
    axis = _axis(y, dim)
    if y.device.type != "cuda":
        dx: Tensor = torch.ops.aten._softmax_backward_data(dy, y, axis, y.dtype)
        return dx
    return _over_rows(launch, (dy, y), axis)


def _over_rows(launch: Launch, inputs: tuple[Tensor, ...], axis: int) -> Tensor:
    """What `launch` makes of the inputs' rows along `axis`: a fresh contiguous tensor of the shape they share."""
    like = inputs[-1]
    if like.numel() == 0:
        return like.new_empty(like.shape)
    given = [tensor if _is_rows(tensor, axis) else as_rows(tensor, axis) for tensor in inputs]
    out = given[-1].new_empty(given[-1].shape)
    launch(*given, out)
    if axis == max(1, like.dim()) - 1:
        return out.view(like.shape)
    result = from_rows(out, like, axis)
    # A tensor of which all but one dimension are 1 is contiguous in any order of them, but not with contiguous strides.
    return out.view(like.shape) if result.is_contiguous() else result.clone(memory_format=torch.contiguous_format)


def _is_rows(x: Tensor, axis: int) -> bool:
    """True for what `as_rows` would only look at, which is most of what comes."""
    return x.dim() == 2 and axis == 1 and x.stride(1) == 1


def _axis(x: Tensor, dim: int) -> int:
    """`dim` from 0 up, when `x` and `dim` are fit for softmax; raises as `softmax`."""
    if x.dtype not in DTYPES:
        raise TypeError(f"softmax of {x.dtype}: the kernels take float32, float16, bfloat16 and float64")
    if x.layout is not torch.strided:
        raise TypeError(f"softmax of a tensor of layout {x.layout}: the kernels take strided ones")
    return _from_0(dim, x.dim())


def _from_0(dim: int, dimensions: int) -> int:
    most = max(1, dimensions)  # a scalar counts as a row of one, as torch has it
    if not -most <= dim < most:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-most}, {most - 1}], but got {dim})")
    return dim % most


def _agree(dy: Tensor, y: Tensor) -> None:
    if dy.shape != y.shape or dy.dtype != y.dtype or dy.device != y.device:
        raise TypeError(
            f"dy is {tuple(dy.shape)} {dy.dtype} on {dy.device}, y is {tuple(y.shape)} {y.dtype} on {y.device}; they must agree"
        )


def _register(name: str) -> None:
    """Autograd, vmap and flops of the operator `name` and of its `name`_backward."""
    forward, backward = (getattr(torch.ops.softbench, which) for which in (name, f"{name}_backward"))
    torch.library.register_autograd(f"softbench::{name}", _gradient(backward.default), setup_context=_keep_result)
    torch.library.register_autograd(f"softbench::{name}_backward", _second(backward.default), setup_context=_keep_inputs)
    torch.library.register_vmap(f"softbench::{name}", functools.partial(_batched, forward.default))
    torch.library.register_vmap(f"softbench::{name}_backward", functools.partial(_batched, backward.default))
    register_flop_formula(forward)(_flops(FORWARD_FLOPS))
    register_flop_formula(backward)(_flops(BACKWARD_FLOPS))


def _keep_result(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.dim = inputs[1]
    ctx.save_for_backward(output)


def _gradient(backward: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, None]]:
    def gradient(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return backward(dy, y, ctx.dim), None

    return gradient


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.dim = inputs
    ctx.save_for_backward(*tensors)


def _second(backward: Callable[..., Tensor]) -> Callable[..., tuple[Tensor | None, Tensor | None, None]]:
    """The gradient of dx = y * (dy - sum(dy * y)): with respect to dy it is the same operator again, with respect to y a sum of terms."""

    def second(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        dy, y = ctx.saved_tensors
        of_dy = backward(g, y, ctx.dim) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return of_dy, None, None
        g, dy, y = (tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in (g, dy, y))
        dot, slope = ((tensor * y).sum(ctx.dim, keepdim=True) for tensor in (dy, g))
        return of_dy, (g * (dy - dot) - dy * slope).to(ctx.saved_tensors[1].dtype), None

    return second


def _batched(operator: Callable[..., Tensor], info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Tensor, int]:
    """One call over all samples: their dimension goes first, so that `dim` counts the same from the end."""
    *tensors, dim = given
    stacked = [
        tensor.expand(info.batch_size, *tensor.shape) if at is None else tensor.movedim(at, 0)
        for tensor, at in zip(tensors, in_dims[:-1], strict=True)
    ]
    dimensions = stacked[0].dim() - 1
    axis = _from_0(dim, dimensions)
    if dimensions == 0:
        return operator(*(tensor.unsqueeze(-1) for tensor in stacked), 1).squeeze(-1), 0
    return operator(*stacked, axis + 1), 0


def _flops(each: int) -> Callable[..., int]:
    """A formula of so many floating-point operations an element, where an exponential or a comparison counts as one."""

    def formula(shape: torch.Size, *_: Any, **__: Any) -> int:
        return each * shape.numel()

    return formula


_register("triton_softmax")
_register("triton_softmax_opaque")
