"""The tensors and passes of an operation over rows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from softbench.core.case import Direction
from softbench.ops.operation import Operation, Pass, TensorSpec
from softbench.ops.parameters import Parameter

ROWS = TensorSpec(("M", "N"))


def operation(
    name: str,
    summary: str,
    *,
    result: TensorSpec = ROWS,
    others: Mapping[str, TensorSpec] = MappingProxyType({}),
    parameters: tuple[Parameter, ...] = (),
) -> Operation:
    """An operation that makes y of x, and dx of dy and y; these tensors are (M, N), or rows along any dimension.

    `result` is the form of y and dy. `others` are inputs of every pass, behind x, dy and y.
    """
    more = tuple(others)
    return Operation(
        name=name,
        summary=summary,
        any_dim=True,
        tensors=MappingProxyType({"x": ROWS, "y": result, "dy": result, "dx": ROWS, **others}),
        passes=MappingProxyType(
            {
                Direction.FORWARD: Pass(inputs=("x", *more), outputs=("y",), reads=("x", *more)),
                Direction.BACKWARD: Pass(inputs=("dy", "y", *more), outputs=("dx",), reads=("dy", "y", *more)),
                Direction.BOTH: Pass(inputs=("x", "dy", *more), outputs=("y", "dx"), reads=("x", "dy", "y", *more)),
            }
        ),
        parameters=parameters,
    )
