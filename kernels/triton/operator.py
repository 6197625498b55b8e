"""Softmax and log-softmax as PyTorch operators: differentiable twice, and traced by torch.compile, torch.export and AOTInductor.

- `softbench::triton_softmax` and `softbench::triton_softmax_backward` (`torch.library.triton_op`): a compiler sees the kernels themselves,
  or a call of an operator on rows where it cannot launch them (`traceable.py`, `row_operators.py`).
- `softbench::triton_softmax_opaque` and its backward (`torch.library.custom_op`): a compiler sees opaque calls.
- `softbench::triton_log_softmax` and others with `log_`: likewise.

The pairs of a function compute the same, and differ in what a compiler sees. On devices other than CUDA, the operators call torch's
own functions. They do so by a branch in their bodies, because a kernel registered for the CPU would fail in AOT tracing.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton

from ..common import registration, rows
from ..common.rows import Launch, apply_to_rows, canonical_dim, check_same, result_of_rows, row_inputs
from ..common.softmax import Softmax
from . import dispatch, row_operators
from .generic import tile_of_rows
from .interpreter import INTERPRETED
from .traceable import (
    are_long,
    calls_operator,
    launch_backward_traceable,
    launch_forward_traceable,
    launch_log_backward_traceable,
    launch_log_forward_traceable,
    packaging,
)

DTYPES = (*rows.DTYPES, torch.float64)


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """softmax(x) over `dim`, by softbench's Triton kernels: exp(x - max(x)) / sum(exp(x - max(x))).

    - Shapes: any, also with 0 dimensions or 0 elements, and with more than 2^31 elements. The result has x's shape.
    - Dtypes: float32, float16, bfloat16, float64. The result has x's dtype. 16-bit rows are computed in float32 and rounded once.
      Autocast changes nothing.
    - Strides: any. Rows and columns with adjacent elements are read in place, others are copied first. As in torch.softmax, the result is
      contiguous and never shares x's memory. Along another `dim` than the last, more than 4096 elements (2048 of a gradient) cost copies.
    - Gradients: of any order, by autograd; those of the first two orders run the kernels. torch.vmap is supported. Forward mode and
      torch.func's gradients are not supported, as for all custom operators of PyTorch.
    - Tracing: torch.compile (static and dynamic shapes, CUDA graphs), torch.export and AOTInductor see the kernels. Graphs of torch.compile
      call an operator for rows of more than 36 KiB and for other dimensions than the last. Packages have torch's function for such long
      rows. Ranges guard a dynamic size of `dim` (see `softbench.kernels.triton.traceable.SYMBOLIC_BYTES`). For export, give a size within
      one range.
    - Devices: CUDA. On others, and under TRITON_INTERPRET=1, it is `torch.softmax`.

    Raises:
        TypeError: another dtype, or a layout that is not strided.
        IndexError: `dim` is out of range.

    Source: the online normaliser of Milakov and Gimelshein (arXiv:1805.02867) for rows longer than a tile. The gradient with respect to x
    is y * (dy - sum(dy * y)).
    """
    result: Tensor = torch.ops.softbench.triton_softmax.default(x, dim)
    return result


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """log(softmax(x)) over `dim`, by softbench's Triton kernels: (x - max(x)) - log(sum(exp(x - max(x)))).

    Everything that `softmax` says holds for it too; on other devices it is `torch.log_softmax`. The gradient with respect to x is
    dy - exp(y) * sum(dy). Its own gradients are computed by torch, in at least float32.
    """
    result: Tensor = torch.ops.softbench.triton_log_softmax.default(x, dim)
    return result


@dataclass(frozen=True, slots=True)
class Function:
    """A function of rows, for which two pairs of operators are defined."""

    kernels: Softmax  # launched on tensors with data.
    torchs: Callable[..., Tensor]  # torch's function, for other devices.
    torchs_backward: Callable[..., Tensor]
    formulas: registration.Formulas


aten = torch.ops.aten  # not by names that somebody may have replaced
SOFTMAX = Function(dispatch.softmax, aten.softmax.int, aten._softmax_backward_data, registration.SOFTMAX)
LOG_SOFTMAX = Function(dispatch.log_softmax, aten.log_softmax.int, aten._log_softmax_backward_data, registration.LOG_SOFTMAX)


# torch finds the kernels that a compiler sees in the source of these four functions.
@triton_op("softbench::triton_softmax", mutates_args=())
def triton_softmax(x: Tensor, dim: int) -> Tensor:
    """The operator behind `softmax`."""
    launch = launch_forward_traceable if _tracing() else SOFTMAX.kernels.launch_forward
    return _forward(SOFTMAX, launch, x, dim)


@triton_op("softbench::triton_softmax_backward", mutates_args=())
def triton_softmax_backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    """dx = y * (dy - sum(dy * y)) over `dim`, contiguous. `dy` and `y` have one shape, dtype and device. Raises as `softmax`."""
    launch = launch_backward_traceable if _tracing() else SOFTMAX.kernels.launch_backward
    return _backward(SOFTMAX, launch, dy, y, dim)


@triton_op("softbench::triton_log_softmax", mutates_args=())
def triton_log_softmax(x: Tensor, dim: int) -> Tensor:
    """The operator behind `log_softmax`."""
    launch = launch_log_forward_traceable if _tracing() else LOG_SOFTMAX.kernels.launch_forward
    return _forward(LOG_SOFTMAX, launch, x, dim)


@triton_op("softbench::triton_log_softmax_backward", mutates_args=())
def triton_log_softmax_backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    """dx = dy - exp(y) * sum(dy) over `dim`; otherwise as `triton_softmax_backward`."""
    launch = launch_log_backward_traceable if _tracing() else LOG_SOFTMAX.kernels.launch_backward
    return _backward(LOG_SOFTMAX, launch, dy, y, dim)


def _tracing() -> bool:
    """Whether a compiler records the operator's body. False if the body runs on tensors with data.

    torch turns `wrap_triton` off for tensors with data. Modes, tensor types and `torch.compiler.is_compiling()` cannot tell: a compiled
    graph that falls back to the operator runs on real tensors.
    """
    return not INTERPRETED and _wrap_triton_enabled()


def _wrap_triton_enabled() -> bool:
    return wrap_triton(tile_of_rows) is not tile_of_rows


with contextlib.suppress(ImportError):  # newer torch: the same without the 4 us that wrapping a kernel takes
    from torch._library.triton import is_wrap_triton_enabled as _wrap_triton_enabled


def _forward(function: Function, launch: Launch, x: Tensor, dim: int) -> Tensor:
    axis, eager = _axis(function, x, dim), launch == function.kernels.launch_forward
    if x.device.type != "cuda" or (not eager and _is_left_to_inductor((x,), axis)):
        return function.torchs(x, axis)
    if eager:
        return apply_to_rows(launch, (x,), axis, columns=function.kernels.columns)
    called = _call_of_operator(function, (x,), axis)
    return apply_to_rows(launch, (x,), axis) if called is None else called


def _backward(function: Function, launch: Launch, dy: Tensor, y: Tensor, dim: int) -> Tensor:
    check_same(dy, y)
    axis, eager = _axis(function, y, dim), launch == function.kernels.launch_backward
    if y.device.type != "cuda" or (not eager and _is_left_to_inductor((dy, y), axis)):
        # torch 2.13's fake and real kernels lay out the gradient of strided dy differently.
        return function.torchs_backward(dy.contiguous(), y.contiguous(), axis, y.dtype)
    if eager:
        return apply_to_rows(launch, (dy, y), axis, columns=function.kernels.columns)
    called = _call_of_operator(function, (dy, y), axis)
    return apply_to_rows(launch, (dy, y), axis) if called is None else called


def _is_left_to_inductor(inputs: tuple[Tensor, ...], axis: int) -> bool:
    """Whether a graph has torch's function in place of the kernels: of long rows in a package, which cannot call an operator in Python."""
    return packaging() and are_long(inputs, axis)


