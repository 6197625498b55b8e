"""The CUDA C++ softmax as PyTorch operators: `softbench::cuda_softmax` and `softbench::cuda_softmax_backward`, differentiable twice.

Compilers see one opaque call. On devices other than CUDA, the operators are torch's own softmax.

The operators are defined in a `torch.library.Library`, with their autograd kernel in this file (`_autograd_kernel`).
`torch.library.custom_op` runs more Python in each call. Microseconds a call, where the kernel only allocates the result (which takes 1.5),
on a CPU with torch 2.13:

                          this file  custom_op
inference mode                  2.9        4.7
no gradient is required         5.2        9.0
a gradient is required         11         17
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd import forward_ad

from ..common import registration, rows
from ..common.rows import apply_to_rows, canonical_dim, check_same
from .launch import launch_backward, launch_forward

NARROW = (torch.float16, torch.bfloat16)
DTYPES = (*rows.DTYPES, torch.float64)

_library = torch.library.Library("softbench", "FRAGMENT")
for _schema in (
    "cuda_softmax(Tensor x, int dim, ScalarType? dtype=None) -> Tensor",
    "cuda_softmax_backward(Tensor dy, Tensor y, int dim, ScalarType? dtype=None) -> Tensor",
):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


def softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """softmax(x) over `dim`, by softbench's CUDA C++ kernels: exp(x - max(x)) / sum(exp(x - max(x))).

    - Shapes: any, also with 0 dimensions or 0 elements. The result has x's shape. More than 2^31 elements are allowed.
    - Dtypes: float32, float16 and bfloat16. The result has x's dtype, rounded once from float32. For 16-bit rows, `dtype=torch.float32`
      gives the float32 result without rounding, as torch.softmax does. It casts nothing in memory. Autocast changes nothing.
    - Strides: any. Rows with adjacent elements are read in place, others are copied first. The result is contiguous, as in torch.softmax,
      and does not share x's memory. Any `dim` but the last costs a copy.
    - Gradients: twice through kernels, and further by autograd. The gradient of x has x's dtype. If the result is wider, a separate pass
      converts the gradient. torch.vmap is supported; forward mode and torch.func's gradients are not.
    - Tracing: torch.compile (static and dynamic shapes, CUDA graphs) and torch.export see one call, for any shape.
    - Devices: CUDA, where nvcc builds the kernels at the first call (`build.py`). On other devices it is `torch.softmax`, also for float64.

    Raises:
        TypeError: another dtype, a dtype that the result cannot have, or a layout other than strided.
        IndexError: `dim` is out of range.
        BuildError: the kernels cannot be compiled.
        RuntimeError: the launch failed.

    Source: the online normalizer of Milakov and Gimelshein (arXiv:1805.02867), for rows that do not fit in a CTA's registers. The gradient
    with respect to x is y * (dy - sum(dy * y)). `softmax.cu` describes the kernels.
    """
    result: Tensor = _FORWARD(x, dim, dtype)
    return result


_FORWARD = torch.ops.softbench.cuda_softmax.default
_BACKWARD = torch.ops.softbench.cuda_softmax_backward.default


def _forward(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return apply_to_rows(launch_forward, (x,), _forward_axis(x, dim, dtype), dtype)


def _backward(dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """dx = y * (dy - sum(dy * y)) over `dim`, contiguous. `dtype`: the 16-bit dtype of x, if y is its float32 softmax."""
    dx = apply_to_rows(launch_backward, (dy, y), _backward_axis(dy, y, dim, dtype))
    return dx if dtype is None else dx.to(dtype)


def _forward_fallback(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.softmax(x, _forward_axis(x, dim, dtype), dtype=dtype)


def _backward_fallback(dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    axis = _backward_axis(dy, y, dim, dtype)
    dx: Tensor = torch.ops.aten._softmax_backward_data(dy, y, axis, y.dtype)  # converts to another dtype only on CUDA
    return dx if dtype is None else dx.to(dtype)


def _forward_fake(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    _forward_axis(x, dim, dtype)
    return x.new_empty(x.shape, dtype=dtype)


def _backward_fake(dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    _backward_axis(dy, y, dim, dtype)
    return y.new_empty(y.shape, dtype=dtype)


def _forward_axis(x: Tensor, dim: int, dtype: torch.dtype | None) -> int:
    """`dim` as a non-negative index. Raises as `softmax` if the arguments do not fit."""
    if dtype is not None and dtype != x.dtype and not (dtype is torch.float32 and x.dtype in NARROW):
        raise TypeError(
            f"softmax of {x.dtype} as {dtype}: the result has the input's dtype, or is float32 where that is float16 or bfloat16"
        )
    return _axis(x, dim)


def _backward_axis(dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None) -> int:
    check_same(dy, y)
    if dtype is not None and dtype != y.dtype and not (y.dtype is torch.float32 and dtype in NARROW):
        raise TypeError(f"dx as {dtype} of y as {y.dtype}: dx has y's dtype, or is float16 or bfloat16 where that is float32")
    return _axis(y, dim)


def _axis(x: Tensor, dim: int) -> int:
    if x.dtype not in rows.DTYPES and (x.is_cuda or x.dtype not in DTYPES):
        raise TypeError(f"softmax of {x.dtype} on {x.device}: the kernels take float32, float16 and bfloat16; float64 is torch's elsewhere")
    if x.layout is not torch.strided:
        raise TypeError(f"softmax of a tensor of layout {x.layout}: the kernels take strided ones")
    return canonical_dim(dim, x.dim())


def _autograd_kernel(
    operator: OpOverload, tensors: int, setup_context: Callable[..., None], gradient: Callable[..., registration.Gradients]
) -> Callable[..., Tensor]:
    """The autograd kernel of an operator: it calls the next kernel, inside an autograd.Function only if there is a gradient to record.

    `tensors`: how many of the inputs are tensors; they come first. `torch.library.register_autograd` does the same with more Python.
    The next kernel may run with autograd on, because no tensor requires a gradient then. Otherwise, the Function turns autograd off.
    """

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: registration.Context, *given: Any) -> Tensor:
            *inputs, keys = given  # keys are last, because `ctx.needs_input_grad` counts from the first input
            output: Tensor = operator.redispatch(keys, *inputs)
            setup_context(ctx, tuple(inputs), output)
            return output

        @staticmethod
        def backward(ctx: registration.Context, output_gradient: Tensor) -> registration.Gradients:
            return *gradient(ctx, output_gradient), None

    def kernel(keys: torch._C.DispatchKeySet, *inputs: Any) -> Tensor:
        requires_grad = inputs[0].requires_grad or inputs[tensors - 1].requires_grad
        # In forward mode, the Function raises an error. Without it, the kernels would lose a tangent.
        record = (requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0
        keys = keys & torch._C._after_autograd_keyset
        result: Tensor = Recorded.apply(*inputs, keys) if record else operator.redispatch(keys, *inputs)
        return result

    return kernel


for _name, _kernel, _fallback, _fake in (
    ("cuda_softmax", _forward, _forward_fallback, _forward_fake),
    ("cuda_softmax_backward", _backward, _backward_fallback, _backward_fake),
):
    _library.impl(_name, _kernel, "CUDA")
    _library.impl(_name, _fallback, "CompositeExplicitAutograd")
    torch.library.register_fake(f"softbench::{_name}", _fake, lib=_library)
_library.impl(
    "cuda_softmax",
    _autograd_kernel(_FORWARD, 1, registration.save_output, registration.gradient_of_forward(_BACKWARD)),
    "Autograd",
    with_keyset=True,
)
_library.impl(
    "cuda_softmax_backward",
    _autograd_kernel(_BACKWARD, 2, registration.save_inputs, registration.gradient_of_backward(_BACKWARD)),
    "Autograd",
    with_keyset=True,
)
registration.register_vmap_and_flops(torch.ops.softbench.cuda_softmax, torch.ops.softbench.cuda_softmax_backward, _library)
