"""The values of an operation: inputs, rows on which wrong kernels differ from right ones, float64 reference and bounds. Workers use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from softbench.core.case import Case
from softbench.core.outcome import Accuracy
from softbench.ops.check_case import CheckCase, See, Tensors


class Numerics(Protocol):
    """What a worker needs to know about the values of an operation."""

    def make(self, case: Case, seed: int, device: torch.device) -> Tensors:
        """The inputs of a case, in the order of its pass. The same seed gives the same values in every worker on the same device."""
        ...

    def refill(self, given: Tensors, case: Case, seed: int) -> None:
        """Write the values of another seed into the memory of `given`."""
        ...

    def drawn(self, given: Tensors) -> bool:
        """False if the inputs are not what `make` draws, so that an operator that draws them was replaced."""
        ...

    def kinds(self, case: Case) -> Sequence[str]:
        """The names of the kinds of structured rows."""
        ...

    def make_structured(self, given: Tensors, case: Case, seed: int) -> list[str]:
        """Change normal rows into structured rows, in place. The kind of a row is at its number modulo the number of returned names."""
        ...

    def estimate(self, case: Case, given: Tensors) -> Tensors:
        """The outputs for some rows of the inputs in float32. They choose rows to compare, and decide nothing."""
        ...

    def check(
        self,
        case: Case,
        inputs: Tensors,
        outputs: Tensors,
        see: See | None = None,
        kinds: Sequence[str] = (),
        numbers: Sequence[int] | None = None,
    ) -> Accuracy:
        """The verdict on outputs of the right form, from the float64 reference and derived bounds.

        Args:
            case: the case, with the number of rows of these tensors.
            inputs: the arguments of the call.
            outputs: what it returned, as a tuple.
            see: is called with each output's rows and the reference's.
            kinds: the names that `make_structured` returned, to name wrong kinds.
            numbers: the rows' numbers if the tensors are a sample of rows.
        """
        ...

    def check_cases(self, op: str) -> list[CheckCase]:
        """The check cases of a case's `op`. Cases of one shape are neighbours, so that a backend compiles once for each shape."""
        ...
