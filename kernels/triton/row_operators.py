"""The operators that compiled graphs call where a compiler cannot launch the kernels itself, on (M, N) rows and without autograd.

- `softbench::triton_softmax_rows` and `softbench::triton_softmax_rows_backward`, and the same with `log_`.

`launch` is the number of a launch in a package's table, or NOT_PACKAGED. Packages of AOTInductor call C functions (`c_shims.py`).

The operators belong to a `torch.library.Library`, since `torch.library.custom_op` runs more Python in each call.
"""

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..common.rows import apply_to_rows
from ..common.softmax import Softmax
from .dispatch import log_softmax, softmax

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
"""A launch is for the strides that were traced, and Inductor may pad those of its own tensors."""
NOT_PACKAGED = -1
"""The number of a launch of a graph that is not in a package."""

_library = torch.library.Library("softbench", "FRAGMENT")


def operators(function: Softmax) -> tuple[OpOverload, OpOverload]:
    """The forward and the backward of a function."""
    name = f"triton_{function.name}_rows"
    return getattr(torch.ops.softbench, name).default, getattr(torch.ops.softbench, f"{name}_backward").default


def c_functions() -> dict[OpOverload, str]:
    """The operators that a package calls as C functions, and for each the declaration of its function in `c_shims.cpp`."""
    declarations = {}
    for function in (softmax, log_softmax):
        for operator, inputs in zip(operators(function), ("x", "dy, AtenTensorHandle y"), strict=True):
            name = f"aoti_torch_cuda_{operator.name().partition('::')[2]}"
            declarations[operator] = f"AOTITorchError {name}(AtenTensorHandle {inputs}, int64_t launch, AtenTensorHandle* result)"
    return declarations


def _define(function: Softmax) -> None:
    name = f"triton_{function.name}_rows"

    def forward(x: Tensor, launch: int) -> Tensor:
        return apply_to_rows(function.launch_forward, (x,), 1)

    def backward(dy: Tensor, y: Tensor, launch: int) -> Tensor:
        return apply_to_rows(function.launch_backward, (dy, y), 1)

    def fake(*given: Any) -> Tensor:
        *_, last, _launch = given
        return last.new_empty(last.shape)

    for which, tensors, kernel in ((name, "Tensor x", forward), (f"{name}_backward", "Tensor dy, Tensor y", backward)):
        _library.define(f"{which}({tensors}, int launch) -> Tensor", tags=TAGS)
        _library.impl(which, kernel, "CUDA")
        _library.impl(which, torch.library.fallthrough_kernel, "AutogradCUDA")  # no formula: the result requires no gradient
        torch.library.register_fake(f"softbench::{which}", fake, lib=_library)


for _function in (softmax, log_softmax):
    _define(_function)
