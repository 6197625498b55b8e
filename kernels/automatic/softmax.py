"""`softmax` and `log_softmax` by the fastest kernels that work here. `choice.py` has the rule."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ..common.extension import entries
from ..common.rows import DTYPES, is_strided, transformed
from . import choice
from .choice import Calls

Call = Callable[[Tensor, int, torch.dtype | None], Tensor]
Key = tuple[torch.device, torch.dtype, torch.dtype | None, bool, bool]
"""A class of calls of one function: device, dtype of x, dtype of the result (None: that of x), and as in `Calls` where `dim` lies."""


def softmax(
    input: Tensor, dim: int | None = -1, dtype: torch.dtype | None = None, out: Tensor | None = None, invariant: bool = False,
    _stacklevel: int = 3,
) -> Tensor:  # fmt: skip
    """softmax(input) over `dim`: exp(x - max(x)) / sum(exp(x - max(x))), by the fastest kernels that work here. It is called as torch's.

    - Shapes, strides and gradients: any shape and strides, differentiable twice by our kernels. The result is contiguous and has the
      input's shape. dim=None is torch's implicit choice, with its warning.
    - Dtypes: float32, float16 and bfloat16 by our kernels, others by torch. The result has the input's dtype, or `dtype`. Under autocast
      it is float32, as torch has it, and our CUDA kernels write it without a cast of the input.
    - Devices: all of torch's. `softbench.kernels.which(input)` says what runs, and why.
    - invariant: the bits of a row do not depend on the other rows, nor on how many they are (`softbench check --invariance`), and those of
      its gradient do not either, if dy and y are the same. By our kernels only, differentiable once, without `out`.
    - torch.compile traces it. With `out`, and in forward mode and `torch.func`, torch's softmax runs.

    Raises:
        IndexError: `dim` is out of range.
        TypeError: an argument has a wrong type.
        ValueError: `invariant`, and our kernels do not run here; the message says why.
        RuntimeError: the launch failed, or torch has no softmax of this dtype.
    """
    if invariant:
        return _invariant(input, dim, dtype, out, _stacklevel, log=False)
    if out is None and not torch.compiler.is_dynamo_compiling() and (y := entries.softmax(input, dim, dtype)) is not None:
        result: Tensor = y
        return result
    return _SOFTMAX(input, dim, dtype, out, _stacklevel)


def log_softmax(
    input: Tensor, dim: int | None = -1, dtype: torch.dtype | None = None, out: Tensor | None = None, invariant: bool = False,
    _stacklevel: int = 3,
) -> Tensor:  # fmt: skip
    """log(softmax(input)) over `dim`; otherwise as `softmax`."""
    if invariant:
        return _invariant(input, dim, dtype, out, _stacklevel, log=True)
    if out is None and not torch.compiler.is_dynamo_compiling() and (y := entries.log_softmax(input, dim, dtype)) is not None:
        result: Tensor = y
        return result
    return _LOG_SOFTMAX(input, dim, dtype, out, _stacklevel)


def _invariant(x: Tensor, dim: int | None, dtype: torch.dtype | None, out: Tensor | None, stacklevel: int, *, log: bool) -> Tensor:
    from . import invariant

    if out is not None:
        raise ValueError("invariant=True excludes out")
    if not is_strided(x):
        raise TypeError(f"input is {type(x).__name__}; with invariant=True it must be a tensor with strides")
    if dim is None:
        name = "log_softmax" if log else "softmax"
        dim = functional._get_softmax_dim(name, x.dim(), stacklevel + 1)  # type: ignore[attr-defined]
    return invariant.softmax(x, dim, dtype, log=log)


class Function:
    """A function with what this process calls for each class of calls."""

    def __init__(self, name: str, torchs: Callable[..., Tensor]) -> None:
        """`torchs` is torch's function."""
        self.name, self.torchs = name, torchs
        self.calls: dict[Key, Call] = {}
        choice.FORGETS.append(lambda: self.calls.clear())

    def __call__(self, x: Tensor, dim: int | None, dtype: torch.dtype | None, out: Tensor | None, stacklevel: int) -> Tensor:
        """The call that C++ did not make."""
        if dim is None:
            dim = functional._get_softmax_dim(self.name, x.dim(), stacklevel + 1)  # type: ignore[attr-defined]
        if out is not None:
            return self.torchs(x, dim, dtype, out=out)
        if not is_strided(x) or transformed():
            return self.torchs(x, dim, dtype)
        if dtype is None and x.is_cuda and x.dtype in DTYPES[1:] and torch.is_autocast_enabled("cuda"):
            dtype = torch.float32
        return self.call(x, dim, dtype)(x, dim, dtype)

    def call(self, x: Tensor, dim: int, dtype: torch.dtype | None) -> Call:
        """The function for this class of calls, which is decided at the first of them."""
        last = dim == -1 or dim == x.dim() - 1  # as `is_last`, without a call
        key = (x.device, x.dtype, dtype, last, not last and isinstance(dim, int) and choice.is_short(x, dim))
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
        """torch's function."""
        return self.torchs


@torch.compiler.assume_constant_result
def _decided(function: str, device: torch.device, dtype: torch.dtype, result: torch.dtype | None, last: bool, short: bool) -> str:
    """The kernels of a class of calls. torch.compile takes the answer, and does not trace how it is found."""
    return choice.choice(Calls(function, device, dtype, result, last, short)).kernels


# torch.softmax and torch.log_softmax, by names that nobody replaces.
_SOFTMAX = Function("softmax", torch._C._VariableFunctions.softmax)
_LOG_SOFTMAX = Function("log_softmax", torch._C._VariableFunctions.log_softmax)
