"""The values of log-softmax: see `softbench.ops.numerics`."""

from __future__ import annotations

from collections.abc import Sequence

from softbench.core.case import Case
from softbench.ops.check_case import CheckCase
from softbench.ops.log_softmax import check_cases, inputs, reference, structured_rows, tolerance
from softbench.ops.rowwise.numerics import RowwiseNumerics


class LogSoftmaxNumerics(RowwiseNumerics):
    """Log-softmax over the last axis of (M, N) tensors, and its gradient."""

    __slots__ = ()

    make = staticmethod(inputs.make)
    make_structured = staticmethod(structured_rows.make_structured)
    forward = staticmethod(reference.log_softmax)
    gradient = staticmethod(reference.gradient)
    check = staticmethod(tolerance.check)

    def check_cases(self, op: str) -> list[CheckCase]:
        return check_cases.items()

    def kinds(self, case: Case) -> Sequence[str]:
        return list(structured_rows.kinds(case.direction, case.dtype))


NUMERICS = LogSoftmaxNumerics()
