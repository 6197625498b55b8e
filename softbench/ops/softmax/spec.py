"""Softmax over the last axis as an operation: its tensors, passes, parameters and bytes."""

from __future__ import annotations

from softbench.ops.operation import CASE_DTYPE, TensorSpec
from softbench.ops.parameters import Parameter
from softbench.ops.rowwise import spec

ROW = "row"
SCALE = Parameter(
    "scale",
    "number",
    1.0,
    "softmax(x * scale); 1 / temperature. row: each row's own, in a float32 tensor of shape (M,)",
    choices=(ROW,),
    least=1e-4,
    most=1e4,
)
OUT_DTYPE = Parameter(
    "out_dtype",
    "choice",
    CASE_DTYPE,
    "fp32: y and dy are float32, x and dx have 16 bits",
    choices=(CASE_DTYPE, "fp32"),
    dtypes=("fp16", "bf16"),
)
OPERATION = spec.operation(
    "softmax",
    "exp(x) / sum(exp(x)) of each row, and its gradient",
    result=TensorSpec(("M", "N"), OUT_DTYPE.name),
    others={"scale": TensorSpec(("M",), "fp32", (SCALE.name, ROW))},
    parameters=(SCALE, OUT_DTYPE),
)
