"""The protocol of a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from softbench.core.case import Case


@runtime_checkable
class Backend(Protocol):
    """One softmax strategy. Its first docstring line is what `softbench list` shows."""

    name: str
    """Letters, digits and `. _ : + -`; unique among all backends."""

    def available(self) -> str | None:
        """None when it can run on this machine, else why not and how to mend it. Never raises."""

    def supports(self, case: Case) -> str | None:
        """None when it can do this case, else why not."""

    def prepare(self, case: Case) -> Callable[..., Any]:
        """Everything slow happens here; one call of what is returned is what is timed.

        The callable gets contiguous (M, N) tensors of the case's dtype on its device, and must not change them:

        - forward: `call(x) -> y`
        - backward: `call(dy, y) -> dx`, the gradient of y = softmax(x) with respect to x
        - both: `call(x, dy) -> (y, dx)`, where x requires grad
        """
