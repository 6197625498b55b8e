"""The protocol of a backend, and the optional traits that it may have.

A trait is an optional attribute or method:

| Trait | Meaning |
|---|---|
| `operations = ("softmax(scale)",)` | The operations that it has, with the parameters that it takes; without this trait softmax alone. |
| `compiles = True` | The first call compiles, so builds are `cold` or `cached`; `"always"` if nothing is cached. |
| `compilations()` | Compilations of this process so far, by a compiler that softbench does not count itself. |
| `build_seconds` | Expected seconds of a build, for the estimate of a run's duration. |
| `interpreted()` | `(reason, rows)` if the backend is only checked here, on so many rows, and not timed; else None. |
| `summary` | The line in `softbench list`, in place of the docstring's first line. |
| `advice` | When to choose the backend; `softbench list --long` shows it. |
| `extra = True` | `--backends all` leaves it out; its name or a pattern such as `compile:*` selects it. |
| `reuses_output = True` | The next call overwrites the output of this one, as with CUDA graphs. `softbench list` says so. |
| `generated(case, launched)` | Code and spills of a kernel that neither Triton nor Inductor made, for `softbench inspect`. |
| `sources()` | Files besides its module; a resumed run measures the backend again if one changes. |
| `user_call(case)` | What users call for the case: a function of its inputs whose first result autograd differentiates, or None. |
| `over_dim(direction)` | `f(x, dim)` or `f(dy, y, dim)` for any strides, for `--shape` and `check`. Except for softmax it gets `op=`. |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from softbench.core.case import Case

Call = Callable[..., object]
"""A function of tensors that `prepare` returns; `Backend.prepare` describes its inputs and outputs."""
Piece = tuple[str, str, str, str]
"""A piece of generated code: its file name, kind, language and text, as in `softbench.core.inspection.Artifact`."""
Generated = tuple[Sequence[Piece], Mapping[str, int]]
"""The answer of the trait `generated`: pieces of code, and spilled bytes by kernel."""


@runtime_checkable
class Backend(Protocol):
    """One backend. `softbench list` shows the first line of its docstring."""

    name: str
    """Letters, digits and `. _ : + -`; unique among all backends."""

    def available(self) -> str | None:
        """None if it can run on this machine, else why not and how to fix that. Never raises."""

    def supports(self, case: Case) -> str | None:
        """None if it can compute this case, else why not."""

    def prepare(self, case: Case) -> Call:
        """Compile and tune here; softbench times one call of the returned function.

        The callable gets contiguous tensors on the case's device, in the order of the operation's pass, and must not change them. Those of
        softmax and log_softmax are (M, N), of the case's dtype:

        - forward: `call(x) -> y`
        - backward: `call(dy, y) -> dx`, the gradient of y = softmax(x) with respect to x
        - both: `call(x, dy) -> (y, dx)`, where x requires grad
        """
