"""Pairs of operators of softmax and log_softmax with a kernel in Python: gradients of two orders, fake kernels, vmap, flops and DTensor.

Compilers see opaque calls. The operators are defined in a `torch.library.Library`, because `torch.library.custom_op` runs more Python in a
call.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd import forward_ad

from . import registration, rows
from .rows import apply_to_rows, canonical_dim, check_same
from .softmax import NARROW, Softmax

DTYPES = (*rows.DTYPES, torch.float64)

_library = torch.library.Library("softbench", "FRAGMENT")


class Operators:
    """The pair of operators `softbench::NAME` and `softbench::NAME_backward`, and their kernels for each kind of device.

    Their overloads `unrecorded` have no autograd. They are for compiled graphs, where the Python of autograd would only take time.
    """

    def __init__(self, name: str, function: Softmax, dtypes: tuple[torch.dtype, ...] = DTYPES) -> None:
        """`function` and `dtypes` are those on a CUDA device. On others the operators are torch's functions, of all dtypes."""
        self.function, self.dtypes = function, dtypes
        self.formulas, self.torchs, self.torchs_backward = OF_FUNCTION[function.name]
        for overload in ("", ".unrecorded"):
            for schema in (f"{name}{overload}(Tensor x", f"{name}_backward{overload}(Tensor dy, Tensor y"):
                _library.define(f"{schema}, int dim, ScalarType? dtype=None) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
        packets = getattr(torch.ops.softbench, name), getattr(torch.ops.softbench, f"{name}_backward")
        forward, backward = (packet.default for packet in packets)
        self.unrecorded = tuple(packet.unrecorded for packet in packets)
        first = _autograd_kernel(forward, 1, registration.save_output, registration.gradient_of_forward(backward))
        second = _autograd_kernel(backward, 2, registration.save_inputs, registration.gradient_of_backward(backward, self.formulas))
        for which, kernel, fallback, fake, autograd in (
            (name, self.forward, self.forward_fallback, self.forward_fake, first),
            (f"{name}_backward", self.backward, self.backward_fallback, self.backward_fake, second),
        ):
            for overload in (which, f"{which}.unrecorded"):
                _library.impl(overload, kernel, "CUDA")
                _library.impl(overload, fallback, "CompositeExplicitAutograd")
                torch.library.register_fake(f"softbench::{overload}", fake, lib=_library)
            _library.impl(which, autograd, "Autograd", with_keyset=True)
            _library.impl(f"{which}.unrecorded", torch.library.fallthrough_kernel, "Autograd")
        registration.register_vmap_and_flops(*packets, _library)

    def eager(self, inputs: tuple[Tensor, ...], dim: int, *, kernels: bool = True) -> Tensor:
        """What the operator of (x,) or (dy, y) computes, without a call of it. `kernels`: by ours, on a CUDA device."""
        ours = kernels and inputs[0].is_cuda
        passes: dict[int, Callable[..., Tensor]] = (
            {1: self.forward, 2: self.backward} if ours else {1: self.forward_fallback, 2: self.backward_fallback}
        )
        return passes[len(inputs)](*inputs, dim)

    def forward(self, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return apply_to_rows(self.function.launch_forward, (x,), self._forward_axis(x, dim, dtype), dtype, self.function.columns)

    def backward(self, dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        """dx over `dim`, contiguous. `dtype`: the 16-bit dtype of x, if y is its float32 result."""
        return apply_to_rows(self.function.launch_backward, (dy, y), self._backward_axis(dy, y, dim, dtype), dtype, self.function.columns)

    def forward_fallback(self, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.torchs(x, self._forward_axis(x, dim, dtype), dtype=dtype)

    def backward_fallback(self, dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        axis = self._backward_axis(dy, y, dim, dtype)
        # torch 2.13's fake and real kernels lay out the gradient of strided dy differently. They convert to another dtype only on CUDA.
        dx = self.torchs_backward(dy.contiguous(), y.contiguous(), axis, y.dtype)
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
        return self.axis(x, dim)

    def _backward_axis(self, dy: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None) -> int:
        check_same(dy, y)
        if dtype is not None and dtype != y.dtype and not (y.dtype is torch.float32 and dtype in NARROW):
            raise TypeError(f"dx as {dtype} of y as {y.dtype}: dx has y's dtype, or is float16 or bfloat16 where that is float32")
        return self.axis(y, dim)

    def axis(self, x: Tensor, dim: int) -> int:
        """`dim` as a non-negative index. Raises TypeError and IndexError if `x` or `dim` do not fit."""
        if x.dtype not in (self.dtypes if x.is_cuda else DTYPES):
            taken = (
                "float32, float16, bfloat16 and float64"
                if self.dtypes == DTYPES
                else "float32, float16 and bfloat16; float64 is torch's elsewhere"
            )
            raise TypeError(f"{self.function.name} of {x.dtype} on {x.device}: the kernels take {taken}")
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
OF_FUNCTION = {
    "softmax": (registration.SOFTMAX, aten.softmax.int, aten._softmax_backward_data),
    "log_softmax": (registration.LOG_SOFTMAX, aten.log_softmax.int, aten._log_softmax_backward_data),
}
"""The gradients of a function's backward, and torch's function and its backward, for other devices."""
