"""The words for what is measured: dtype, direction, case, and the timers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

DTYPES = {"fp32": 4, "fp16": 2, "bf16": 2}
"""Bytes per element of each dtype."""


OPERATION = "softmax"
"""The operation of a case that names none, as in older files."""
CPU_TIMER = "torch.utils.benchmark"
TIMERS = ("do_bench", "device", "graph", "host")
"""Timers on a GPU: events around a call, its kernels, the replay of a CUDA graph, issuing the call."""


class Direction(StrEnum):
    """What one timed call computes."""

    FORWARD = "forward"
    """y = softmax(x)."""
    BACKWARD = "backward"
    """dx from (dy, y), without autograd's bookkeeping."""
    BOTH = "both"
    """y and dx through autograd, as in a training step."""


class CaseKey(NamedTuple):
    """A case's identity in a results file of one device. Its text is the case's name: `forward-bf16-4096x1024`.

    Other operations than softmax stand in front: `log_softmax-forward-bf16-4096x1024`.
    """

    direction: str
    dtype: str
    M: int
    N: int
    op: str = OPERATION

    def __str__(self) -> str:
        return f"{pass_name(self.op, self.direction, '-')}-{self.dtype}-{self.M}x{self.N}"


def pass_name(op: str, direction: str, between: str = " ") -> str:
    """A pass in tables and names: `log_softmax forward`. Softmax has only its direction, as in earlier versions."""
    return direction if op == OPERATION else f"{op}{between}{direction}"


@dataclass(frozen=True, slots=True)
class Case:
    """One operation, shape, dtype, direction and device. The operation's tensors have axes M and N."""

    M: int
    """Rows."""
    N: int
    """Columns: the reduced axis."""
    dtype: str
    """A key of DTYPES."""
    direction: Direction
    device: str = "cuda"
    """`cuda` or `cpu`."""
    op: str = OPERATION
    """A name of `softbench.ops.registry`."""

    @property
    def key(self) -> str:
        """The case's name, such as `forward-bf16-4096x1024`; unique in a run."""
        return str(self.identity)

    @property
    def identity(self) -> CaseKey:
        """The case without its device."""
        return CaseKey(self.direction.value, self.dtype, self.M, self.N, self.op)


YARDSTICK = "copy"
