"""The CUDA C++ kernels as PyTorch operators, differentiable twice.

- `softbench::cuda_softmax` and `softbench::cuda_softmax_backward`
- `softbench::cuda_log_softmax` and `softbench::cuda_log_softmax_backward`

Compilers see one opaque call. On devices other than CUDA, the operators are torch's own functions.

Where the extension in C++ is built, it has their kernel and autograd (`softbench.kernels.common.extension`). This file has both in
Python, which runs otherwise, and where C++ does not launch. They are defined in a `torch.library.Library`, because
`torch.library.custom_op` runs more Python in each call.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd import forward_ad

from ..common import extension, registration, rows
from ..common.rows import apply_to_rows, canonical_dim, check_same
from ..common.softmax import NARROW, Softmax
from . import launch

DTYPES = (*rows.DTYPES, torch.float64)

_library = torch.library.Library("softbench", "FRAGMENT")


def softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """softmax(x) over `dim`, by softbench's CUDA C++ kernels: exp(x - max(x)) / sum(exp(x - max(x))).

    - Shapes: any, also with 0 dimensions or 0 elements. The result has x's shape. More than 2^31 elements are allowed.
    - Dtypes: float32, float16 and bfloat16. The result has x's dtype, rounded once from float32. For 16-bit rows, `dtype=torch.float32`
      gives the float32 result without rounding, as torch.softmax does. It casts nothing in memory. Autocast changes nothing.
    - Strides: any. Rows and columns with adjacent elements are read in place, others are copied first. The result is contiguous, as in
      torch.softmax, and does not share x's memory.
    - Gradients: twice through kernels, and further by autograd. The gradient of x has x's dtype, also if the result is wider. torch.vmap is
      supported; forward mode and torch.func's gradients are not.
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
    result: Tensor = torch.ops.softbench.cuda_softmax.default(x, dim, dtype)
    return result


def log_softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """log(softmax(x)) over `dim`, by softbench's CUDA C++ kernels: (x - max(x)) - log(sum(exp(x - max(x)))).

    Everything that `softmax` says holds for it too. The gradient with respect to x is dy - exp(y) * sum(dy). Its own gradients are computed
    by torch, in float32.
    """
    result: Tensor = torch.ops.softbench.cuda_log_softmax.default(x, dim, dtype)
    return result


class Operators:
    """The pair of operators of a function, `softbench::cuda_NAME` and its backward; and their kernels for each kind of device."""

    def __init__(
        self,
        function: Softmax,
        formulas: registration.Formulas,
        torchs: Callable[..., Tensor],
        torchs_backward: Callable[..., Tensor],
    ) -> None:
        """`torchs` and `torchs_backward` are torch's functions for other devices, with the arguments of torch.softmax and its backward."""
        self.function, self.torchs, self.torchs_backward = function, torchs, torchs_backward
        name = f"cuda_{function.name}"
        for schema in (
            f"{name}(Tensor x, int dim, ScalarType? dtype=None) -> Tensor",
            f"{name}_backward(Tensor dy, Tensor y, int dim, ScalarType? dtype=None) -> Tensor",
        ):
            _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        packets = getattr(torch.ops.softbench, name), getattr(torch.ops.softbench, f"{name}_backward")
        forward, backward = (packet.default for packet in packets)
        first = _autograd_kernel(forward, 1, registration.save_output, registration.gradient_of_forward(backward))
        second = _autograd_kernel(backward, 2, registration.save_inputs, registration.gradient_of_backward(backward, formulas))
        for which, kernel, fallback, fake, autograd in (
            (name, self.forward, self.forward_fallback, self.forward_fake, first),
            (f"{name}_backward", self.backward, self.backward_fallback, self.backward_fake, second),
        ):
            _library.impl(which, kernel, "CUDA")
            _library.impl(which, fallback, "CompositeExplicitAutograd")
            _library.impl(which, autograd, "Autograd", with_keyset=True)
            torch.library.register_fake(f"softbench::{which}", fake, lib=_library)
        registration.register_vmap_and_flops(*packets, _library)
        extension.implement(function.name)

    def forward(self, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        extension.load()
        return apply_to_rows(self.function.launch_forward, (x,), self._forward_axis(x, dim, dtype), dtype, self.function.columns)

    def backward(self, dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        """dx over `dim`, contiguous. `dtype`: the 16-bit dtype of x, if y is its float32 result."""
        return apply_to_rows(self.function.launch_backward, (dy, y), self._backward_axis(dy, y, dim, dtype), dtype, self.function.columns)

    def forward_fallback(self, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.torchs(x, self._forward_axis(x, dim, dtype), dtype=dtype)

    def backward_fallback(self, dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        axis = self._backward_axis(dy, y, dim, dtype)
        dx = self.torchs_backward(dy, y, axis, y.dtype)  # converts to another dtype only on CUDA
        return dx if dtype is None else dx.to(dtype)

    def forward_fake(self, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        self._forward_axis(x, dim, dtype)
        return x.new_empty(x.shape, dtype=dtype)

    def backward_fake(self, dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        self._backward_axis(dy, y, dim, dtype)
        return y.new_empty(y.shape, dtype=dtype)

    def _forward_axis(self, x: Tensor, dim: int, dtype: torch.dtype | None) -> int:
        """`dim` as a non-negative index. Raises as `softmax` if the arguments do not fit."""
        if dtype is not None and dtype != x.dtype and not (dtype is torch.float32 and x.dtype in NARROW):
            raise TypeError(
                f"{self.function.name} of {x.dtype} as {dtype}: "
                "the result has the input's dtype, or is float32 where that is float16 or bfloat16"
            )
        return self._axis(x, dim)

    def _backward_axis(self, dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None) -> int:
        check_same(dy, y)
        if dtype is not None and dtype != y.dtype and not (y.dtype is torch.float32 and dtype in NARROW):
            raise TypeError(f"dx as {dtype} of y as {y.dtype}: dx has y's dtype, or is float16 or bfloat16 where that is float32")
        return self._axis(y, dim)

    def _axis(self, x: Tensor, dim: int) -> int:
        if x.dtype not in rows.DTYPES and (x.is_cuda or x.dtype not in DTYPES):
            kernels = "the kernels take float32, float16 and bfloat16; float64 is torch's elsewhere"
            raise TypeError(f"{self.function.name} of {x.dtype} on {x.device}: {kernels}")
        if x.layout is not torch.strided:
            raise TypeError(f"{self.function.name} of a tensor of layout {x.layout}: the kernels take strided ones")
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


aten = torch.ops.aten  # not by names that somebody may have replaced
SOFTMAX = Operators(launch.softmax, registration.SOFTMAX, aten.softmax.int, aten._softmax_backward_data)
LOG_SOFTMAX = Operators(launch.log_softmax, registration.LOG_SOFTMAX, aten.log_softmax.int, aten._log_softmax_backward_data)
