"""Softmax over the last axis as an operation: its tensors, passes and bytes."""

from __future__ import annotations

from types import MappingProxyType

from softbench.core.case import Direction
from softbench.ops.operation import Operation, Pass, TensorSpec

OPERATION = Operation(
    name="softmax",
    summary="exp(x) / sum(exp(x)) of each row, and its gradient",
    tensors=MappingProxyType({name: TensorSpec(("M", "N")) for name in ("x", "y", "dy", "dx")}),
    passes=MappingProxyType(
        {
            Direction.FORWARD: Pass(inputs=("x",), outputs=("y",), reads=("x",)),
            Direction.BACKWARD: Pass(inputs=("dy", "y"), outputs=("dx",), reads=("dy", "y")),
            Direction.BOTH: Pass(inputs=("x", "dy"), outputs=("y", "dx"), reads=("x", "dy", "y")),
        }
    ),
)
