"""A problem in plain Python: `inputs`, `reference`, a docstring, and perhaps `cases`, `tolerance` and `destination`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, getdoc
from types import ModuleType
from typing import Any

import torch

from softbench.core.case import Value, safe_name
from softbench.core.errors import UsageError
from softbench.ops.dtypes import DTYPES
from softbench.problems.problem import NOT_PARAMETERS, Problem, Tolerance, parameters_of


class PythonFile(Problem):
    """The functions of a module."""

    def __init__(self, module: ModuleType, stem: str) -> None:
        """Raises UsageError for a module that is no problem."""
        self.name = safe_name(stem)
        self.summary = (getdoc(module) or "").partition("\n")[0]
        self._inputs, self._reference = _function(module, "inputs"), _function(module, "reference")
        accepted = parameters_of(self._inputs, "inputs")
        self._given = tuple(name for name in NOT_PARAMETERS if name in accepted)
        self.takes_dtype = "dtype" in accepted
        first = next((name for name, dtype in DTYPES.items() if dtype is accepted.get("dtype")), self.dtypes[0])
        self.dtypes = tuple(sorted(self.dtypes, key=lambda name: name != first))
        given = {name: default for name, default in accepted.items() if name not in NOT_PARAMETERS}
        self.cases = _cases(getattr(module, "cases", None), set(given))
        for name, default in given.items():
            if default is Parameter.empty and not all(name in case for case in self.cases):
                raise UsageError(f"inputs: {name} has no default; give it one, or give it in each of a list `cases`")
        of_first = {**given, **self.cases[0]}
        values = {name: of_first[name] if given[name] is Parameter.empty else given[name] for name in given}
        self.parameters = {name: value for name, value in values.items() if _is_value(value)}
        self._tolerance = _tolerance(getattr(module, "tolerance", None))
        self.destination = getattr(module, "destination", False) is True

    def inputs(self, values: Mapping[str, Value], seed: int, dtype: torch.dtype, device: torch.device) -> Any:
        """What the module's function gives."""
        of = {"seed": seed, "dtype": dtype, "device": device}
        return self._inputs(**values, **{name: of[name] for name in self._given})

    def reference(self, device: torch.device) -> Callable[..., Any]:
        """The module's function; a module of torch moves to the device."""
        return self._reference.to(device) if isinstance(self._reference, torch.nn.Module) else self._reference

    def tolerance(self, dtype: str) -> Tolerance | None:
        """That of the file."""
        return self._tolerance


def _function(module: ModuleType, name: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if not callable(found):
        raise UsageError(f"defines no function {name}; a problem has inputs(...) and reference(...), see docs/problems.md")
    return found


def _is_value(value: object) -> bool:
    return isinstance(value, bool | int | float | str)


def _cases(found: object, known: set[str]) -> list[dict[str, Value]]:
    if found is None:
        return [{}]
    if not isinstance(found, list | tuple) or not found or not all(isinstance(case, dict) for case in found):
        raise UsageError("cases must be a list of dicts, as in cases = [dict(M=4096, N=1024)]")
    for place, case in enumerate(found):
        for name, value in case.items():
            if name not in known:
                raise UsageError(f"cases[{place}]: inputs has no parameter {name}; it has {', '.join(sorted(known))}")
            if not _is_value(value):
                raise UsageError(f"cases[{place}]: {name} must be a number, a word, True or False, not {value!r:.40}")
    return [dict(case) for case in found]


def _tolerance(found: object) -> Tolerance | None:
    if found is None:
        return None
    if not isinstance(found, list | tuple) or not all(isinstance(one, int | float) and 0 <= one < 1e9 for one in found) or len(found) != 2:
        raise UsageError("tolerance must be (rtol, atol), as in tolerance = (1e-3, 1e-5)")
    return float(found[0]), float(found[1])
