"""The values of softmax: see `softbench.ops.numerics`."""

from __future__ import annotations

from collections.abc import Sequence

from softbench.core.case import Case, Direction
from softbench.ops.check_case import Tensors
from softbench.ops.rowwise.numerics import RowwiseNumerics
from softbench.ops.softmax import check_cases, inputs, reference, scaling, structured_rows, tolerance


class SoftmaxNumerics(RowwiseNumerics):
    """Softmax over the last axis of (M, N) tensors, and its gradient."""

    __slots__ = ()

    make = staticmethod(inputs.make)
    make_structured = staticmethod(structured_rows.make_structured)
    forward = staticmethod(reference.softmax)
    gradient = staticmethod(reference.gradient)
    check = staticmethod(tolerance.check)
    check_cases = staticmethod(check_cases.items)

    def kinds(self, case: Case) -> Sequence[str]:
        return list(structured_rows.kinds(case))

    def estimate(self, case: Case, given: Tensors) -> Tensors:
        given, scale = scaling.split(case, given)
        first, *others = (tensor.detach().float() for tensor in given)
        if case.direction is Direction.BACKWARD:
            return (scaling.times(self.gradient(first, *others), scale),)
        y = self.forward(scaling.times(first, scale))
        return (y, *(scaling.times(self.gradient(dy, y), scale) for dy in others))


NUMERICS = SoftmaxNumerics()
