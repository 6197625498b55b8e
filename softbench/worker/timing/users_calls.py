"""Host times of the call that users make: without autograd, recorded by autograd, and with the backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from softbench.plugins.backend import Call


def users_us(
    function: Callable[..., object], given: Sequence[torch.Tensor], host: Callable[[Call], list[float]]
) -> tuple[tuple[float, ...], ...]:
    """Microseconds of single calls, in that order.

    Args:
        function: of the tensors; its first result is differentiable in the first of them.
        given: the tensors. The first is copied, because a loss may write its gradient over the logits.
        host: the timer, which returns microseconds of single calls.
    """
    x, *others = (tensor.detach() for tensor in given)
    leaf = x.clone().requires_grad_()

    def call() -> torch.Tensor:
        found: Any = function(leaf, *others)
        first: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return first

    with torch.no_grad():
        without = host(call)
    with torch.enable_grad():
        recorded = host(call)
        dy = torch.ones_like(call())

        def training() -> None:
            torch.autograd.backward(call(), dy)
            leaf.grad = None

        return tuple(without), tuple(recorded), tuple(host(training))
