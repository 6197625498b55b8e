"""The CUDA C++ kernels as PyTorch operators, differentiable twice.

- `softbench::cuda_softmax` and `softbench::cuda_softmax_backward`
- `softbench::cuda_log_softmax` and `softbench::cuda_log_softmax_backward`

Compilers see one opaque call. On devices other than CUDA, the operators are torch's own functions.

Where the extension in C++ is built, it has their kernel and autograd (`softbench.kernels.common.extension`). Otherwise, and where C++ does
not launch, both are in Python (`softbench.kernels.common.operator`).
"""

import torch
from torch import Tensor

from ..common import extension, rows
from ..common.operator import Operators
from . import launch


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


class CudaOperators(Operators):
    """The operators of a function. Their first call in Python looks for the extension."""

    def forward(self, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        extension.load()
        return super().forward(x, dim, dtype)


SOFTMAX = CudaOperators("cuda_softmax", launch.softmax, rows.DTYPES)
LOG_SOFTMAX = CudaOperators("cuda_log_softmax", launch.log_softmax, rows.DTYPES)
extension.implement("softmax", "log_softmax")
