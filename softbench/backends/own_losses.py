"""softbench's own kernels for losses over rows with a target, for the backends of `softbench.backends.own_kernels`.

A module of `softbench.kernels` has a function for each operation and pass, such as `cross_entropy_forward` and `logprob_backward`. It takes
the tensors of the pass, and the operation's parameters by name. A forward may return more than the pass has, such as lse of logprob.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from softbench.backends import losses
from softbench.core.case import Case
from softbench.ops.registry import operation
from softbench.plugins.backend import Call

OPERATIONS = losses.OPERATIONS
"""The operations that such a module has, with their parameters."""
NAMES = tuple(losses.NAIVE)
"""The same by name."""


def prepare(module: str, case: Case) -> Call:
    """The call of a case's pass by the functions of `softbench.kernels.<module>`."""
    found = getattr(importlib.import_module(f"softbench.kernels.{module}"), f"{case.operation}_{case.direction.value}")
    call = functools.partial(found, **losses.parameters(case))
    outputs = len(operation(case.op).passes[case.direction].outputs)
    if outputs == 1:
        return call

    def all_of_the_pass(*tensors: Any) -> tuple[Any, ...]:
        results: tuple[Any, ...] = call(*tensors)
        return results[:outputs]

    return all_of_the_pass
