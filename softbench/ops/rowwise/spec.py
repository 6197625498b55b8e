"""The tensors and passes of an operation over rows."""

from __future__ import annotations

from types import MappingProxyType

from softbench.core.case import Direction
from softbench.ops.operation import Operation, Pass, TensorSpec


def operation(name: str, summary: str) -> Operation:
    """An operation that makes y of x, and dx of dy and y; all tensors are (M, N)."""
    return Operation(
        name=name,
        summary=summary,
        tensors=MappingProxyType({tensor: TensorSpec(("M", "N")) for tensor in ("x", "y", "dy", "dx")}),
        passes=MappingProxyType(
            {
                Direction.FORWARD: Pass(inputs=("x",), outputs=("y",), reads=("x",)),
                Direction.BACKWARD: Pass(inputs=("dy", "y"), outputs=("dx",), reads=("dy", "y")),
                Direction.BOTH: Pass(inputs=("x", "dy"), outputs=("y", "dx"), reads=("x", "dy", "y")),
            }
        ),
    )
