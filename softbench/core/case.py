"""The words for what is measured: dtype, direction, case, and the timers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DTYPES = {"fp32": 4, "fp16": 2, "bf16": 2}
"""The dtypes of a sweep and their bytes an element."""


CPU_TIMER = "torch.utils.benchmark"
TIMERS = ("do_bench", "device", "graph", "host")
"""What can be the headline on a GPU: events around a call, its kernels, a CUDA graph's replay, issuing it."""


class Direction(StrEnum):
    """What one timed call computes."""

    FORWARD = "forward"
    """y = softmax(x)."""
    BACKWARD = "backward"
    """dx from (dy, y): nobody is charged for autograd's bookkeeping."""
    BOTH = "both"
    """y and dx through autograd, as a training step pays for them."""


@dataclass(frozen=True, slots=True)
class Case:
    """One shape to measure: softmax over the last axis of an (M, N) tensor."""

    M: int
    """Rows."""
    N: int
    """Columns: the reduced axis."""
    dtype: str
    """A key of DTYPES."""
    direction: Direction
    device: str = "cuda"
    """`cuda` or `cpu`."""

    @property
    def key(self) -> str:
        """The case's stable name, unique in a run."""
        return f"{self.direction}-{self.dtype}-{self.M}x{self.N}"

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one (M, N) tensor."""
        return self.M * self.N * DTYPES[self.dtype]


YARDSTICK = "copy"
