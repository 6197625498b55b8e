"""What Triton's interpreter does otherwise than a GPU: it truncates where a GPU rounds to nearest, and does not wrap numbers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import triton

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

Result = TypeVar("Result")


def round_to_nearest(launch: Callable[..., Result], *given: Any) -> Result:
    """`launch` with a float32 output for a bfloat16 one, converted after it: Triton's interpreter truncates where hardware rounds.

    `given` are the launch's tensors, the output last, and possibly a number or a tensor (M,) as `scale`.
    """
    output = 1 + max(i for i, one in enumerate(given) if isinstance(one, torch.Tensor) and one.dim() == 2)
    out = given[output - 1]
    if not INTERPRETED or out.dtype != torch.bfloat16:
        return launch(*given)
    wide = torch.empty(out.shape, dtype=torch.float32, device=out.device)
    result = launch(*given[: output - 1], wide, *given[output:])
    out.copy_(wide)
    return result


def interpreted_number(value: float) -> Any:
    """A number as kernels get it: Triton's interpreter wraps integers so, and passes floats unchanged."""
    import numpy
    from triton.runtime.interpreter import TensorHandle

    return triton.language.tensor(TensorHandle(numpy.array([value], numpy.float32), triton.language.float32), triton.language.float32)
