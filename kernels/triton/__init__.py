"""softbench's Triton kernels of softmax and log_softmax. They import nothing of the benchmark.

- `operator.py`: `softmax` and `log_softmax` as PyTorch operators, differentiable, compiled and exported.
- `dispatch.py`: the same kernels without an operator. `planner.py` chooses tiers and plans.
- `masked_softmax.py`: softmax of attention scores with mask, causal order and sink, with its kernels; `causal_rows.py` has
  those of long causal rows.
- `losses.py`: cross entropy and logprob, without autograd.
- `traceable.py`: the launches that compilers trace; elsewhere compiled graphs call the opaque operators of `operator.py`.
- `user_defined.py`: raw kernels as functions for torch.compile.

`from softbench.kernels.triton import softmax, log_softmax` are the operators. `dispatch` has both without an operator. Under
TRITON_INTERPRET=1, set before triton is imported, those run on the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .operator import log_softmax as log_softmax, softmax as softmax


def __getattr__(name: str) -> object:
    """`softmax` or `log_softmax`, imported on first use, so that importing this package does not import Triton."""
    if name not in ("softmax", "log_softmax"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import operator

    function: object = getattr(operator, name)
    globals()[name] = function
    return function
