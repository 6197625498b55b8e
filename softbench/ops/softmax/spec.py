"""The byte model of softmax: the tensors that a case reads, writes and holds, and the bandwidth of a latency."""

from __future__ import annotations

from softbench.core.case import Case, Direction

READS = {Direction.FORWARD: ("x",), Direction.BACKWARD: ("dy", "y"), Direction.BOTH: ("x", "dy", "y")}
"""The (M, N) tensors that an ideal kernel reads, each once."""
WRITES = {Direction.FORWARD: ("y",), Direction.BACKWARD: ("dx",), Direction.BOTH: ("y", "dx")}
"""The (M, N) tensors that an ideal kernel writes, each once."""
WORKING_TENSORS = 12
"""(M, N) tensors that a worker holds for a case at once, at most.

Inputs twice (copies or the second set), outputs of four calls (a probe holds one), and temporaries of `naive`.
"""


def bytes_moved(case: Case) -> int:
    """Algorithmic bytes of one call: what must be moved, not what a backend happens to move.

    Triton's tutorial counts M*N*itemsize for the forward: half of this.
    """
    return (len(READS[case.direction]) + len(WRITES[case.direction])) * case.tensor_bytes


def distinct_bytes(case: Case) -> int:
    """Bytes of the case's distinct tensors: `both` reads the y that it writes, which counts once."""
    return len({*READS[case.direction], *WRITES[case.direction]}) * case.tensor_bytes


def gbps(case: Case, us: float) -> float:
    """Decimal GB/s of a call that takes `us` microseconds."""
    return bytes_moved(case) / us / 1e3
