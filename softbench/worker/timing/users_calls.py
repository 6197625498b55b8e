"""Host times of the call that users make: without autograd, recorded by autograd, and with the backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from softbench.plugins.backend import Call

Host = Callable[[Call], list[float]]
"""A timer: microseconds of single calls."""


class UsersCall:
    """What users call for a case, with its tensors."""

    def __init__(self, function: Callable[..., object], given: Sequence[torch.Tensor]) -> None:
        """`function` of the tensors: its first result is differentiable in the first of them, which is copied: a loss may write over it."""
        x, *others = (tensor.detach() for tensor in given)
        self.leaf = leaf = x.clone().requires_grad_()

        def call() -> torch.Tensor:
            found: Any = function(leaf, *others)
            first: torch.Tensor = found[0] if isinstance(found, tuple) else found
            return first

        self.call = call

    def us(self, host: Host) -> tuple[tuple[float, ...], ...]:
        """Microseconds of single calls in a round, in that order."""
        with torch.no_grad():
            without = _warm(host, self.call)
        with torch.enable_grad():
            recorded = _warm(host, self.call)
            dy = torch.ones_like(self.call())

            def training() -> None:
                torch.autograd.backward(self.call(), dy)
                self.leaf.grad = None

            return without, recorded, _warm(host, training)


def _warm(host: Host, call: Call) -> tuple[float, ...]:
    host(call)  # after a pause the first calls take two to three times as long
    return tuple(host(call))
