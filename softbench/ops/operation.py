"""An operation: its tensors, its passes and its byte model. It needs no torch, so the parent process can use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from softbench.core.case import DTYPES, Case

ELEMENT_BYTES = DTYPES | {"int64": 8, "int32": 4, "bool": 1}
"""Bytes per element of each dtype that a tensor may have."""
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
