"""The values of log-probability and entropy: see `softbench.ops.numerics`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from softbench.core.case import Case, Direction
from softbench.ops.check_case import Draw, Tensors
from softbench.ops.logprob import independent, reference, tolerance
from softbench.ops.rows import row_chunks
from softbench.ops.rowwise.targets import TargetValues, draw_target

UPSTREAM: Mapping[str, Callable[..., object]] = {
    "with a dlogprob of 0": lambda x, target, lse, entropy, dlogprob, dentropy, places: dlogprob.zero_(),
    "with a dentropy of 0": lambda x, target, lse, entropy, dlogprob, dentropy, places: dentropy.zero_(),
    "with a dentropy of -100": lambda x, target, lse, entropy, dlogprob, dentropy, places: dentropy.fill_(-100),
}


class LogProb(TargetValues):
    """logprob and entropy of each row, and the gradient of both."""

    again = staticmethod(independent.again)
    rounding = staticmethod(tolerance.rounding)

    def ignore_index(self, case: Case) -> None:
        return None

    def draw(self, case: Case, random: Draw) -> Sequence[torch.Tensor]:
        x, target = random.normal(case.M, case.N), draw_target(case, random, None)
        if case.direction is Direction.FORWARD:
            return x, target
        dlogprob, dentropy = (torch.randn(case.M, generator=random.generator, device=random.device) for _ in range(2))
        given = x, target, torch.empty_like(dlogprob), torch.empty_like(dlogprob), dlogprob, dentropy
        self.derived(case, given)
        return given

    def derived(self, case: Case, given: Tensors) -> None:
        if case.direction is Direction.BACKWARD:
            for rows in row_chunks(case):
                x = given[0].data[rows].double()
                lse = torch.logsumexp(x, dim=-1)
                given[2].data[rows], given[3].data[rows] = lse.float(), reference.entropy(x - lse[:, None]).float()

    def upstream(self, case: Case) -> Mapping[str, Callable[..., object]]:
        return UPSTREAM if case.direction is Direction.BACKWARD else {}

    def reference(self, case: Case, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        return reference.forward(*inputs) if case.direction is Direction.FORWARD else (reference.backward(*inputs),)

    def bound(self, case: Case, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        return tolerance.bounds(case, inputs, loose=False)

    def low_precision(self, case: Case, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        return tolerance.bounds(case, inputs, loose=True)


NUMERICS = LogProb()
