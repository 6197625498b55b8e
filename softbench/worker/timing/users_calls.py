"""Host times of the call that users make: without autograd, recorded by autograd, and with the backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from softbench.plugins.backend import Call

Host = Callable[[Call], list[float]]
"""A timer: microseconds of single calls."""
TURNS = 5
"""Of each function in a round. From one round to the next, autograd's thread may take half as long again."""
Times = tuple[tuple[float, ...], ...]


class UsersCall:
    """What users call for a case, with its tensors; beside it perhaps what they would call otherwise."""

    def __init__(self, given: Sequence[torch.Tensor], *functions: Callable[..., object]) -> None:
        """`functions` of the tensors: the first result of each is differentiable in the first tensor, of which it has a copy."""
        self.functions = [_Function(function, given) for function in functions]
        self.order = -1

    def us(self, host: Host) -> Times:
        """Microseconds of single calls in a round: of each function in that order. They take turns, as does which one begins."""
        with torch.no_grad():
            without = self._in_turns(host, [one.call for one in self.functions])
        with torch.enable_grad():
            recorded = self._in_turns(host, [one.call for one in self.functions])
            training = self._in_turns(host, [one.training() for one in self.functions])
        return tuple(us for one in zip(without, recorded, training, strict=True) for us in one)

    def _in_turns(self, host: Host, calls: Sequence[Call]) -> Times:
        for call in calls:
            host(call)  # after a pause the first calls take two to three times as long
        found: list[list[float]] = [[] for _ in calls]
        for _ in range(TURNS):
            self.order = -self.order
            for us, call in list(zip(found, calls, strict=True))[:: self.order]:
                us += host(call)
        return tuple(map(tuple, found))


class _Function:
    """A function with its tensors. A loss may write over the first one."""

    def __init__(self, function: Callable[..., object], given: Sequence[torch.Tensor]) -> None:
        x, *others = (tensor.detach() for tensor in given)
        self.leaf = leaf = x.clone().requires_grad_()

        def call() -> torch.Tensor:
            found: Any = function(leaf, *others)
            first: torch.Tensor = found[0] if isinstance(found, tuple) else found
            return first

        self.call = call

    def training(self) -> Call:
        """The call with its backward."""
        dy = torch.ones_like(self.call())

        def call() -> None:
            torch.autograd.backward(self.call(), dy)
            self.leaf.grad = None

        return call
