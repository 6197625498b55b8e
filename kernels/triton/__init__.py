"""softbench's Triton softmax kernels. Nothing here imports the benchmarking side.

    operator.py      `softmax`: ours as a PyTorch operator, differentiable, compiled and exported
    tiers.py         ours: tiers by N, configurations by rule
    traced.py        ours as compilers trace them
    recipe.py        the raw kernels, autotuned, as functions for torch.compile
    row.py           the way of Triton's fused-softmax tutorial: a row per program, a persistent grid
    tile.py          several rows per program, tensor descriptors where strides allow them, autotuned

`from softbench.kernels.triton import softmax` is the operator. `tiers`, `row` and `tile` have a `softmax` of their own, without an
operator; under TRITON_INTERPRET=1 (set before triton is imported) those run on the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .operator import softmax as softmax


def __getattr__(name: str) -> Any:
    """`softmax`, imported on first use, so that an import of this package alone does not import Triton."""
    if name != "softmax":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .operator import softmax

    globals()[name] = softmax
    return softmax
