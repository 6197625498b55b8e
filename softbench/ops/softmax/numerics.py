"""The values of softmax: see `softbench.ops.numerics`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from softbench.core.case import Case, Direction
from softbench.core.outcome import Accuracy
from softbench.ops.check_case import CheckCase, See, Tensors
from softbench.ops.softmax import check_cases, independent, inputs, structured_rows, tolerance


class SoftmaxNumerics:
    """Softmax over the last axis of (M, N) tensors, and its gradient."""

    __slots__ = ()  # an attribute of the instance would replace a method that the tamper guard protects

    def make(self, case: Case, seed: int, device: torch.device) -> Tensors:
        return inputs.make(case, seed, device)

    def refill(self, given: Tensors, case: Case, seed: int) -> None:
        inputs.refill(given, case, seed)

    def drawn(self, given: Tensors) -> bool:
        return independent.drawn(given)

    def kinds(self, case: Case) -> Sequence[str]:
        return list(structured_rows.kinds(case.direction, case.dtype))

    def make_structured(self, given: Tensors, case: Case, seed: int) -> list[str]:
        return structured_rows.make_structured(given, case, seed)

    def estimate(self, case: Case, given: Tensors) -> Tensors:
        first, *others = (tensor.detach().float() for tensor in given)
        if case.direction is Direction.BACKWARD:
            return (_gradient(first, *others),)
        y = torch.softmax(first, dim=-1)
        return (y, *(_gradient(dy, y) for dy in others))

    def check(
        self,
        case: Case,
        inputs: Tensors,
        outputs: Tensors,
        see: See | None = None,
        kinds: Sequence[str] = (),
        numbers: Sequence[int] | None = None,
    ) -> Accuracy:
        return tolerance.check(case, inputs, outputs, see, kinds, numbers)

    def check_yardstick(self, case: Case, inputs: Tensors, outputs: Tensors) -> Accuracy:
        return tolerance.check_yardstick(case, inputs, outputs)

    def check_cases(self) -> list[CheckCase]:
        return check_cases.items()


def _gradient(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y * (dy - (y * dy).sum(dim=-1, keepdim=True))


NUMERICS = SoftmaxNumerics()
