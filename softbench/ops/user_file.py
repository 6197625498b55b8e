"""Reads a user's operation from a Python file: `OPERATION`, which needs no torch, and `NUMERICS`, its values. Workers only."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch

from softbench.core.case import Case, Direction, Value
from softbench.core.errors import UsageError
from softbench.core.outcome import Grade
from softbench.core.text import few
from softbench.ops import registry
from softbench.ops.declaration import validate
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.ops.operation import Operation
from softbench.ops.values import Values

SMALL = (32, 48)
"""M and N of the case on which the reference and the bound are tried."""


def load(path: str, module: ModuleType | None = None) -> Operation:
    """Import a file, test what it defines on a small case, and make its operation known in this process.

    `module`: that of the file, if it is imported already.

    Raises:
        UsageError: it defines no valid operation, or its bound accepts zeros. Exceptions of the file's own code pass through.
    """
    module = module or imported(Path(path))
    operation, values = getattr(module, "OPERATION", None), getattr(module, "NUMERICS", None)
    if not isinstance(operation, Operation):
        raise UsageError("defines no OPERATION of the type softbench.ops.operation.Operation")
    if not isinstance(values, Values):
        raise UsageError("defines no NUMERICS, an instance of a subclass of softbench.ops.values.Values")
    try:
        validate(operation)
        registry.add(operation, path, values)
    except ValueError as error:
        raise UsageError(f"OPERATION: {error}") from None
    for given in _settings(operation):
        special = operation.at(given)
        for direction in special.passes:
            for dtype in special.dtypes:
                _try(special, values, Case(*SMALL, dtype, Direction(direction), "cpu", special.text))
    return operation


def _settings(operation: Operation) -> Iterator[dict[str, Value]]:
    """The defaults, and each other word or truth value of a parameter."""
    yield {}
    for parameter in operation.parameters:
        for value in (True, False) if parameter.kind == "bool" else parameter.choices:
            if value != parameter.default:
                yield {parameter.name: value}


def _try(operation: Operation, values: Values, case: Case) -> None:
    """A pass must accept its own reference in the dtype of its outputs, and reject zeros in each output, in normal and structured rows."""
    where = f"NUMERICS: {case.direction} in {case.dtype}" + (f" of {case.op}" if case.parameters else "")
    given = values.make(case, 0, torch.device("cpu"))
    outputs = operation.outputs(case)
    if not values.kinds(case):
        raise UsageError(f"{where}: structured_rows gives no rows")
    _require_changes(values, case, given, where)
    for structured in (False, True):
        if structured:
            values.make_structured(given, case, 0)
        wide = [tensor.detach().double() if tensor.is_floating_point() else tensor.detach() for tensor in given]
        if len(exact := tuple(values.reference(case, *wide))) != len(outputs):
            raise UsageError(f"{where}: reference gives {len(exact)} tensors; the pass has {len(outputs)}")
        _require_replay(operation, values, case, wide, exact, where)
        if not operation.is_whole(case):
            _require_separate_rows(operation, values, case, wide, exact, where)
        low, due = values.low_precision(case, *wide), [tuple(out.shape) for out in exact]
        if low is not None and (shapes := [tuple(bound.shape) for bound in low]) != due:
            raise UsageError(f"{where}: low_precision gives {_few(shapes)}; give a tuple with a bound of each output: {_few(due)}")
        right = tuple(out.to(TENSOR_DTYPES[spec.dtype_of(case)]) for out, spec in zip(exact, outputs.values(), strict=True))
        found = values.check(case, given, right)
        rows = "structured rows" if structured else "normal rows"
        if found.grade is not Grade.PASS:
            raise UsageError(f"{where}: the bound rejects the reference itself, rounded to its dtype, in {rows}: {found.detail}")
        for place, name in enumerate(outputs):
            zeroed = tuple(torch.zeros_like(out) if i == place else out for i, out in enumerate(right))
            if values.check(case, given, zeroed).grade is not Grade.WRONG:
                raise UsageError(f"{where}: the bound of {name} accepts zeros in {rows}; make it smaller")


def _require_changes(values: Values, case: Case, given: Sequence[torch.Tensor], where: str) -> None:
    """A function that returns other rows, and changes none, would leave normal rows in place of structured ones."""
    for kind in values.kinds(case):
        rows = tuple(tensor.detach().clone() for tensor in given)
        values.make_structured(rows, case, 0, [kind])
        if all(map(torch.equal, rows, given)):
            raise UsageError(f"{where}: structured_rows: '{kind}' changes no row; its function must change the given rows in place")


def _few(shapes: Sequence[tuple[int, ...]]) -> str:
    return few([str(shape) for shape in shapes])


def _require_replay(
    operation: Operation, values: Values, case: Case, wide: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], where: str
) -> None:
    """The reference must give its results again, also for the rows in reverse order. Otherwise right outputs would be wrong."""
    specs = operation.inputs(case)
    turned = [tensor.flip(0) if spec.has_rows else tensor for tensor, spec in zip(wide, specs, strict=True)]
    for given, back, when in ((wide, False, "for the same inputs"), (turned, True, "for the same rows in reverse order")):
        for got, first in zip(values.reference(case, *given), exact, strict=True):
            again = got.flip(0) if back and not operation.is_whole(case) else got
            if again.shape != first.shape or not torch.allclose(again.double(), first.double(), rtol=1e-6, atol=0, equal_nan=True):
                raise UsageError(f"{where}: the reference disagrees with itself: it gives other results {when}")


def _require_separate_rows(
    operation: Operation, values: Values, case: Case, wide: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], where: str
) -> None:
    """Rows are compared in parts, so row i of an output may depend on row i of the inputs only."""
    half = replace(case, M=case.M // 2)
    part = [tensor[: half.M] if spec.has_rows else tensor for tensor, spec in zip(wide, operation.inputs(case), strict=True)]
    for got, whole in zip(values.reference(half, *part), exact, strict=True):
        if not torch.allclose(got.double(), whole[: half.M].double(), rtol=1e-6, atol=0, equal_nan=True):
            raise UsageError(f"{where}: a row of the reference depends on other rows; softbench compares rows in parts")


def imported(path: Path) -> ModuleType:
    """The module of a file. Raises UsageError if it is no Python file; exceptions of its own code pass through."""
    spec = importlib.util.spec_from_file_location(f"softbench_operation_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError("is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
