"""softbench's Triton softmax kernels. They import nothing of the benchmark.

- `operator.py`: `softmax` as a PyTorch operator, differentiable, compiled and exported.
- `dispatch.py`: the same kernels without an operator. Heuristics and measured tables choose tiers and plans.
- `traceable.py`: the launches that compilers trace.
- `user_defined.py`: raw kernels, autotuned, as functions for torch.compile.
- `tutorial.py`: Triton's fused-softmax tutorial, a row per program on a persistent grid.
- `tiled.py`: several rows per program, autotuned, with tensor descriptors if the strides allow them.
- `tune.py`: measures the fastest plans on this GPU (python -m softbench.kernels.triton.tune).

`from softbench.kernels.triton import softmax` is the operator. `dispatch`, `tutorial` and `tiled` each have a `softmax` without an
operator. Under TRITON_INTERPRET=1, set before triton is imported, those run on the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .operator import softmax as softmax


def __getattr__(name: str) -> object:
    """`softmax`, imported on first use, so that importing this package does not import Triton."""
    if name != "softmax":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .operator import softmax

    globals()[name] = softmax
    return softmax
