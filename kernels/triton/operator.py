"""Softmax and log-softmax as PyTorch operators: differentiable twice, and traced by torch.compile, torch.export and AOTInductor.

- `softbench::triton_softmax_opaque` and its backward: a compiler sees opaque calls (`softbench.kernels.common.operator`).
- `softbench::triton_softmax` and its backward (`torch.library.triton_op`): a compiler sees the kernels themselves, or a call of the opaque
  operator where it cannot launch them (`traceable.py`).
- `softbench::triton_log_softmax` and others with `log_`: likewise.

The pairs of a function compute the same, and differ in what a compiler sees. On devices other than CUDA, the operators call torch's
own functions. Those that are traced do so in their bodies, because a kernel registered for the CPU would fail in AOT tracing.
"""

from functools import partial

import torch
from torch import Tensor
from torch._library.triton import is_wrap_triton_enabled
from torch.library import triton_op

from ..common import registration
from ..common.operator import Operators
from ..common.rows import Launch, apply_to_rows, check_same
from . import dispatch
from .interpreter import INTERPRETED
from .traceable import (
    are_long,
    calls_operator,
    launch_backward,
    launch_forward,
    packaging,
)


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


SOFTMAX = Operators("triton_softmax_opaque", dispatch.softmax)
LOG_SOFTMAX = Operators("triton_log_softmax_opaque", dispatch.log_softmax)


# torch finds the kernels that a compiler sees in the source of these four functions.
@triton_op("softbench::triton_softmax", mutates_args=())
def triton_softmax(x: Tensor, dim: int) -> Tensor:
    """The operator behind `softmax`."""
    return _traced(SOFTMAX, launch_forward, (x,), dim) if _tracing() else SOFTMAX.eager((x,), dim)


@triton_op("softbench::triton_softmax_backward", mutates_args=())
def triton_softmax_backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    """dx = y * (dy - sum(dy * y)) over `dim`, contiguous. `dy` and `y` have one shape, dtype and device. Raises as `softmax`."""
    return _traced(SOFTMAX, launch_backward, (dy, y), dim) if _tracing() else SOFTMAX.eager((dy, y), dim)


@triton_op("softbench::triton_log_softmax", mutates_args=())
def triton_log_softmax(x: Tensor, dim: int) -> Tensor:
    """The operator behind `log_softmax`."""
    return _traced(LOG_SOFTMAX, launch_forward, (x,), dim) if _tracing() else LOG_SOFTMAX.eager((x,), dim)


@triton_op("softbench::triton_log_softmax_backward", mutates_args=())
def triton_log_softmax_backward(dy: Tensor, y: Tensor, dim: int) -> Tensor:
    """dx = dy - exp(y) * sum(dy) over `dim`; otherwise as `triton_softmax_backward`."""
    return _traced(LOG_SOFTMAX, launch_backward, (dy, y), dim) if _tracing() else LOG_SOFTMAX.eager((dy, y), dim)


def _tracing() -> bool:
    """Whether a compiler records the operator's body. False if the body runs on tensors with data.

    torch turns `wrap_triton` off for tensors with data. Modes, tensor types and `torch.compiler.is_compiling()` cannot tell: a compiled
    graph that falls back to the operator runs on real tensors.
    """
    return not INTERPRETED and bool(is_wrap_triton_enabled())


def _traced(operators: Operators, launch: Launch, inputs: tuple[Tensor, ...], dim: int) -> Tensor:
    """What a compiler records of a forward of (x,) or a backward of (dy, y): the kernels, an opaque call, or torch's function.

    An opaque call launches what a compiler cannot launch. A package cannot make it, as it calls no Python.
    """
    axis, like = operators.axis(inputs[-1], dim), inputs[-1]
    check_same(inputs[0], like)
    packaged = packaging()
    if not like.is_cuda or (packaged and are_long(inputs, axis)):
        return operators.eager(inputs, axis, kernels=False)
    empty = like.dim() == 0 or (all(isinstance(size, int) for size in like.shape) and like.numel() == 0)
    columns = axis < like.dim() - 1 and not _is_one(like.stride(axis))
    if packaged or empty or not (columns or calls_operator(inputs, axis)):
        return apply_to_rows(partial(launch, log=operators is LOG_SOFTMAX), inputs, axis)
    called: Tensor = operators.unrecorded[len(inputs) - 1](*inputs, axis)
    return called


def _is_one(number: int | torch.SymInt) -> bool:
    """Whether it is 1 for each shape, without a guard."""
    return isinstance(number, int) and number == 1


for _operators in (SOFTMAX, LOG_SOFTMAX):
    _forward, _backward = (getattr(torch.ops.softbench, f"triton_{_operators.function.name}{which}") for which in ("", "_backward"))
    _gradient = registration.gradient_of_forward(_backward.default)
    _second = registration.gradient_of_backward(_backward.default, _operators.formulas)
    torch.library.register_autograd(_forward.default, _gradient, setup_context=registration.save_output)
    torch.library.register_autograd(_backward.default, _second, setup_context=registration.save_inputs)
    registration.register_vmap_and_flops(_forward, _backward)
