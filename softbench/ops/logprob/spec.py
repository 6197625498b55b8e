"""Log-probability and entropy of each row as an operation: its tensors, passes and bytes."""

from __future__ import annotations

from types import MappingProxyType

from softbench.core.case import Direction
from softbench.ops.operation import Operation, Pass, TensorSpec
from softbench.ops.rowwise.spec import PRESETS

ROWS, EACH = TensorSpec(("M", "N")), TensorSpec(("M",), "fp32")
OF_BACKWARD = ("x", "target", "lse", "entropy", "dlogprob", "dentropy")
OPERATION = Operation(
    name="logprob",
    summary="log_softmax(x)[target] and the entropy of each row, and their gradient",
    tensors=MappingProxyType(
        {
            "x": ROWS,
            "target": TensorSpec(("M",), "int64"),
            "logprob": EACH,
            "entropy": EACH,
            "lse": EACH,
            "dlogprob": EACH,
            "dentropy": EACH,
            "dx": ROWS,
        }
    ),
    passes=MappingProxyType(
        {
            Direction.FORWARD: Pass(("x", "target"), ("logprob", "entropy"), ("x", "target")),
            Direction.BACKWARD: Pass(OF_BACKWARD, ("dx",), OF_BACKWARD),
        }
    ),
    presets=MappingProxyType({"vocabularies": PRESETS["vocabularies"]}),
)
