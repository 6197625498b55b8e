"""The CUDA C++ softmax as PyTorch operators, differentiable twice: `softbench::cuda_softmax` and `softbench::cuda_softmax_backward`.

To a compiler they are calls of unknown content. Elsewhere than on CUDA they are torch's own softmax.

They are defined in a `torch.library.Library`, with autograd's kernel written out here (`_recording`), and not by
`torch.library.custom_op`, which runs more Python at every call. Microseconds a call where the kernel only allocates the result (1.5), on
a CPU with torch 2.13: 2.9 against 4.7 in inference mode, 5.2 against 9.0 where no gradient is asked for, 11 against 17 where one is.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
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

    - Shapes: any, of 0 dimensions and of 0 elements, too; the result has x's. More than 2^31 elements are fine.
    - Dtypes: float32, float16, bfloat16; the result has x's, rounded once from float32. `dtype=torch.float32` gives the float32 result of
      16-bit rows unrounded, as torch.softmax's `dtype` does, and casts nothing in memory. Autocast changes nothing.
    - Strides: any. Rows whose elements are adjacent are read where they are, others are copied first. The result is contiguous and never
      shares x's memory, as torch.softmax has it; a `dim` that is not the last costs a copy to get there.
    - Gradients: twice through kernels and beyond, by autograd; those of x have x's dtype, and where the result is wider they are converted
      to it, in a pass of its own. torch.vmap is supported; forward mode and torch.func's gradients are not.
    - Tracing: torch.compile (static and dynamic shapes, CUDA graphs) and torch.export see one call, whatever the shape.
    - Devices: CUDA; the kernels are built by nvcc at the first call there (`build.py`). On any other it is `torch.softmax`, and takes
      float64, too.

    Raises:
        TypeError: another dtype, or one that the result cannot have, or a layout other than strided.
        IndexError: `dim` is out of range.
        BuildError: the kernels cannot be compiled.
        RuntimeError: the launch failed.

    Source: the online normaliser of Milakov and Gimelshein (arXiv:1805.02867) for rows beyond a CTA's registers; the gradient with
    respect to x is y * (dy - sum(dy * y)). `softmax.cu` has the tiers.
    """
    result: Tensor = _FORWARD(x, dim, dtype)
    return result


_FORWARD = torch.ops.softbench.cuda_softmax.default
_BACKWARD = torch.ops.softbench.cuda_softmax_backward.default


def _forward(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return apply_to_rows(launch_forward, (x,), _forward_axis(x, dim, dtype), dtype)


def _backward(dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """dx = y * (dy - sum(dy * y)) over `dim`, contiguous, of y's dtype or, where y is the float32 softmax of 16 bits, of those."""
    dx = apply_to_rows(launch_backward, (dy, y), _backward_axis(dy, y, dim, dtype))
    return dx if dtype is None else dx.to(dtype)


def _forward_elsewhere(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.softmax(x, _forward_axis(x, dim, dtype), dtype=dtype)


def _backward_elsewhere(dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    axis = _backward_axis(dy, y, dim, dtype)
    dx: Tensor = torch.ops.aten._softmax_backward_data(dy, y, axis, y.dtype)  # its own conversion is CUDA's only
    return dx if dtype is None else dx.to(dtype)


def _forward_fake(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    _forward_axis(x, dim, dtype)
    return x.new_empty(x.shape, dtype=dtype)


def _backward_fake(dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    _backward_axis(dy, y, dim, dtype)
    return y.new_empty(y.shape, dtype=dtype)


def _forward_axis(x: Tensor, dim: int, dtype: torch.dtype | None) -> int:
    """`dim` from 0 up, when the arguments are fit for softmax; raises as `softmax`."""
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


def _recording(
    operator: Any, tensors: int, keep: Callable[..., None], gradient: Callable[..., registration.Gradients]
) -> Callable[..., Tensor]:
    """Autograd's kernel of an operator: on to the next kernel, within an autograd.Function only where there is something to record.

    `torch.library.register_autograd` makes the same with more Python. The next kernel need not hide what it does from autograd: either
    no tensor asks for a gradient, or the Function has turned recording off.
    """

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Tensor:
            *inputs, keys = given  # keys last: `ctx.needs_input_grad` counts from the first
            output: Tensor = operator.redispatch(keys, *inputs)
            keep(ctx, tuple(inputs), output)
            return output

        @staticmethod
        def backward(ctx: Any, of_output: Tensor) -> registration.Gradients:
            return *gradient(ctx, of_output), None

    def kernel(keys: Any, *inputs: Any) -> Tensor:
        wanted = inputs[0].requires_grad or inputs[tensors - 1].requires_grad
        # Under forward mode, too: it is an error there, where the kernels would lose a tangent.
        record = (wanted and torch.is_grad_enabled()) or forward_ad._current_level >= 0
        keys = keys & torch._C._after_autograd_keyset
        result: Tensor = Recorded.apply(*inputs, keys) if record else operator.redispatch(keys, *inputs)
        return result

    return kernel


for _name, _kernel, _elsewhere, _fake in (
    ("cuda_softmax", _forward, _forward_elsewhere, _forward_fake),
    ("cuda_softmax_backward", _backward, _backward_elsewhere, _backward_fake),
):
    _library.impl(_name, _kernel, "CUDA")
    _library.impl(_name, _elsewhere, "CompositeExplicitAutograd")
    torch.library.register_fake(f"softbench::{_name}", _fake, lib=_library)
_library.impl(
    "cuda_softmax",
    _recording(_FORWARD, 1, registration.save_output, registration.gradient_of_forward(_BACKWARD)),
    "Autograd",
    with_keyset=True,
)
_library.impl(
    "cuda_softmax_backward",
    _recording(_BACKWARD, 2, registration.save_inputs, registration.gradient_of_backward(_BACKWARD)),
    "Autograd",
    with_keyset=True,
)
registration.register_vmap_and_flops(torch.ops.softbench.cuda_softmax, torch.ops.softbench.cuda_softmax_backward, _library)
