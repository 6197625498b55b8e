"""Algorithmic bytes, and the bandwidth they make of a latency."""

from __future__ import annotations

from softbench.core.case import Case, Direction

PASSES = {
    Direction.FORWARD: 2,  # read x, write y
    Direction.BACKWARD: 3,  # read y, read dy, write dx
    Direction.BOTH: 5,  # the two together
}
"""How often an ideal kernel moves an (M, N) tensor. Triton's tutorial counts M*N*itemsize for the forward: half of this."""


def bytes_moved(case: Case) -> int:
    """Algorithmic bytes of one call: what must be moved, not what a backend happens to move."""
    return PASSES[case.direction] * case.tensor_bytes


def gbps(case: Case, us: float) -> float:
    """Decimal GB/s of a call that takes `us` microseconds."""
    return bytes_moved(case) / us / 1e3
