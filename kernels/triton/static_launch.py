"""The launch that `dispatch.py` would choose for tensors that have no data yet, as a compiler sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch

from . import dispatch
from .launch_plan import VECTOR_BYTES
from .staged import backward_staged, forward_staged

SHIMMED = ("staged", "cluster", "split")
"""The tiers whose kernels compilers cannot launch (`traceable.py` says why)."""
STAGED_BYTES = 192 << 20
"""The least size of all inputs for which a graph that torch.compile runs calls an operator on rows for the tier staged. The call takes the
host longer than a traced kernel: on an H200, calls of 98 MiB were bound by the host, and calls of 197 MiB were not (notes-triton.md)."""


@dataclass(frozen=True)
class Operand:
    """The properties of a tensor that `choose_plan` reads. Its address counts as aligned."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def stride(self, dimension: int) -> int:
        return self.strides[dimension]

    def element_size(self) -> int:
        return self.dtype.itemsize

    def data_ptr(self) -> int:
        return 0


def static_launch(
    inputs: tuple[torch.Tensor, ...], log: bool = False, device: torch.device | None = None
) -> dispatch.PreparedLaunch | None:
    """The launch for (M, N) rows if its tier is in SHIMMED; None for another tier, for symbolic sizes, and for unaligned views.

    `inputs` are a forward's x or a backward's (dy, y), of which only the layout is used. `device` is used in place of theirs.
    """
    numbers = [number for tensor in inputs for number in (*tensor.shape, *tensor.stride(), tensor.storage_offset())]
    if not all(isinstance(number, int) for number in numbers):
        return None
    if any(tensor.storage_offset() * tensor.element_size() % VECTOR_BYTES for tensor in inputs):
        return None
    first = inputs[0]
    layouts = [tensor.stride() for tensor in inputs]
    operands = [Operand(first.shape, strides, first.dtype, device or first.device) for strides in (*layouts, (first.shape[1], 1))]
    tensors = cast("tuple[torch.Tensor, ...]", tuple(operands))
    problem, plan = dispatch.choose_plan(tensors)
    return dispatch.prepare_launch(problem, plan, tensors, log) if plan.tier in SHIMMED else None


def large_staged(inputs: tuple[torch.Tensor, ...], device: torch.device | None = None) -> bool:
    """Whether the tier staged is chosen for (M, N) inputs of at least STAGED_BYTES. The arguments are those of `static_launch`."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in inputs]
    if not all(isinstance(size, int) for size in sizes) or sum(sizes) < STAGED_BYTES:
        return False
    launch = static_launch(inputs, device=device)
    return launch is not None and launch.kernel in (forward_staged, backward_staged)