def _call_of_operator(function: Function, inputs: tuple[Tensor, ...], axis: int) -> Tensor | None:
    """The result by an operator on rows, which launches what a compiler cannot launch; None if the kernels themselves are traced."""
    like = inputs[-1]
    static = all(isinstance(size, int) for size in like.shape)
    if like.dim() == 0 or (static and like.numel() == 0) or packaging():
        return None
    if axis < like.dim() - 1 and not _is_one(like.stride(axis)):
        which = "" if len(inputs) == 1 else "_backward"
        result: Tensor = getattr(torch.ops.softbench, f"triton_{function.kernels.name}_opaque{which}").default(*inputs, axis)
        return result
    if not calls_operator(inputs, axis):
        return None
    given = row_inputs(inputs, axis)
    out = row_operators.operators(function.kernels)[len(inputs) - 1](*given)
    return out if given[-1] is like else result_of_rows(out, like, axis)


def _is_one(number: int | torch.SymInt) -> bool:
    """Whether it is 1 for each shape, without a guard."""
    return isinstance(number, int) and number == 1


def _axis(function: Function, x: Tensor, dim: int) -> int:
    """`dim` as a non-negative index. Raises as `softmax`."""
    if x.dtype not in DTYPES:
        raise TypeError(f"{function.kernels.name} of {x.dtype}: the kernels take float32, float16, bfloat16 and float64")
    if x.layout is not torch.strided:
        raise TypeError(f"{function.kernels.name} of a tensor of layout {x.layout}: the kernels take strided ones")
    return canonical_dim(dim, x.dim())


def _define_opaque(function: Function) -> None:
    """Defines the pair of `torch.library.custom_op`: as the traced pair, with `_opaque` after the function's name."""
    name = f"softbench::triton_{function.kernels.name}_opaque"

    @custom_op(name, mutates_args=())
    def forward(x: Tensor, dim: int) -> Tensor:
        return _forward(function, function.kernels.launch_forward, x, dim)

    @custom_op(f"{name}_backward", mutates_args=())
    def backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
        return _backward(function, function.kernels.launch_backward, dy, y, dim)

    @forward.register_fake
    def _(x: Tensor, dim: int) -> Tensor:
        _axis(function, x, dim)
        return x.new_empty(x.shape)

    @backward.register_fake
    def _(dy: Tensor, y: Tensor, dim: int) -> Tensor:
        check_same(dy, y)
        _axis(function, y, dim)
        return y.new_empty(y.shape)


def _register(name: str, formulas: registration.Formulas) -> None:
    """Registers autograd, vmap and flops of the operators `name` and `name`_backward."""
    forward, backward = (getattr(torch.ops.softbench, which) for which in (name, f"{name}_backward"))
    gradient, second = registration.gradient_of_forward(backward.default), registration.gradient_of_backward(backward.default, formulas)
    torch.library.register_autograd(f"softbench::{name}", gradient, setup_context=registration.save_output)
    torch.library.register_autograd(f"softbench::{name}_backward", second, setup_context=registration.save_inputs)
    registration.register_vmap_and_flops(forward, backward)


for _function in (SOFTMAX, LOG_SOFTMAX):
    _define_opaque(_function)
    for _kind in ("", "_opaque"):
        _register(f"triton_{_function.kernels.name}{_kind}", _function.formulas)
