"""The values of masked softmax: see `softbench.ops.numerics`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from softbench.core.case import Case, Direction
from softbench.ops.check_case import Tensors
from softbench.ops.masked_softmax import check_cases, inputs, reference, structured_rows, tolerance
from softbench.ops.rowwise import independent
from softbench.ops.rowwise.inputs import refill


class MaskedSoftmax:
    """Masked softmax of rows, and its gradient. `make` and `make_structured` are of cases of rows (`softbench.ops.scores`)."""

    __slots__ = ()  # an attribute of the instance would replace a method that the tamper guard protects

    make = staticmethod(inputs.make)
    make_structured = staticmethod(structured_rows.make_structured)
    check = staticmethod(tolerance.check)
    check_cases = staticmethod(check_cases.items)
    drawn = staticmethod(independent.drawn)

    def refill(self, given: Tensors, case: Case, seed: int) -> None:
        refill(given, self.make(case, seed, given[0].device))

    def kinds(self, case: Case) -> Sequence[str]:
        return list(structured_rows.kinds(case))

    def estimate(self, case: Case, given: Tensors) -> Tensors:
        wide = [tensor.detach().float() if tensor.is_floating_point() else tensor for tensor in given]
        rows, scale = reference.split(case, wide), reference.scale_of(case)
        if case.direction is Direction.FORWARD:
            return (reference.softmax(reference.logits(rows, scale))[:, : case.N],)
        assert rows.y is not None
        unseen = reference.hidden(rows)
        dy, y = reference.without(rows.first, unseen), reference.without(rows.y, unseen)
        dot = (dy * y).sum(dim=-1, keepdim=True)
        dx = reference.without(scale * y * (dy - dot), unseen)
        return (dx,) if rows.sink is None else (dx, -rows.sink * torch.squeeze(dot, -1))


NUMERICS = MaskedSoftmax()
