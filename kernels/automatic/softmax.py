"""`softmax` and `log_softmax` by the fastest kernels that work here. `choice.py` has the rule."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..common.extension import entries
from . import choice
from .choice import Calls

Call = Callable[[Tensor, int, torch.dtype | None], Tensor]
Key = tuple[torch.device, torch.dtype, torch.dtype | None, bool]
"""A class of calls of one function: device, dtype of x, dtype of the result (None: that of x), and whether `dim` is the last dimension."""


def softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """softmax(x) over `dim`: exp(x - max(x)) / sum(exp(x - max(x))), by the fastest kernels that work here.

    - Shapes, strides and gradients: any shape and strides, differentiable twice. The result is contiguous and has x's shape.
    - Dtypes: float32, float16 and bfloat16 by our kernels, others by torch. The result has x's dtype, or `dtype`. Autocast changes nothing.
    - Devices: all of torch's. `softbench.kernels.which(x)` says what runs, and why.
    - torch.compile traces it. Forward mode and torch.func's gradients work where torch runs.

    Raises:
        IndexError: `dim` is out of range.
        RuntimeError: the launch failed, or torch has no softmax of this dtype.
    """
    if not torch.compiler.is_compiling() and (y := entries.softmax(x, dim, dtype)) is not None:
        result: Tensor = y
        return result
    return _SOFTMAX.call(x, dim, dtype)(x, dim, dtype)


def log_softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """log(softmax(x)) over `dim`; otherwise as `softmax`."""
    if not torch.compiler.is_compiling() and (y := entries.log_softmax(x, dim, dtype)) is not None:
        result: Tensor = y
        return result
    return _LOG_SOFTMAX.call(x, dim, dtype)(x, dim, dtype)


class Function:
    """A function with what this process calls for each class of calls."""

    def __init__(self, name: str, torchs: Callable[[Tensor, int, bool], Tensor]) -> None:
        """`torchs` is torch's function below autocast, with x, `dim`, and whether 16 bits become float32."""
        self.name, self.torchs = name, torchs
        self.calls: dict[Key, Call] = {}
        choice.FORGETS.append(lambda: self.calls.clear())

    def call(self, x: Tensor, dim: int, dtype: torch.dtype | None) -> Call:
        """The function for this class of calls, which is decided at the first of them."""
        key = (x.device, x.dtype, dtype, dim == -1 or dim == x.dim() - 1)  # as `is_last`, without a call
        return self.calls.get(key) or self.decide(key)

    def decide(self, key: Key) -> Call:
        """Decide a class of calls for this process."""
        found = self.calls[key] = getattr(self, f"by_{_decided(self.name, *key)}")()
        return found

    def by_cuda(self) -> Call:
        """The operator of the CUDA kernels."""
        from ..cuda import operator

        found: Call = getattr(operator, self.name)
        return found

    def by_triton(self) -> Call:
        """The operator of the Triton kernels."""
        from ..triton import operator

        function: Callable[[Tensor, int], Tensor] = getattr(operator, self.name)
        return lambda x, dim, dtype: function(x, dim)

    def by_torch(self) -> Call:
        """torch's function. It is called below autocast, whose float32 result our kernels do not have."""

        def run(x: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
            # Without a cast in memory. torch 2.11 refuses it for bfloat16: "conversion is supported for Half type only".
            widens = x.is_cuda and x.dtype is torch.float16 and dtype is torch.float32
            given = x if widens or dtype is None else x.to(dtype)
            return self.torchs(given.contiguous(), dim, widens)

        return run


@torch.compiler.assume_constant_result
def _decided(function: str, device: torch.device, dtype: torch.dtype, result: torch.dtype | None, last: bool) -> str:
    """The kernels of a class of calls. torch.compile takes the answer, and does not trace how it is found."""
    return choice.choice(Calls(function, device, dtype, result, last)).kernels


_SOFTMAX = Function("softmax", torch.ops.aten._softmax.default)
_LOG_SOFTMAX = Function("log_softmax", torch.ops.aten._log_softmax.default)
