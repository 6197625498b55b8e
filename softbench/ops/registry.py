"""The operations by name. Other packages reach an operation only through this module.

An operation is a Python file with OPERATION, its declaration, and NUMERICS, its values. Those of softbench are modules beside this one.
Workers read a user's file with `softbench.ops.user_file`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from softbench.core.case import parse_op

if TYPE_CHECKING:
    from softbench.core.case import Case
    from softbench.ops.operation import Operation
    from softbench.ops.values import Values

NAMES = (
    *("softmax", "log_softmax", "cross_entropy", "logprob", "masked_softmax", "rms_norm", "layer_norm", "add_rms_norm", "matmul"),
    "linear_cross_entropy",
)
"""The names of softbench's operations."""
_added: dict[str, tuple[Operation, str]] = {}
"""The operations of users by name, each with its file."""
_numerics: dict[str, Values] = {}
"""Their values, in a worker."""
_solved: dict[str, tuple[str, ...]] = {}
"""By file of a solution that follows a problem on the command line: the files of its problems."""
_layouts: dict[str, bytes] = {}
"""By file: the layouts of a problem's cases that workers get."""


def names() -> tuple[str, ...]:
    """The names of all operations."""
    return (*NAMES, *_added)


def declarations() -> tuple[str, ...]:
    """All operations with all their parameters, as a backend declares them: `softmax(scale,out_dtype)`."""
    parameters = {name: ",".join(parameter.name for parameter in declared(name).parameters) for name in names()}
    return tuple(f"{name}({inner})" if inner else name for name, inner in parameters.items())


def solutions(files: Sequence[str] = ()) -> dict[str, str]:
    """By the name of a problem, of these files or of all: what a plugin file may call its function or class."""
    return {name: found.solution for name, (found, file) in _added.items() if found.solution and (not files or file in files)}


def solve(problems: Mapping[str, Sequence[str]]) -> None:
    """Files of solutions that are of some problems only, each with the files of these problems. All others may solve any."""
    _solved.clear()
    _solved.update({solution: tuple(files) for solution, files in problems.items()})


def solved_by(solution: str) -> tuple[str, ...]:
    """The files of the problems that a file of a solution is for; empty if it may solve any."""
    return _solved.get(solution, ())


def files() -> tuple[str, ...]:
    """The files of the users' operations."""
    return tuple(file for _, file in _added.values())


def layouts() -> dict[str, bytes]:
    """By file: the layouts of a problem's cases, which workers get."""
    return dict(_layouts)


def file_of(name: str) -> str:
    """The file of a user's operation; empty for softbench's own."""
    return _added[name][1] if name in _added else ""


def given(name: str) -> str:
    """What `--op` takes for an operation: its name, or of a user's the file."""
    file = file_of(name)
    return f"backendbench:{file}" if file and path_of(file) != Path(file) else file or name


def path_of(file: str) -> Path | None:
    """The file on disk of one that `files` names: of `FOLDER:TRACES` the traces. None for an operator of torch, which has no file."""
    return next((path for path in (Path(file), Path(file.rpartition(":")[2])) if path.is_file()), None)


def of_file(file: str) -> str:
    """The name of the operation of this file; empty if the file was not read."""
    return next((name for name, (_, other) in _added.items() if other == file), "")


def add(operation: Operation, file: str, numerics: Values | None = None, layouts: bytes = b"") -> None:
    """Make a copy of a user's operation known in this process, whose parts cannot be exchanged. Workers also give its values.

    `layouts`: what workers get of a problem.

    Raises:
        ValueError: softbench or another file has an operation of this name.
    """
    other = "softbench" if operation.name in NAMES else _added.get(operation.name, (None, file))[1]
    if other != file:
        raise ValueError(f"{other} has an operation {operation.name} too; give this one another name")
    tensors, passes = MappingProxyType(dict(operation.tensors)), MappingProxyType(dict(operation.passes))
    _added[operation.name] = replace(operation, tensors=tensors, passes=passes), file
    if numerics is not None:
        _numerics[operation.name] = numerics
    if layouts:
        _layouts[file] = layouts


def forget(folder: Path) -> None:
    """Forget the operations of the files of a folder that is removed."""
    for name, (_, file) in [*_added.items()]:
        if Path(file).parent == folder.resolve():
            del _added[name]
            _layouts.pop(file, None)


def operation(text: str) -> Operation:
    """The operation of a case's `op`, for its parameters: `softmax`, `softmax(scale=0.7)`.

    Raises:
        KeyError: there is none of this name.
        ValueError: it has no such parameters.
    """
    name = text.partition("(")[0]
    return _at(declared(name if name in NAMES or name in _added else parse_op(text)[0]), text)


@lru_cache(maxsize=1024)
def _at(operation: Operation, text: str) -> Operation:
    """What `operation` returns: a sweep of one operation has thousands of cases. Its parts cannot be exchanged."""
    found = operation.at(parse_op(text)[1])
    tensors, passes = MappingProxyType(dict(found.tensors)), MappingProxyType(dict(found.passes))
    return replace(found, tensors=tensors, passes=passes, parameter_values=MappingProxyType(dict(found.parameter_values)))


def is_whole(case: Case) -> bool:
    """True if a case is drawn, changed and compared as a whole: a problem, or a pass whose rows depend on each other."""
    return operation(case.op).is_whole(case)


def rows(case: Case) -> int:
    """How many parts of a case are compared by themselves: its rows, and 1 of a case that is whole."""
    return operation(case.op).rows(case)


def of_rows(case: Case, count: int) -> Case:
    """The case of tensors that hold some of the rows, or copies of them. A case that is whole stays."""
    return case if is_whole(case) else case.of_rows(count)


def declared(name: str) -> Operation:
    """The operation of this name as its file declares it. Raises as `operation`."""
    return _added[name][0] if name in _added else _own(name)


@cache
def _own(name: str) -> Operation:
    if name not in NAMES:
        raise KeyError(name)
    found: Operation = import_module(f".{name}", __package__).OPERATION
    return found


def numerics(text: str) -> Values:
    """The values of the operation of a case's `op`. It imports torch, so only workers call it. Raises as `operation`."""
    name, _ = parse_op(text)
    if name in _numerics:
        return _numerics[name]
    found: Values = import_module(f".{_own(name).name}", __package__).NUMERICS
    return found
