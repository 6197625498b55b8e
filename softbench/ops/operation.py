"""An operation: its tensors, its passes and its byte model. It needs no torch, so the parent process can use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import prod

from softbench.core.case import DTYPES, Case, Direction
from softbench.core.json_types import JsonObject
from softbench.core.validate import NAME

ELEMENT_BYTES = DTYPES | {"int64": 8, "int32": 4, "bool": 1}
"""Bytes per element of each dtype that a tensor may have."""
AXES = ("M", "N")
CASE_DTYPE = "case"
"""The dtype of a tensor that has the case's."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of an operation."""

    axes: tuple[str, ...]
    """The names of its axes, each a field of `Case`, such as `("M", "N")`. The first axis of an output is M: rows of it are sampled."""
    dtype: str = CASE_DTYPE
    """A key of ELEMENT_BYTES, or CASE_DTYPE."""

    def shape(self, case: Case) -> tuple[int, ...]:
        """The sizes of the axes in a case."""
        return tuple(getattr(case, axis) for axis in self.axes)

    def dtype_of(self, case: Case) -> str:
        """The name of its dtype in a case."""
        return case.dtype if self.dtype == CASE_DTYPE else self.dtype

    def bytes(self, case: Case) -> int:
        """The tensor's bytes in a case."""
        return prod(self.shape(case)) * ELEMENT_BYTES[self.dtype_of(case)]

    @property
    def has_rows(self) -> bool:
        """True if its first axis is M: element i belongs to row i."""
        return self.axes[:1] == ("M",)

    @property
    def has_columns(self) -> bool:
        """True if it has rows, and its second axis is N."""
        return self.axes == ("M", "N")


@dataclass(frozen=True, slots=True)
class Pass:
    """What one timed call computes. Tensors have the names of the operation's."""

    inputs: tuple[str, ...]
    """The arguments of the call, in order."""
    outputs: tuple[str, ...]
    """What the call returns: a tensor, or a tuple if there are several."""
    reads: tuple[str, ...]
    """The tensors that an ideal kernel reads, each once."""

    @property
    def writes(self) -> tuple[str, ...]:
        """The tensors that an ideal kernel writes, each once."""
        return self.outputs


@dataclass(frozen=True, slots=True)
class Operation:
    """What a backend computes, as far as it can be said without values."""

    name: str
    """The name of its package in `softbench.ops`."""
    tensors: Mapping[str, TensorSpec]
    """Its tensors, by name."""
    passes: Mapping[str, Pass]
    """Its passes, by a case's direction."""
    summary: str = ""
    """One line for `softbench list --ops`."""

    def inputs(self, case: Case) -> tuple[TensorSpec, ...]:
        """The arguments of a call of this case, in order."""
        return tuple(self.tensors[name] for name in self.passes[case.direction].inputs)

    def outputs(self, case: Case) -> dict[str, TensorSpec]:
        """What a call of this case returns, by name."""
        return {name: self.tensors[name] for name in self.passes[case.direction].outputs}

    def largest_bytes(self, case: Case) -> int:
        """Bytes of the case's largest tensor."""
        return max(tensor.bytes(case) for tensor in self.tensors.values())

    def bytes_moved(self, case: Case) -> int:
        """Algorithmic bytes of one call: what must be moved, not what a backend happens to move.

        Triton's tutorial counts M*N*itemsize for softmax forward: half of this.
        """
        done = self.passes[case.direction]
        return sum(self.tensors[name].bytes(case) for name in (*done.reads, *done.writes))

    def distinct_bytes(self, case: Case) -> int:
        """Bytes of the case's distinct tensors: one that is written and read again counts once."""
        done = self.passes[case.direction]
        return sum(self.tensors[name].bytes(case) for name in {*done.reads, *done.writes})

    def gbps(self, case: Case, us: float) -> float:
        """Decimal GB/s of a call that takes `us` microseconds."""
        return self.bytes_moved(case) / us / 1e3


def validate(operation: Operation) -> None:
    """Raises a ValueError for the first part of an operation that softbench cannot measure."""
    if not NAME.fullmatch(operation.name):
        raise ValueError(f"'{operation.name}' is no name; use 1 to 64 letters, digits and . _ : + -")
    for name, tensor in operation.tensors.items():
        if not tensor.axes or not set(tensor.axes) <= set(AXES) or len(set(tensor.axes)) < len(tensor.axes):
            raise ValueError(f"tensor {name} has axes {tensor.axes}; they must be of M and N")
        if tensor.dtype != CASE_DTYPE and tensor.dtype not in ELEMENT_BYTES:
            raise ValueError(f"tensor {name} has dtype {tensor.dtype}; known are {CASE_DTYPE}, {', '.join(ELEMENT_BYTES)}")
    if not operation.passes:
        raise ValueError("it has no pass; give it one named forward")
    for direction, one in operation.passes.items():
        if direction not in set(Direction):
            raise ValueError(f"pass {direction}: the name must be one of {', '.join(Direction)}")
        for part in fields(one):
            if isinstance(names := getattr(one, part.name), str) or len(set(names)) < len(names):
                raise ValueError(f"pass {direction}: {part.name} must be a tuple of names, each once")
            for name in getattr(one, part.name):
                if name not in operation.tensors:
                    raise ValueError(f"pass {direction}: {part.name} has {name}, which is none of its tensors")
        if not one.inputs or not operation.tensors[one.inputs[0]].has_columns:
            raise ValueError(f"pass {direction}: its first input must have the axes M and N")
        if not one.outputs or not all(operation.tensors[name].has_rows for name in one.outputs):
            raise ValueError(f"pass {direction}: every output must have M as its first axis")


def to_json(operation: Operation) -> JsonObject:
    """An operation as JSON."""
    return asdict(replace(operation, tensors=dict(operation.tensors), passes=dict(operation.passes)))


def from_json(data: JsonObject) -> Operation:
    """The inverse of `to_json`; the data are untrusted.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it is invalid.
    """
    tensors = {str(name): TensorSpec(tuple(one["axes"]), str(one["dtype"])) for name, one in data["tensors"].items()}
    passes = {str(name): Pass(*(tuple(map(str, one[part.name])) for part in fields(Pass))) for name, one in data["passes"].items()}
    found = Operation(str(data["name"]), tensors, passes, str(data["summary"]))
    validate(found)
    return found
