"""Reads the traits of a backend, which `softbench.plugins.backend` lists. No other module reads them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from softbench.core.case import OPERATION, YARDSTICK, Case, Direction
from softbench.core.text import one_line
from softbench.plugins.backend import Backend, Call, Generated
from softbench.plugins.info import BackendInfo, lacking
from softbench.plugins.load import source_hash
from softbench.plugins.source import PluginSource
from softbench.plugins.targets import Targets

_INTERPRETED: dict[int, tuple[object, tuple[str, int] | None]] = {}
"""Answers of `interpreted` by the backend's id. The backend is kept, so that its id stays its own."""
interpreter: tuple[str, int] | None = None
"""The answer for backends without this trait: that of a worker which runs their kernels in an interpreter."""


def info(backend: Backend, source: PluginSource) -> BackendInfo:
    """The info that a worker reports about a backend."""
    interpreted(backend)
    summary = getattr(backend, "summary", None) or (type(backend).__doc__ or "").strip().partition("\n")[0]
    return BackendInfo(
        name=backend.name,
        origin=source,
        unavailable=why_not(backend.available(), "available"),
        summary=one_line(str(summary)),
        source=source_hash(backend, source),
        advice=one_line(str(getattr(backend, "advice", None) or "")),
        extra=bool(getattr(backend, "extra", False)),
        reuses_output=overwrites_output(backend),
        operations=operations(backend),
        facts=backend.facts if isinstance(backend, Targets) else {},
        build_seconds=float(getattr(backend, "build_seconds", 0.0)),
    )


def operations(backend: object) -> tuple[str, ...]:
    """The operations that a backend has, each with its parameters as in `softmax(scale)`; softmax if it says nothing.

    Raises:
        TypeError: the trait is no list of names.
    """
    declared = getattr(backend, "operations", (OPERATION,))
    if isinstance(declared, str) or not isinstance(declared, Sequence) or not all(isinstance(name, str) for name in declared):
        raise TypeError(f"operations is {one_line(repr(declared), 40)}; it must be a list of names such as ('{OPERATION}',)")
    return tuple(declared)


def unsupported(backend: Backend, case: Case, *, by_dim: bool | None = None) -> str:
    """Why a backend cannot compute a case, in one line; empty if it can. Raises what its `supports` raises, and as `why_not`.

    `by_dim`: whether the case needs `over_dim`; without it any case with a shape does.
    """
    if not is_yardstick(backend) and (reason := lacking(operations(backend), case.op)):
        return reason
    if (bool(case.shape) if by_dim is None else by_dim) and not is_yardstick(backend) and over_dim(backend, case.op) is None:
        return "it takes (M, N) tensors only, because it has no over_dim"
    return why_not(backend.supports(replace(case)), "supports")  # a copy, because a backend can write to a frozen object


def measured_case(backend: Backend, case: Case, *, by_dim: bool = True) -> Case:
    """The case as a worker measures it: an interpreted backend gets few rows, and the yardstick moves rows of the same bytes.

    Without `by_dim` the yardstick gets the tensors in the case's shape, as other tensors depend on it.
    """
    if is_yardstick(backend) and by_dim:
        return case.of_rows(case.M)
    only = interpreted(backend)
    return case.with_rows(only[1]) if only else case


def why_not(answer: object, method: str) -> str:
    """The reason from `available` or `supports` as one line; empty for None.

    Raises:
        TypeError: another value, such as True, whose meaning is unclear.
    """
    if answer is None or isinstance(answer, str):
        return one_line(answer or "")
    raise TypeError(f"{method}() returned {one_line(repr(answer), 40)}; it must return None for yes, or a text that says why not")


def overwrites_output(backend: object) -> bool:
    """True if a backend declares that its next call overwrites the last output, as CUDA graphs do."""
    return bool(getattr(backend, "reuses_output", False))


def is_yardstick(backend: object) -> bool:
    """True for softbench's own `copy`. Any other backend must compute a softmax, whatever it declares."""
    own = sys.modules.get("softbench.backends.copy")  # loaded as a plugin source; this package imports no backend
    return own is not None and type(backend) is own.Copy and getattr(backend, "name", "") == YARDSTICK and not vars(backend)


def reuses_output(backend: object) -> bool:
    """True if the next call overwrites the last output, as CUDA graphs and the yardstick do."""
    return overwrites_output(backend) or is_yardstick(backend)


def compiles(backend: object) -> bool | str:
    """True if a backend's first call compiles; `always` if nothing is cached."""
    declared: bool | str = getattr(backend, "compiles", False)
    return declared


def compilations(backend: object) -> int:
    """The compilations that a backend itself counts; 0 if it counts none.

    Raises:
        TypeError: the trait returns another type.
    """
    trait = getattr(backend, "compilations", None)
    count = trait() if callable(trait) else 0
    if not isinstance(count, int):
        raise TypeError(f"compilations() returned {type(count).__name__}, not a whole number")
    return count


def over_dim(backend: object, operation: str) -> Callable[[Direction], Call] | None:
    """The backend's `over_dim` of an operation, for tensors of any shape and strides, or None."""
    found: Callable[..., Call] | None = getattr(backend, "over_dim", None)
    return found if found is None or operation == OPERATION else partial(found, op=operation)


def user_call(backend: object, case: Case) -> Call | None:
    """The function that users call for a case, which autograd differentiates in its first input; None if the backend names none."""
    found = getattr(backend, "user_call", None)
    return found(replace(case)) if callable(found) else None


def generated(backend: object) -> Callable[[Case, Sequence[str]], Generated] | None:
    """The backend's `generated`, which gives code that neither Triton nor Inductor made, or None."""
    found = getattr(backend, "generated", None)
    return found if callable(found) else None


def interpreted(backend: object) -> tuple[str, int] | None:
    """Why a backend is only checked here, and on how many rows; None for a backend that can be timed.

    It is asked once, when it is loaded: with another answer later, a few rows would be checked and all rows timed.

    Raises:
        TypeError: the answer is neither None nor a reason and a number of rows.
    """
    if id(backend) not in _INTERPRETED:
        ask = getattr(backend, "interpreted", None)
        answer = ask() if callable(ask) else interpreter
        if answer is not None and not (isinstance(answer, tuple) and [type(part) for part in answer] == [str, int] and answer[1] > 0):
            raise TypeError(f"interpreted() returned {one_line(repr(answer), 40)}; it must return None, or a reason and a number of rows")
        _INTERPRETED[id(backend)] = backend, answer
    return _INTERPRETED[id(backend)][1]
