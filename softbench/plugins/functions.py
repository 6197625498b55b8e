"""Backends from functions: those of a plugin file that defines no backend, or one function that the user names.

The functions of a file have the names of operations: `softmax(x)`, and `softmax_backward(dy, y)` if there is one; `log_softmax(x)`;
`layer_norm(x, w)`. A function that the user names may have any name: it is taken for the operation, the parameters and the direction that
are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from types import ModuleType

from softbench.core.case import Case, Direction
from softbench.core.errors import UsageError
from softbench.plugins.backend import Backend, Call

SUFFIXES = {Direction.FORWARD: "", Direction.BACKWARD: "_backward", Direction.FUSED: "_fused"}
"""What follows the operation's name in a function's name, by direction."""
Functions = dict[tuple[str, Direction], Call]
"""Functions by operation and direction."""


class FunctionBackend:
    """Functions of a file."""

    def __init__(self, name: str, functions: Functions, summary: str) -> None:
        self.name, self.functions, self.summary = name, functions, summary
        self.operations = tuple(dict.fromkeys(op for op, _ in functions))

    def available(self) -> str | None:
        """None: whether the functions can run here shows when they are called."""
        return None

    def supports(self, case: Case) -> str | None:
        """None if the file has the function of the operation and direction."""
        if (case.op, case.direction) in self.functions:
            return None
        if case.direction not in SUFFIXES:
            return "its file defines no backend, only functions"
        return f"its file defines no function {case.op}{SUFFIXES[case.direction]}"

    def prepare(self, case: Case) -> Call:
        """The function as it is."""
        return self.functions[case.op, case.direction]


def from_functions(module: ModuleType, name: str, operations: Sequence[str]) -> Backend | None:
    """The backend of a file's own functions; None if none has the name of an operation. Imported functions do not count."""
    named = {(op, way): getattr(module, op + suffix, None) for op in operations for way, suffix in SUFFIXES.items()}
    own = {key: found for key, found in named.items() if callable(found) and getattr(found, "__module__", "") == module.__name__}
    functions = {(op, way): found for (op, way), found in own.items() if {(op, Direction.FORWARD), (op, Direction.FUSED)} & own.keys()}
    if not functions:
        return None
    first = next(iter(functions.values()))
    return FunctionBackend(name, functions, (first.__doc__ or module.__doc__ or "").strip().partition("\n")[0])


class GivenFunction:
    """One function that the user names."""

    def __init__(self, name: str, function: Call, operations: Sequence[str]) -> None:
        """`operations` are all, each with its parameters as in `softmax(scale)`."""
        self.name, self.function, self.operations = name, function, tuple(operations)
        self.summary = (function.__doc__ or "").strip().partition("\n")[0]

    def available(self) -> str | None:
        """None: whether the function can run here shows when it is called."""
        return None

    def supports(self, case: Case) -> str | None:
        """None: the function is what the user asks about."""
        return None

    def prepare(self, case: Case) -> Call:
        """The function as it is. It gets the tensors of the case's pass, as `softbench.plugins.backend` describes."""
        return self.function


def given_function(module: ModuleType, function: str, name: str, operations: Sequence[str]) -> Backend:
    """The backend of a module's function.

    Raises:
        UsageError: the module has no such function.
    """
    try:
        found = attrgetter(function)(module)
    except AttributeError:
        raise UsageError(f"has no function {function}") from None
    if not callable(found) or isinstance(found, type):
        raise UsageError(f"{function} is no function, but of {type(found).__name__}")
    return GivenFunction(name, found, operations)
