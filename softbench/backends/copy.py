"""The yardstick `copy`: it moves the same bytes as softmax and computes nothing.

Only this class is graded as a yardstick: `softbench.ops.softmax.tolerance` compares its output bit by bit with the bytes to move.
"""

from __future__ import annotations

import torch

from softbench.core.case import Case, Direction
from softbench.plugins.backend import Call


class Copy:
    """The yardstick: a same-bytes device copy (forward) or two-read-one-write add (backward)."""

    name = "copy"
    advice = "never for softmax: the other backends are compared with it"

    def available(self) -> str | None:
        return None

    def supports(self, case: Case) -> str | None:
        return None

    def prepare(self, case: Case) -> Call:
        """The first call allocates the outputs, so later calls do not time the allocator.

        forward: `x -> x`; backward: `(dy, y) -> dy + y`; both: `(x, dy) -> (x, dy + x)`.
        """
        first: list[torch.Tensor] = []
        second: list[torch.Tensor] = []

        def forward(x: torch.Tensor) -> torch.Tensor:
            if not first:
                first.append(torch.empty_like(x))
            return first[0].copy_(x)

        def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            if not second:
                second.append(torch.empty_like(y))
            return torch.add(dy, y, out=second[0])

        def both(x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = x.detach()
            return forward(x), backward(dy, x)

        calls: dict[Direction, Call] = {Direction.FORWARD: forward, Direction.BACKWARD: backward, Direction.BOTH: both}
        return calls[case.direction]


backend = Copy()
