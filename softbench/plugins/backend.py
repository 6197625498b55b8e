"""The protocol of a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from softbench.core.case import Case


@runtime_checkable
class Backend(Protocol):
    """One backend. `softbench list` shows the first line of its docstring."""

    name: str
    """Letters, digits and `. _ : + -`; unique among all backends."""

    def available(self) -> str | None:
        """None if it can run on this machine, else why not and how to fix that. Never raises."""

    def supports(self, case: Case) -> str | None:
        """None if it can compute this case, else why not."""

    def prepare(self, case: Case) -> Callable[..., Any]:
        """Compile and tune here; softbench times one call of the returned function.

        The callable gets contiguous (M, N) tensors of the case's dtype on its device, and must not change them:

        - forward: `call(x) -> y`
        - backward: `call(dy, y) -> dx`, the gradient of y = softmax(x) with respect to x
        - both: `call(x, dy) -> (y, dx)`, where x requires grad
        """
