"""The operators that compiled graphs call where a compiler cannot launch the kernels itself, on (M, N) rows and without autograd.

- `softbench::triton_softmax_rows` and `softbench::triton_softmax_rows_backward`, and the same with `log_`.

The operators belong to a `torch.library.Library`, since `torch.library.custom_op` runs more Python in each call.
"""

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..common.rows import apply_to_rows
from ..common.softmax import Softmax
from .dispatch import log_softmax, softmax

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
"""A launch is for the strides that were traced, and Inductor may pad those of its own tensors."""

_library = torch.library.Library("softbench", "FRAGMENT")


def operators(function: Softmax) -> tuple[OpOverload, OpOverload]:
    """The forward and the backward of a function."""
    name = f"triton_{function.name}_rows"
    return getattr(torch.ops.softbench, name).default, getattr(torch.ops.softbench, f"{name}_backward").default


def _define(function: Softmax) -> None:
    name = f"triton_{function.name}_rows"

    def forward(x: Tensor) -> Tensor:
        return apply_to_rows(function.launch_forward, (x,), 1)

    def backward(dy: Tensor, y: Tensor) -> Tensor:
        return apply_to_rows(function.launch_backward, (dy, y), 1)

    def fake(*given: Tensor) -> Tensor:
        return given[-1].new_empty(given[-1].shape)

    for which, tensors, kernel in ((name, "Tensor x", forward), (f"{name}_backward", "Tensor dy, Tensor y", backward)):
        _library.define(f"{which}({tensors}) -> Tensor", tags=TAGS)
        _library.impl(which, kernel, "CUDA")
        _library.impl(which, torch.library.fallthrough_kernel, "AutogradCUDA")  # no formula: the result requires no gradient
        torch.library.register_fake(f"softbench::{which}", fake, lib=_library)


for _function in (softmax, log_softmax):
    _define(_function)
