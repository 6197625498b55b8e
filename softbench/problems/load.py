"""Reads the file of an operation or a problem in a worker, and makes it known there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import ModuleType

from softbench.core.case import Direction, Value
from softbench.core.errors import UsageError
from softbench.ops import registry, user_file
from softbench.ops.declaration import validate
from softbench.ops.operation import Operation, TensorSpec
from softbench.ops.parameters import MAX_WHOLE, Parameter
from softbench.plugins.load import SOLUTIONS
from softbench.problems.backendbench import BackendBench
from softbench.problems.flashinfer import FlashInfer
from softbench.problems.kernelbench import KernelBench
from softbench.problems.kernelbot import Kernelbot
from softbench.problems.layout import pack, unpack
from softbench.problems.problem import SIZES, Problem
from softbench.problems.python_file import PythonFile
from softbench.problems.values import Cases, ProblemValues

KERNELBENCH = ("Model", "get_inputs")
"""What each problem of KernelBench defines."""
PLUGINS = (*SOLUTIONS, "backend", "backends")
"""What a plugin's file may have, beside the names of operations."""


def load(path: str, wanted: Sequence[Mapping[str, Value]] = (), *, every: bool = True, layouts: bytes = b"") -> Operation:
    """Import a file, and make its operation or problem known in this process.

    Args:
        path: the file.
        wanted: of a problem, values of parameters; each makes a case. Without them its own cases count.
        every: false to follow the shapes of other cases when they are asked for.
        layouts: those of cases that are known already, as `layouts_of` gives them.

    Raises:
        UsageError: it defines neither, or a parameter has no such value. Exceptions of the file's own code pass through.
    """
    found = _problem(path)
    if isinstance(found, ModuleType):
        return user_file.load(path, found)
    values = (found.of_values or ProblemValues)(found)
    with suppress(Exception) if found.recorded else nullcontext():  # another version of torch may have packed them
        values.layouts.update(unpack(layouts))
    operation = declared(values, wanted, every=every)
    try:
        validate(operation)
        registry.add(operation, path, values, layouts)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return operation


def layouts_of(operation: Operation) -> bytes:
    """The layouts of an operation's cases, for another worker; empty if it is no problem."""
    values = registry.numerics(operation.name)
    return pack(values.layouts) if isinstance(values, ProblemValues) else b""


def _problem(file: str) -> Problem | ModuleType:
    """The problem of a file; the module of an operation's file. Raises as `load`."""
    path = Path(file)
    if path.suffix in ("", ".txt"):
        return BackendBench(file)
    if path.suffix == ".yml":
        return Kernelbot(path.parent)
    if path.suffix == ".json":
        return FlashInfer(path)
    if path.suffix == ".target":
        from softbench.problems.target import Target  # here, as modules have nine layers

        return Target(path)
    module = user_file.imported(path)
    return module if hasattr(module, "OPERATION") else problem_of(module, path.stem)


def problem_of(module: ModuleType, stem: str) -> Problem:
    """The problem that a module defines, in the format that it has. Raises UsageError."""
    missing = [name for name in KERNELBENCH if not hasattr(module, name)]
    if not missing:
        return KernelBench(module, stem)
    if hasattr(module, "inputs") or hasattr(module, "reference"):
        return PythonFile(module, stem)
    if is_a := next((name for name in (*PLUGINS, *registry.NAMES) if hasattr(module, name)), ""):
        raise UsageError(f"is a plugin, as it has `{is_a}`: give it with --plugin, or as kernelbench:PROBLEM.py,{stem}.py")
    if len(missing) < len(KERNELBENCH):
        raise UsageError(f"lacks {missing[0]}: a problem of KernelBench defines {' and '.join(KERNELBENCH)}")
    raise UsageError(
        "defines no problem and no operation: write inputs(...) and reference(...), Model and get_inputs of KernelBench, "
        "or OPERATION and NUMERICS; see docs/problems.md"
    )


def declared(values: ProblemValues, wanted: Sequence[Mapping[str, Value]], *, every: bool = True) -> Operation:
    """A problem as an operation, with its cases. A case that raises is lost, if another one can run. Raises UsageError."""
    problem = values.problem
    known = tuple(_parameter(problem, name) for name in problem.parameters if name not in SIZES)
    all_given = [_read(problem, known, case) for case in wanted or problem.cases] if every or not values.layouts else []
    lost = values.declare_all(all_given, most=len(all_given) if every else 1)
    first = next(iter(values.layouts.values()))
    fixed = tuple(dict.fromkeys(layout.case.dtype for layout in values.layouts.values()))
    tensors = {name: TensorSpec((), spec.dtype) for name, spec in first.case.tensors.items()}
    return Operation(
        problem.name, tensors, {Direction.FORWARD: first.case.call}, problem.summary, known, whole=True, cases=Cases(values),
        case_dtypes=problem.dtypes if problem.takes_dtype else fixed, solution=problem.solution, format=problem.format, lost=tuple(lost),
        recorded=problem.recorded,
    )  # fmt: skip


def _parameter(problem: Problem, name: str) -> Parameter:
    default = problem.parameters[name]
    if isinstance(default, bool):
        return Parameter(name, "bool", default)
    if isinstance(default, int):
        return Parameter(name, "whole", default, least=-MAX_WHOLE if default < 0 else None)
    if isinstance(default, float):
        return Parameter(name, "number", default)
    words = dict.fromkeys([default, *(str(case[name]) for case in problem.cases if name in case)])
    return Parameter(name, "choice", default, choices=(*words, *(["default"] if len(words) == 1 else [])))


def _read(problem: Problem, known: Sequence[Parameter], given: Mapping[str, Value]) -> dict[str, Value]:
    """All values of a case."""
    by_name = {parameter.name: parameter for parameter in known}
    for name in given:
        if name not in problem.parameters:
            there = ", ".join(problem.parameters) or "none"
            raise UsageError(f"{name}={given[name]}: inputs of {problem.name} has no such parameter; it has {there}")
    try:
        found = {name: by_name[name].read(value) for name, value in given.items() if name in by_name}
    except ValueError as error:
        raise UsageError(str(error)) from None
    return {**problem.parameters, **given, **found}
