"""Operations whose passes move unlike tensors, for the tests of the yardstick."""

import torch

from softbench.core.case import Case, Direction
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.ops.operation import Operation, Pass, Share, TensorSpec

ROWS, WIDE, MASK = TensorSpec(("M", "N")), TensorSpec(("M", "N"), "fp32"), TensorSpec(("M", "N"), "bool")
EACH, TARGET, COLUMNS = TensorSpec(("M",), "fp32"), TensorSpec(("M",), "int64"), TensorSpec(("N",))


def operation(name, tensors, inputs, outputs, reads, *shares):
    """An operation with one pass, whose parts are words of names."""
    one = Pass(tuple(inputs.split()), tuple(outputs.split()), tuple(reads.split()), shares)
    return Operation(name, tensors, {Direction.FORWARD: one})


OPERATIONS = {
    "copied": operation("copied", {"x": ROWS, "y": ROWS}, "x", "y", "x"),
    "added": operation("added", {"x": ROWS, "z": ROWS, "y": ROWS}, "x z", "y", "x z"),
    "wider": operation("wider", {"x": ROWS, "y": WIDE}, "x", "y", "x"),
    "narrower": operation("narrower", {"x": WIDE, "z": WIDE, "y": ROWS}, "x z", "y", "x z"),
    "three": operation("three", {"x": ROWS, "z": ROWS, "v": WIDE, "y": ROWS, "u": WIDE}, "x z v", "y u", "x z v"),
    "loss": operation("loss", {"x": ROWS, "target": TARGET, "loss": EACH}, "x target", "loss", "x target"),
    "norm": operation("norm", {"x": ROWS, "w": COLUMNS, "y": ROWS, "r": EACH}, "x w", "y r", "x w"),
    "masked": operation("masked", {"x": ROWS, "mask": MASK, "y": ROWS}, "x mask", "y", "x mask"),
    "half": operation("half", {"x": ROWS, "loss": EACH}, "x", "loss", "x", Share("x", 0.5)),
    "integers": operation("integers", {"x": ROWS, "a": TARGET, "b": TARGET, "c": TARGET}, "x a b", "c", "x a b"),
    "again": operation("again", {"x": ROWS, "dy": ROWS, "w": COLUMNS, "y": ROWS, "dx": ROWS}, "x dy w", "y dx", "x dy w y"),
    "state": operation("state", {"x": ROWS, "state": ROWS, "y": ROWS}, "x", "y", "x state"),
    "filled": operation("filled", {"x": ROWS, "y": ROWS}, "x", "y", ""),
}


def inputs(op: Operation, case: Case) -> tuple[torch.Tensor, ...]:
    """Normal values, and integers of many bits."""
    given = []
    for spec in op.inputs(case):
        dtype = TENSOR_DTYPES[spec.dtype_of(case)]
        if dtype.is_floating_point:
            given.append(torch.randn(spec.shape(case), device=case.device).to(dtype))
        else:
            given.append(torch.randint(2 if dtype is torch.bool else 2**40, spec.shape(case), device=case.device).to(dtype))
    return tuple(given)
