"""A backend from the functions of a plugin file that defines no backend: `softmax(x)` and, if there is one, `softmax_backward(dy, y)`."""

from __future__ import annotations

from types import ModuleType

from softbench.core.case import Case, Direction
from softbench.plugins.backend import Backend, Call

NAMES = {Direction.FORWARD: "softmax", Direction.BACKWARD: "softmax_backward"}
"""The functions' names, by direction."""


class FunctionBackend:
    """Functions of a file."""

    def __init__(self, name: str, functions: dict[Direction, Call], summary: str) -> None:
        self.name, self.functions, self.summary = name, functions, summary

    def available(self) -> str | None:
        """None: whether the functions can run here shows when they are called."""
        return None

    def supports(self, case: Case) -> str | None:
        """None if the file has the direction's function."""
        if case.direction in self.functions:
            return None
        return (
            f"its file defines no function {NAMES[case.direction]}"
            if case.direction in NAMES
            else "its file defines no backend, only functions"
        )

    def prepare(self, case: Case) -> Call:
        """The direction's function as it is."""
        return self.functions[case.direction]


def from_functions(module: ModuleType, name: str) -> Backend | None:
    """The backend of a file's own functions; None if it defines no `softmax`. Imported functions do not count."""
    own = {direction: getattr(module, called, None) for direction, called in NAMES.items()}
    functions = {way: found for way, found in own.items() if callable(found) and getattr(found, "__module__", "") == module.__name__}
    if Direction.FORWARD not in functions:
        return None
    summary = (functions[Direction.FORWARD].__doc__ or module.__doc__ or "").strip().partition("\n")[0]
    return FunctionBackend(name, functions, summary)
