"""What the values of operations over rows have in common: see `softbench.ops.numerics`."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from softbench.core.case import Case, Direction
from softbench.ops.check_case import Tensors
from softbench.ops.rowwise import independent, inputs


class RowwiseNumerics(ABC):
    """An operation over the last axis of (M, N) tensors, and its gradient."""

    __slots__ = ()  # an attribute of the instance would replace a method that the tamper guard protects

    @abstractmethod
    def make(self, case: Case, seed: int, device: torch.device) -> Tensors:
        """As in `softbench.ops.numerics`."""

    @abstractmethod
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y in the dtype of x."""

    @abstractmethod
    def gradient(self, dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """dx in their dtype."""

    def refill(self, given: Tensors, case: Case, seed: int) -> None:
        inputs.refill(given, self.make(case, seed, given[0].device))

    def drawn(self, given: Tensors) -> bool:
        return independent.drawn(given)

    def estimate(self, case: Case, given: Tensors) -> Tensors:
        first, *others = (tensor.detach().float() for tensor in given)
        if case.direction is Direction.BACKWARD:
            return (self.gradient(first, *others),)
        y = self.forward(first)
        return (y, *(self.gradient(dy, y) for dy in others))
