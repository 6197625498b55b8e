"""The replay of a reference in float64: whatever its code casts to, or makes, is float64.

So `x.float()`, `torch.zeros(n, dtype=torch.float32)` and `softmax(dim=-1, dtype=torch.float32)` keep the precision, and no line of the
reference changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

BIT_CASTS = (torch.ops.aten.view.dtype,)
"""Operators that look at the bits of a tensor; their arguments stay as they are."""
WIDENING = "half_to_float"
"""The last argument of operators that turn 16 bits into float32 at once."""


class Float64(TorchDispatchMode):
    """Every floating tensor that an operator gets is float64, and so is every dtype that it is asked for."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's way to keep Dynamo out imports it at the first call, for seconds; it leaves frames within a mode alone anyway."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in BIT_CASTS:
            return func(*args, **kwargs)
        args, kwargs = tree_map(_wide, args), tree_map(_wide, kwargs)
        if len(args) == len(func._schema.arguments) and func._schema.arguments[-1].name == WIDENING:
            args = (*args[:-1], False)
        return func(*args, **kwargs)


def _wide(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() and value.dtype is not torch.float64 else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    return value


@contextmanager
def in_float64() -> Iterator[None]:
    """Code in this context computes in float64."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Float64(), torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        torch.set_default_dtype(default)


def wide_module(found: Callable[..., Any]) -> Callable[..., Any]:
    """A module with its parameters in float64; a function as it is."""
    from copy import deepcopy

    return deepcopy(found).double() if isinstance(found, torch.nn.Module) else found
