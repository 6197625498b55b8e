"""An operation with an integer input, an output of one value per row, and a tensor of another dtype."""

from softbench.core.case import Case, Direction
from softbench.ops.operation import Operation, Pass, TensorSpec

LOSS = Operation(
    name="loss",
    tensors={
        "x": TensorSpec(("M", "N")),
        "target": TensorSpec(("M",), "int64"),
        "loss": TensorSpec(("M",), "fp32"),
        "dx": TensorSpec(("M", "N")),
    },
    passes={
        Direction.FORWARD: Pass(inputs=("x", "target"), outputs=("loss",), reads=("x", "target")),
        Direction.BOTH: Pass(inputs=("x", "target"), outputs=("loss", "dx"), reads=("x", "target")),
    },
)


def test_each_tensor_has_its_own_shape_and_bytes():
    case = Case(8, 100, "bf16", Direction.FORWARD)
    assert LOSS.tensors["target"].shape(case) == (8,)
    assert LOSS.tensors["target"].bytes(case) == 8 * 8
    assert LOSS.bytes_moved(case) == 8 * 100 * 2 + 8 * 8 + 8 * 4
    assert LOSS.largest_bytes(case) == 8 * 100 * 2


def test_a_pass_names_what_its_call_returns():
    assert LOSS.outputs(Case(8, 100, "bf16", Direction.FORWARD)).keys() == {"loss"}
    assert list(LOSS.outputs(Case(8, 100, "bf16", Direction.BOTH))) == ["loss", "dx"]
    assert [spec.dtype for spec in LOSS.inputs(Case(8, 100, "bf16", Direction.BOTH))] == ["case", "int64"]
