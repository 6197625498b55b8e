"""The values of cross entropy: see `softbench.ops.numerics`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from softbench.core.case import Case, Direction
from softbench.ops.check_case import Draw, Tensors
from softbench.ops.cross_entropy import independent, reference, tolerance
from softbench.ops.rows import row_chunks
from softbench.ops.rowwise.targets import TargetValues, draw_target

DLOSS: Mapping[str, Callable[..., object]] = {
    "with a dloss of 0": lambda x, target, lse, dloss, places: dloss.zero_(),
    "with a dloss of 1e-3": lambda x, target, lse, dloss, places: dloss.fill_(1e-3),
    "with a dloss of -100": lambda x, target, lse, dloss, places: dloss.fill_(-100),
}


class CrossEntropy(TargetValues):
    """Loss and lse of each row, and the gradient of the loss."""

    again = staticmethod(independent.again)
    rounding = staticmethod(tolerance.rounding)

    def ignore_index(self, case: Case) -> int:
        return reference.settings(case).ignore_index

    def draw(self, case: Case, random: Draw) -> Sequence[torch.Tensor]:
        x, target = random.normal(case.M, case.N), draw_target(case, random, self.ignore_index(case))
        if case.direction is not Direction.BACKWARD:
            return x, target
        dloss = torch.randn(case.M, generator=random.generator, device=random.device)
        given = x, target, torch.empty_like(dloss), dloss
        self.derived(case, given)
        return given

    def derived(self, case: Case, given: Tensors) -> None:
        if case.direction is Direction.BACKWARD:
            for rows in row_chunks(case):
                given[2].data[rows] = reference.logsumexp(given[0].data[rows].double(), reference.settings(case).cap).float()

    def upstream(self, case: Case) -> Mapping[str, Callable[..., object]]:
        return DLOSS if case.direction is Direction.BACKWARD else {}

    def reference(self, case: Case, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        x, target, *rest = inputs
        given = reference.settings(case)
        z = reference.capped(x, given.cap)
        if case.direction is Direction.BACKWARD:
            lse, dloss = rest
            return (reference.gradient(z, target, lse, dloss, given),)
        lse = torch.logsumexp(z, dim=-1)
        loss = reference.loss(z, target, lse, given)
        return (loss, lse) if case.direction is Direction.FORWARD else (loss, reference.gradient(z, target, lse, 1.0, given))

    def bound(self, case: Case, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        return tolerance.bounds(case, inputs, loose=False)

    def low_precision(self, case: Case, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        return tolerance.bounds(case, inputs, loose=True)


NUMERICS = CrossEntropy()
