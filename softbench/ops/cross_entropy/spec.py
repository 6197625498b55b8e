"""Cross entropy of each row as an operation: its tensors, passes, parameters and bytes. There is no reduction over rows."""

from __future__ import annotations

from types import MappingProxyType

from softbench.core.case import Direction
from softbench.ops.operation import Operation, Pass, TensorSpec
from softbench.ops.parameters import Parameter
from softbench.ops.rowwise.spec import PRESETS

IGNORE_INDEX = Parameter("ignore_index", "whole", -100, "the target of ignored rows, whose loss and gradient are 0", least=-1e6, most=1e6)
LABEL_SMOOTHING = Parameter("label_smoothing", "number", 0.0, "the share of the target that all columns get alike", least=0, most=0.999)
Z_LOSS = Parameter("z_loss", "number", 0.0, "adds z_loss * lse^2 to the loss, as PaLM does", least=0, most=0.1)
SOFTCAP = Parameter("softcap", "number", 0.0, "logits are softcap * tanh(x / softcap); 0: they are x", least=0, most=1e4)

EACH = TensorSpec(("M",), "fp32")
OPERATION = Operation(
    name="cross_entropy",
    summary="log(sum(exp(x))) - x[target] of each row, and its gradient; fused gives both",
    tensors=MappingProxyType(
        {
            "x": TensorSpec(("M", "N")),
            "target": TensorSpec(("M",), "int64"),
            "loss": EACH,
            "lse": EACH,
            "dloss": EACH,
            "dx": TensorSpec(("M", "N")),
        }
    ),
    passes=MappingProxyType(
        {
            Direction.FORWARD: Pass(("x", "target"), ("loss", "lse"), ("x", "target")),
            Direction.BACKWARD: Pass(("x", "target", "lse", "dloss"), ("dx",), ("x", "target", "lse", "dloss")),
            Direction.FUSED: Pass(("x", "target"), ("loss", "dx"), ("x", "target")),
        }
    ),
    presets=MappingProxyType({"vocabularies": PRESETS["vocabularies"]}),
    parameters=(IGNORE_INDEX, LABEL_SMOOTHING, Z_LOSS, SOFTCAP),
)
